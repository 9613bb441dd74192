//! The nodes and pods that the checker explores.

use std::sync::Arc;

use serde_json::json;

use crate::pod::{PodObject, SYSTEM_CRITICAL_PRIORITY};
use crate::testing::pod;

/// A node and the pods that its sources may add.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// The CPUs of the node.
    pub(super) cores: i64,
    pub(super) pods: &'static [PodSpec],
    /// The pod whose stop may fail for long.
    pub(super) gets_stuck: Option<usize>,
    /// The number of states that the checker finds. `None` in the scenarios of `make soak`, so that a change of the model needs no run
    /// of them.
    pub(super) states: Option<usize>,
}

/// A pod that a source may add.
pub(super) struct PodSpec {
    pub(super) name: &'static str,
    kind: Kind,
    /// The request for CPUs.
    pub(super) cores: i64,
    /// The host port; 0 for none.
    pub(super) port: i32,
}

/// The kind of a pod, which decides its place in the queue and whether it is judged again after a rejection.
enum Kind {
    /// A pod of the API server.
    Usual,
    /// A critical pod of the API server.
    Critical,
    /// A static pod.
    Static,
    /// A static pod with a priority.
    StaticWithPriority(i32),
}

impl PodSpec {
    pub(super) fn build(&self) -> Arc<PodObject> {
        let ports = if self.port == 0 { json!([]) } else { json!([{"containerPort": 80, "hostPort": self.port}]) };
        let resources = json!({"requests": {"cpu": self.cores.to_string()}});
        let containers = json!([{"name": "main", "resources": resources, "ports": ports}]);
        let built = pod(self.name).spec(|spec| {
            spec.containers = serde_json::from_value(containers).unwrap();
            spec.priority = match self.kind {
                Kind::Usual | Kind::Static => None,
                Kind::Critical => Some(SYSTEM_CRITICAL_PRIORITY),
                Kind::StaticWithPriority(priority) => Some(priority),
            };
        });
        match self.kind {
            Kind::Usual | Kind::Critical => built.build(),
            Kind::Static | Kind::StaticWithPriority(_) => built.static_pod().build(),
        }
    }
}

const fn spec(name: &'static str, kind: Kind, cores: i64) -> PodSpec {
    PodSpec { name, kind, cores, port: 0 }
}

const fn with_port(pod: PodSpec) -> PodSpec {
    PodSpec { port: 80, ..pod }
}

pub(super) static SCENARIOS: [&Scenario; 7] =
    [&CRITICAL, &STATIC, &PORTS, &PRIORITIES, &USUAL, &STUCK_VICTIM, &SHARED_VICTIM];

/// The scenarios with one pod more, for `make soak`.
pub(super) static DEEP: [&Scenario; 3] = [&DEEP_CRITICAL, &DEEP_PORTS, &DEEP_STUCK_VICTIM];

pub(super) static CRITICAL: Scenario = Scenario {
    name: "two critical pods take the room of usual pods",
    cores: 4,
    pods: &[
        spec("small", Kind::Usual, 1),
        spec("large", Kind::Usual, 3),
        spec("vip", Kind::Critical, 3),
        spec("vip-too", Kind::Critical, 1),
    ],
    gets_stuck: None,
    states: Some(5517),
};

pub(super) static STATIC: Scenario = Scenario {
    name: "static pods run one after the other",
    cores: 2,
    pods: &[
        spec("first", Kind::Static, 2),
        spec("second", Kind::Static, 1),
        spec("third", Kind::Static, 1),
        spec("fourth", Kind::Static, 1),
    ],
    gets_stuck: None,
    states: Some(2956),
};

pub(super) static PORTS: Scenario = Scenario {
    name: "pods with one host port",
    cores: 3,
    pods: &[
        with_port(spec("web", Kind::Usual, 1)),
        with_port(spec("file", Kind::Static, 2)),
        with_port(spec("other-file", Kind::Static, 1)),
        spec("usual", Kind::Usual, 2),
    ],
    gets_stuck: None,
    states: Some(3551),
};

pub(super) static PRIORITIES: Scenario = Scenario {
    name: "static pods with priorities",
    cores: 2,
    pods: &[
        spec("low", Kind::StaticWithPriority(1), 1),
        spec("high", Kind::StaticWithPriority(2), 2),
        spec("usual", Kind::Usual, 1),
        spec("vip", Kind::Critical, 1),
    ],
    gets_stuck: None,
    states: Some(5112),
};

pub(super) static USUAL: Scenario = Scenario {
    name: "usual pods wait in order, and a critical pod goes before them",
    cores: 4,
    pods: &[
        spec("first", Kind::Usual, 3),
        spec("second", Kind::Usual, 2),
        spec("third", Kind::Usual, 2),
        spec("vip", Kind::Critical, 2),
    ],
    gets_stuck: Some(0),
    states: Some(5763),
};

pub(super) static STUCK_VICTIM: Scenario = Scenario {
    name: "the stop of a victim fails for long while another pod could be stopped",
    cores: 4,
    pods: &[
        spec("other", Kind::Usual, 2),
        spec("victim", Kind::Usual, 1),
        spec("vip", Kind::Critical, 2),
        spec("vip-too", Kind::Critical, 2),
    ],
    gets_stuck: Some(1),
    states: Some(13718),
};

pub(super) static SHARED_VICTIM: Scenario = Scenario {
    name: "the stop of a victim fails for long, and it leaves room for a second critical pod",
    cores: 6,
    pods: &[
        spec("other", Kind::Usual, 3),
        spec("victim", Kind::Usual, 2),
        spec("vip", Kind::Critical, 2),
        spec("vip-too", Kind::Critical, 1),
    ],
    gets_stuck: Some(1),
    states: Some(3982),
};

static DEEP_CRITICAL: Scenario = Scenario {
    name: "two critical pods and a static pod take the room of usual pods",
    cores: 4,
    pods: &[
        spec("small", Kind::Usual, 1),
        spec("large", Kind::Usual, 3),
        spec("file", Kind::Static, 2),
        spec("vip", Kind::Critical, 3),
        spec("vip-too", Kind::Critical, 1),
    ],
    gets_stuck: None,
    states: None,
};

static DEEP_PORTS: Scenario = Scenario {
    name: "pods with one host port, and a critical pod",
    cores: 3,
    pods: &[
        with_port(spec("web", Kind::Usual, 1)),
        with_port(spec("file", Kind::Static, 2)),
        with_port(spec("other-file", Kind::Static, 1)),
        spec("usual", Kind::Usual, 2),
        spec("vip", Kind::Critical, 2),
    ],
    gets_stuck: None,
    states: None,
};

static DEEP_STUCK_VICTIM: Scenario = Scenario {
    name: "the stop of a victim fails for long while two other pods could be stopped",
    cores: 4,
    pods: &[
        spec("other", Kind::Usual, 2),
        spec("victim", Kind::Usual, 1),
        spec("late", Kind::Usual, 1),
        spec("vip", Kind::Critical, 2),
        spec("vip-too", Kind::Critical, 2),
    ],
    gets_stuck: Some(1),
    states: None,
};
