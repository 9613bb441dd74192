//! The statuses and events of a pod, and their differences from those of the kubelet's pod.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Event;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Action, normalized};

/// The statuses and events of the kubelet's pod.
#[derive(Deserialize)]
pub(super) struct Expected {
    pub(super) pod: Value,
    pub(super) action: Option<Action>,
    removed: bool,
    /// The phases in their order. An agent may skip a phase with `true`, because it was short.
    phases: Vec<(String, bool)>,
    pub(super) end: End,
    texts: Texts,
}

/// The status before the pod was removed. A container that is restarted again and again may have any of several values.
#[derive(Deserialize)]
pub(super) struct End {
    phase: String,
    reason: Option<String>,
    qos: String,
    /// The fields of the status, without the lists.
    fields: BTreeSet<String>,
    conditions: BTreeMap<String, Vec<Value>>,
    containers: BTreeMap<String, BTreeMap<String, Vec<Value>>>,
}

#[derive(Deserialize)]
struct Texts {
    /// Type, reason, message and field path.
    events: Rows,
    /// Type, status, reason and message.
    conditions: Rows,
    /// Container, `state` or `lastState`, kind, reason, message, exit code and signal.
    states: Rows,
    /// Phase, reason and message of the status.
    pod: Rows,
    /// The list of container statuses, and the fields that its entries had.
    fields: Vec<(String, BTreeSet<String>)>,
}

#[derive(Deserialize)]
struct Rows {
    required: Vec<Vec<Value>>,
    /// Rows of states that are too short for each run, and rows that follow a deletion of the pod.
    allowed: Vec<Vec<Value>>,
}

impl Rows {
    fn missing(&self, what: &str, observed: &BTreeSet<String>) -> Vec<String> {
        let absent = texts(&self.required).filter(|row| !observed.contains(row));
        absent.map(|row| format!("{what} {row} is missing")).collect()
    }

    fn unexpected(&self, what: &str, observed: &BTreeSet<String>) -> Vec<String> {
        let known: BTreeSet<String> = texts(&self.required).chain(texts(&self.allowed)).collect();
        observed.difference(&known).map(|row| format!("{what} {row} is new")).collect()
    }
}

/// The statuses and events of a pod so far.
#[derive(Default)]
pub(super) struct Observed {
    uid: String,
    phases: Vec<String>,
    /// The differences of the last status from the expected end. Empty once a status has equalled it.
    differs: Option<Vec<String>>,
    /// When the pod was first seen to run.
    pub(super) runs_since: Option<Instant>,
    /// The ID of the pod's first container. Empty until all containers have been ready.
    pub(super) container: String,
    pub(super) acted: bool,
    /// Whether the pod has had all statuses and events of the kubelet's pod.
    pub(super) done: bool,
    pub(super) removed: bool,
    events: BTreeSet<String>,
    conditions: BTreeSet<String>,
    states: BTreeSet<String>,
    pod: BTreeSet<String>,
    fields: BTreeMap<String, BTreeSet<BTreeSet<String>>>,
}

impl Observed {
    /// Notes a status.
    pub(super) fn status(&mut self, pod: &Value, end: &End) {
        pod["metadata"]["uid"].as_str().unwrap_or_default().clone_into(&mut self.uid);
        let status = &pod["status"];
        let phase = status["phase"].as_str().unwrap_or_default();
        if self.phases.last().is_none_or(|last| last != phase) {
            self.phases.push(phase.to_owned());
        }
        let mut containers = each(&status["containerStatuses"]).peekable();
        let first = containers.peek().map(|first| first["containerID"].as_str().unwrap_or_default().to_owned());
        if let Some(first) = first.filter(|_| containers.all(|container| container["ready"] == true)) {
            self.runs_since.get_or_insert_with(Instant::now);
            self.container = first;
        }
        let uid = self.uid.clone();
        let text = |value: &Value| normalized(value, &uid);
        for condition in each(&status["conditions"]) {
            let [kind, status, reason] = ["type", "status", "reason"].map(|field| condition[field].clone());
            self.conditions.insert(json!([kind, status, reason, text(&condition["message"])]).to_string());
        }
        if !status["reason"].is_null() {
            self.pod.insert(json!([phase, status["reason"], text(&status["message"])]).to_string());
        }
        for list in ["initContainerStatuses", "containerStatuses"] {
            for container in each(&status[list]) {
                // The API server of a cluster stores an empty `lastState`, and others do not.
                let fields =
                    container.as_object().unwrap().keys().filter(|field| *field != "lastState").cloned().collect();
                self.fields.entry(list.to_owned()).or_default().insert(fields);
                for field in ["state", "lastState"] {
                    for (kind, state) in container[field].as_object().into_iter().flatten() {
                        let [reason, exit, signal] = ["reason", "exitCode", "signal"].map(|field| state[field].clone());
                        let row =
                            json!([container["name"], field, kind, reason, text(&state["message"]), exit, signal]);
                        self.states.insert(row.to_string());
                    }
                }
            }
        }
        if self.differs.as_ref().is_none_or(|differs| !differs.is_empty()) {
            self.differs = Some(end.differences(status));
        }
    }

    pub(super) fn event(&mut self, event: &Event) {
        let message = normalized(&json!(event.message), &self.uid);
        self.events.insert(json!([event.type_, event.reason, message, event.involved_object.field_path]).to_string());
    }
}

impl End {
    fn differences(&self, status: &Value) -> Vec<String> {
        let mut found = vec![];
        let mut compare = |what: String, is: Value, allowed: &[Value]| {
            if !allowed.contains(&is) {
                found.push(format!("{what} is {is}, and was {}", json!(allowed)));
            }
        };
        compare("the phase".into(), status["phase"].clone(), &[json!(self.phase)]);
        compare("the reason".into(), status["reason"].clone(), &[json!(self.reason)]);
        compare("the QoS class".into(), status["qosClass"].clone(), &[json!(self.qos)]);
        let lists = ["conditions", "containerStatuses", "initContainerStatuses"];
        let fields: BTreeSet<&String> = status
            .as_object()
            .into_iter()
            .flat_map(|map| map.keys())
            .filter(|field| !lists.contains(&field.as_str()))
            .collect();
        compare("the set of fields".into(), json!(fields), &[json!(self.fields)]);
        let conditions: BTreeMap<&str, &Value> =
            each(&status["conditions"]).filter_map(|one| Some((one["type"].as_str()?, one))).collect();
        let names: BTreeSet<&str> =
            self.conditions.keys().map(String::as_str).chain(conditions.keys().copied()).collect();
        for name in names {
            let is = conditions.get(name).map_or(Value::Null, |one| json!([one["status"], one["reason"]]));
            compare(format!("the condition {name}"), is, self.conditions.get(name).map_or(&[][..], Vec::as_slice));
        }
        let containers: BTreeMap<&str, &Value> = ["initContainerStatuses", "containerStatuses"]
            .into_iter()
            .flat_map(|list| each(&status[list]))
            .filter_map(|one| Some((one["name"].as_str()?, one)))
            .collect();
        let names: BTreeSet<&str> =
            self.containers.keys().map(String::as_str).chain(containers.keys().copied()).collect();
        for name in names {
            let one = containers.get(name).copied().unwrap_or(&Value::Null);
            let is = |field: &str| match field {
                "state" => summary(&one["state"]),
                "last" => summary(&one["lastState"]),
                field => one[field].clone(),
            };
            for field in ["state", "last", "ready", "started"] {
                let allowed = self.containers.get(name).and_then(|fields| fields.get(field));
                compare(format!("{field} of the container {name}"), is(field), allowed.map_or(&[][..], Vec::as_slice));
            }
        }
        found
    }
}

impl Expected {
    /// The statuses and events of the kubelet's pod that this pod did not have yet.
    pub(super) fn missing(&self, observed: &Observed) -> Vec<String> {
        let mut missing = vec![];
        match &observed.differs {
            None => missing.push("has no status".to_owned()),
            Some(differs) => missing.extend(differs.iter().cloned()),
        }
        if self.removed && !observed.removed {
            missing.push("is not removed".to_owned());
        }
        missing.extend(self.texts.events.missing("the event", &observed.events));
        missing.extend(self.texts.conditions.missing("the condition", &observed.conditions));
        missing.extend(self.texts.states.missing("the state", &observed.states));
        missing.extend(self.texts.pod.missing("the status text", &observed.pod));
        missing
    }

    /// The statuses and events of this pod that the kubelet's pod did not have.
    pub(super) fn unexpected(&self, observed: &Observed) -> Vec<String> {
        let mut found = vec![];
        let mut left = self.phases.iter().peekable();
        for phase in &observed.phases {
            while left.next_if(|(expected, short)| expected != phase && *short).is_some() {}
            if left.next_if(|(expected, _)| expected == phase).is_none() {
                found.push(format!("the phases are {:?}, and were {:?}", observed.phases, self.phases));
                break;
            }
        }
        found.extend(self.texts.events.unexpected("the event", &observed.events));
        found.extend(self.texts.conditions.unexpected("the condition", &observed.conditions));
        found.extend(self.texts.states.unexpected("the state", &observed.states));
        found.extend(self.texts.pod.unexpected("the status text", &observed.pod));
        for (list, sets) in &observed.fields {
            for fields in sets {
                let known = self.texts.fields.iter().any(|(name, expected)| {
                    name == list && expected.iter().filter(|field| *field != "lastState").eq(fields)
                });
                if !known {
                    found.push(format!("{list} has entries with the fields {fields:?}"));
                }
            }
        }
        found
    }
}

/// The rows of the recording, in the form of [`Observed`].
fn texts(rows: &[Vec<Value>]) -> impl Iterator<Item = String> {
    rows.iter().map(|row| json!(row.iter().map(|value| normalized(value, "")).collect::<Vec<_>>()).to_string())
}

fn each(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// A container state as the recording has it.
fn summary(state: &Value) -> Value {
    let Some((kind, state)) = state.as_object().and_then(|map| map.iter().next()) else { return Value::Null };
    match kind.as_str() {
        "terminated" => json!({"kind": kind, "reason": state["reason"], "exit": state["exitCode"]}),
        kind => json!({"kind": kind, "reason": state["reason"]}),
    }
}
