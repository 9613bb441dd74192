//! Helpers that read explanations, as text and as JSON.

use podwright_actors::explain::Explanation;
use podwright_core::status::short_age;
use podwright_model::ids::FullName;
use podwright_model::time::Time;
use podwright_ports::Clock;
use serde_json::Value;

use crate::support::test_node::TestNode;

pub(crate) fn explain(node: &TestNode, name: &str) -> Explanation {
    let explanation = node.node.explainer().explain(&FullName::new("test", name), None, &|_| Vec::new());
    let explanation = explanation.unwrap_or_else(|| panic!("no pod {name}"));
    assert_shape(&explanation);
    explanation
}

/// The heading and the lines below `waits for`.
pub(crate) fn waits(node: &TestNode, name: &str) -> String {
    let text = explain(node, name).to_string();
    let (heading, _) = text.split_once('\n').unwrap();
    let waits = text.split("\nwaits for\n").nth(1).unwrap().split("\n\n").next().unwrap();
    format!("{heading}\n{}", waits.trim_end_matches('\n'))
}

/// The times of a pod's retry, as an explanation prints them. Retries have jitter, so tests compute these texts from the
/// engine's snapshot.
pub(super) struct Retry {
    /// For how long the hook has failed, since when, and the number of tries.
    pub(super) failing: String,
    /// The time until the next try.
    pub(super) left: String,
    /// The time until the next try, and its clock time.
    pub(super) next: String,
}

pub(super) fn retry(node: &TestNode, uid: &str) -> Retry {
    let wait = node.node.engine().snapshot(&uid.into()).unwrap().wait;
    let (now, next) = (node.clock.now(), wait.next.expect("the hook is retried"));
    let at = |time: Time| time.to_timestamp().strftime("%H:%M:%SZ").to_string();
    let tries = if wait.tries == 1 { "1 try".to_owned() } else { format!("{} tries", wait.tries) };
    let left = short_age(next.since(now));
    Retry {
        failing: format!("for {} (since {}), {tries}", short_age(now.since(wait.since)), at(wait.since)),
        next: format!("next in {left} (at {})", at(next)),
        left,
    }
}

#[track_caller]
pub(super) fn assert_text(found: &str, expected: &[&str]) {
    let found: Vec<&str> = found.lines().collect();
    assert_eq!(found, expected, "\n{}", found.join("\n"));
}

/// Every explanation has these fields and no others, whatever the pod waits for.
fn assert_shape(explanation: &Explanation) {
    let value = serde_json::to_value(explanation).unwrap();
    let is = |value: &Value, field: &str, required: &[&str], optional: &[&str]| {
        let fields: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let known = |name: &&str| required.contains(name) || optional.contains(name);
        assert!(fields.iter().all(known), "{field}: {fields:?}");
        assert!(required.iter().all(|name| fields.contains(name)), "{field}: {fields:?}");
    };
    let fields = [
        "at",
        "namespace",
        "name",
        "uid",
        "desired",
        "phase",
        "state",
        "summary",
        "chain",
        "containers",
        "transitions",
        "events",
        "others",
        "problems",
    ];
    is(&value, "pod", &fields, &["source", "reason", "message", "lifecycle", "localStorage"]);
    let each = |list: &Value, field: &str, required: &[&str], optional: &[&str]| {
        list.as_array().unwrap().iter().for_each(|value| is(value, field, required, optional));
    };
    let wait = ["depth", "what", "on", "releasedBy", "detail"];
    let sometimes = ["container", "claim", "driver", "since", "tries", "next"];
    each(&value["chain"], "wait", &wait, &sometimes);
    for wait in value["chain"].as_array().unwrap() {
        is(&wait["on"], "on", &["kind", "name"], &["uid"]);
        for time in ["since", "next"].iter().filter_map(|name| wait[*name].as_str()) {
            assert!(time.ends_with('Z') && time.contains('T'), "{time}");
        }
    }
    let container = ["name", "kind", "state", "standing", "ready", "restarts"];
    each(&value["containers"], "container", &container, &["reason", "run", "last", "waits"]);
    for container in value["containers"].as_array().unwrap() {
        for run in ["run", "last"].iter().filter_map(|name| container.get(name)) {
            is(run, "run", &[], &["startedAt", "finishedAt", "exitCode", "reason"]);
        }
    }
    if let Some(storage) = value.get("localStorage") {
        is(storage, "localStorage", &["at", "limits", "neverEvicted"], &["error"]);
        each(&storage["limits"], "limit", &["what", "name", "usedBytes", "limit", "exceeded"], &[]);
    }
    each(&value["transitions"], "move", &["at", "to", "cause"], &["from"]);
    assert_eq!(value["chain"][0]["depth"], 0);
}
