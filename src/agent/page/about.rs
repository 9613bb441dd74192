//! What the page says of the agent itself.

use std::path::PathBuf;

use crate::actors::ports::SourceKind;
use crate::actors::time::Time;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::board::Millis;
use crate::agent::admin::OLDEST_PASS;
use crate::agent::view::View;

/// How many problems of the sources are told one by one.
const PROBLEMS: usize = 50;

/// What stays the same while the agent runs.
#[derive(Clone, Debug)]
pub struct About {
    /// The node's name.
    pub name: String,
    /// The agent's directory.
    pub root: PathBuf,
    /// Since when it runs.
    pub started: Time,
    /// Where manifests are read from.
    pub places: Vec<Place>,
    /// Cancelled once the agent was asked to end.
    pub stopping: CancellationToken,
}

/// A place where manifests are read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    #[serde(serialize_with = "word")]
    pub source: SourceKind,
    /// A path or a URL, for people.
    pub place: String,
}

fn word<S: serde::Serializer>(kind: &SourceKind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(kind.as_str())
}

/// The agent at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Agent {
    /// Which page this agent serves: an open one of an earlier agent may be another.
    page: String,
    version: &'static str,
    name: String,
    root: String,
    started: Millis,
    /// Whether it was asked to end.
    stopping: bool,
    places: Vec<Place>,
    /// Sources that have not delivered yet.
    missing: Vec<&'static str>,
    /// What the sources cannot use, at most [`PROBLEMS`] of them.
    problems: Vec<Problem>,
    /// How many there are in all.
    problem_count: usize,
    /// Whether the runtime answers.
    runtime: bool,
    /// When the last housekeeping pass ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    housekeeping: Option<Millis>,
    /// Whether that is too long ago.
    late: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Problem {
    what: String,
    message: String,
}

impl Agent {
    pub(super) fn now(view: &View, about: &About, page: &str) -> Self {
        let problems = view.problems();
        Agent {
            page: page.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            name: about.name.clone(),
            root: about.root.display().to_string(),
            started: about.started.into(),
            stopping: about.stopping.is_cancelled(),
            places: about.places.clone(),
            missing: view.node.desired.missing_sources().iter().map(|source| source.as_str()).collect(),
            problem_count: problems.len(),
            problems: problems
                .into_iter()
                .take(PROBLEMS)
                .map(|problem| Problem { what: problem.what, message: problem.message })
                .collect(),
            runtime: *view.node.healthy.borrow(),
            housekeeping: view.node.housekeeping.last_pass().map(Millis::from),
            late: view.node.housekeeping.is_late(OLDEST_PASS.max(2 * view.resync)),
        }
    }
}
