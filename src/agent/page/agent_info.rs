//! The agent's own state on the page.

use podwright_actors::eviction::NodePressure;
use podwright_actors::explain::NodeState;
use podwright_actors::health::OngoingFailure;
use podwright_model::time::Time;
use podwright_ports::SourceKind;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::row::Millis;
use crate::agent::error_text::MAX_PROBLEM_BYTES;
use crate::agent::view::NodeView;
use podwright_model::text::plain;

/// How many manifest problems the page lists. Of further problems it only shows the number.
const MAX_PROBLEMS: usize = 50;

/// Facts about the agent that do not change while it runs.
#[derive(Clone, Debug)]
pub struct AgentInfo {
    /// The node's name.
    pub name: String,
    /// When the agent started.
    pub started: Time,
    /// The paths and URLs that manifests are read from.
    pub locations: Vec<ManifestLocation>,
    /// Cancelled when the agent begins to stop.
    pub stopping: CancellationToken,
}

/// A path or URL that manifests are read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ManifestLocation {
    /// The kind of the source.
    #[serde(serialize_with = "source_name")]
    pub source: SourceKind,
    /// The path or URL, to be displayed.
    pub location: String,
}

fn source_name<S: serde::Serializer>(kind: &SourceKind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(kind.as_str())
}

/// The state of the agent at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AgentState {
    /// The entity tag of the page that this agent serves. A page of another version asks for the link of this one.
    page: String,
    version: &'static str,
    name: String,
    started: Millis,
    /// Whether the agent is stopping.
    stopping: bool,
    locations: Vec<ManifestLocation>,
    /// Kinds of the sources that have not delivered yet.
    missing: Vec<&'static str>,
    /// Manifests that the sources cannot use, at most [`MAX_PROBLEMS`] of them.
    problems: Vec<ManifestProblem>,
    /// How many such manifests there are.
    problem_count: usize,
    /// Whether the container runtime answers.
    runtime: bool,
    /// Why the container runtime does not answer, if an error is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    outage: Option<OngoingError>,
    /// The runtime's conditions that are false, with their reasons.
    conditions: Vec<String>,
    /// The resources that the node lacks.
    pressures: Vec<PressureState>,
    /// When the last housekeeping pass ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    housekeeping: Option<Millis>,
    /// Whether the last housekeeping pass is too old.
    late: bool,
    /// Why housekeeping passes fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pass_failure: Option<OngoingError>,
}

/// An error that repeats. The number of tries is left out, because each try would change the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct OngoingError {
    since: Millis,
    error: String,
}

impl From<&OngoingFailure> for OngoingError {
    fn from(failing: &OngoingFailure) -> Self {
        OngoingError { since: failing.since.into(), error: plain(&failing.error, MAX_PROBLEM_BYTES).into_owned() }
    }
}

/// A condition of the node. It does not contain the amount that is left, because each measurement would change the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PressureState {
    condition: &'static str,
    since: Millis,
    cause: String,
}

impl From<&NodePressure> for PressureState {
    fn from(pressure: &NodePressure) -> Self {
        let NodePressure { condition, since, signal, threshold, .. } = pressure;
        let cause = format!("new pods are rejected: {signal} was less than {threshold}");
        PressureState { condition: condition.as_str(), since: (*since).into(), cause }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ManifestProblem {
    what: String,
    message: String,
}

impl AgentState {
    /// The current state. `page` is the entity tag of the page.
    pub(super) fn new(view: &NodeView, info: &AgentInfo, node: &NodeState, page: &str) -> Self {
        let problems = view.problems();
        AgentState {
            page: page.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            name: info.name.clone(),
            started: info.started.into(),
            stopping: info.stopping.is_cancelled(),
            locations: info.locations.clone(),
            // A source that is held waits for the runtime, and the page shows the runtime's state separately.
            missing: node.missing_sources.iter().filter(|it| !it.held).map(|source| source.kind.as_str()).collect(),
            problem_count: problems.len(),
            problems: problems
                .into_iter()
                .take(MAX_PROBLEMS)
                .map(|problem| ManifestProblem { what: problem.what, message: problem.message })
                .collect(),
            late: view.node.is_housekeeping_late(),
            ..AgentState::default()
        }
        .with_node(node, *view.node.healthy().borrow())
    }

    /// Adds the state of the node. `healthy` stays true for some time after the runtime was last listed, but an outage is
    /// published at once, as `/readyz` does.
    fn with_node(self, node: &NodeState, healthy: bool) -> Self {
        let conditions = [&node.unready.runtime, &node.unready.network].into_iter().flatten();
        AgentState {
            conditions: conditions.map(|why| plain(why, MAX_PROBLEM_BYTES).into_owned()).collect(),
            pressures: node.pressures.iter().map(PressureState::from).collect(),
            runtime: healthy && node.runtime.is_none(),
            outage: node.runtime.as_ref().map(OngoingError::from),
            housekeeping: node.last_pass.map(Millis::from),
            pass_failure: node.passes.as_ref().map(OngoingError::from),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use podwright_ports::Unready;

    #[test]
    fn a_runtime_outage_and_failing_passes_are_published_at_once() {
        let failing = |tries| Some(OngoingFailure { since: Time::from_secs(9), tries, error: "gone".into() });
        let node = |tries| NodeState {
            started: Time::ZERO,
            missing_sources: vec![],
            last_pass: Some(Time::from_secs(10)),
            passes: failing(tries),
            leftovers: vec![],
            ended_pods: vec![],
            runtime: failing(tries),
            unready: Unready { runtime: Some("no disk".into()), network: None },
            pressures: vec![],
        };
        let agent = AgentState::default().with_node(&node(1), true);
        let value = serde_json::to_value(&agent).unwrap();
        let failure = json!({"since": 9000, "error": "gone"});
        assert_eq!((&value["runtime"], &value["outage"], &value["passFailure"]), (&json!(false), &failure, &failure));
        assert_eq!(value["conditions"], json!(["no disk"]));
        assert_eq!(agent, AgentState::default().with_node(&node(2), true), "another try changes nothing");
    }
}
