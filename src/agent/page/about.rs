//! What the page says of the agent itself.

use crate::actors::explain::{Failing, NodeState};
use crate::actors::ports::SourceKind;
use crate::actors::time::Time;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::board::Millis;
use crate::actors::text::plain;
use crate::agent::admin::OLDEST_PASS;
use crate::agent::explain::PROBLEM;
use crate::agent::view::View;

/// How many problems of the sources are told one by one.
const PROBLEMS: usize = 50;

/// What stays the same while the agent runs.
#[derive(Clone, Debug)]
pub struct About {
    /// The node's name.
    pub name: String,
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
    /// Why it does not, if it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    outage: Option<Ill>,
    /// What the runtime says it lacks.
    lacks: Vec<String>,
    /// When the last housekeeping pass ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    housekeeping: Option<Millis>,
    /// Whether that is too long ago.
    late: bool,
    /// Why passes end early.
    #[serde(skip_serializing_if = "Option::is_none")]
    early: Option<Ill>,
}

/// What keeps failing. How often is not told: each try would be news.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Ill {
    since: Millis,
    error: String,
}

impl From<&Failing> for Ill {
    fn from(failing: &Failing) -> Self {
        Ill { since: failing.since.into(), error: plain(&failing.error, PROBLEM).into_owned() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Problem {
    what: String,
    message: String,
}

impl Agent {
    pub(super) fn now(view: &View, about: &About, node: &NodeState, page: &str) -> Self {
        let problems = view.problems();
        Agent {
            page: page.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            name: about.name.clone(),
            started: about.started.into(),
            stopping: about.stopping.is_cancelled(),
            places: about.places.clone(),
            // What a source wants may wait for the runtime, which is told apart.
            missing: node.missing_sources.iter().filter(|it| !it.held).map(|source| source.kind.as_str()).collect(),
            problem_count: problems.len(),
            problems: problems
                .into_iter()
                .take(PROBLEMS)
                .map(|problem| Problem { what: problem.what, message: problem.message })
                .collect(),
            late: view.node.housekeeping.is_late(OLDEST_PASS.max(2 * view.resync)),
            ..Agent::default()
        }
        .on(node, *view.node.healthy.borrow())
    }

    /// With how the node fares. It counts as healthy for some time after its runtime was listed last; an outage is told at
    /// once, as `/readyz` does.
    fn on(self, node: &NodeState, healthy: bool) -> Self {
        let lacks = [&node.unready.runtime, &node.unready.network].into_iter().flatten();
        Agent {
            lacks: lacks.map(|why| plain(why, PROBLEM).into_owned()).collect(),
            runtime: healthy && node.runtime.is_none(),
            outage: node.runtime.as_ref().map(Ill::from),
            housekeeping: node.last_pass.map(Millis::from),
            early: node.passes.as_ref().map(Ill::from),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::actors::ports::Unready;

    #[test]
    fn an_outage_and_passes_that_end_early_are_told_at_once() {
        let failing = |tries| Some(Failing { since: Time::from_secs(9), tries, error: "gone".into() });
        let node = |tries| NodeState {
            started: Time::ZERO,
            missing_sources: vec![],
            last_pass: Some(Time::from_secs(10)),
            passes: failing(tries),
            runtime: failing(tries),
            unready: Unready { runtime: Some("no disk".into()), network: None },
        };
        let agent = Agent::default().on(&node(1), true);
        let told = serde_json::to_value(&agent).unwrap();
        let ill = json!({"since": 9000, "error": "gone"});
        assert_eq!((&told["runtime"], &told["outage"], &told["early"]), (&json!(false), &ill, &ill));
        assert_eq!(told["lacks"], json!(["no disk"]));
        assert_eq!(agent, Agent::default().on(&node(2), true), "another try is no news");
    }
}
