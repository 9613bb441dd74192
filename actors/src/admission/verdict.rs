//! The decision on one pod.

use std::sync::Arc;

use super::{Admitted, Rejection, choose_victims};
use crate::pod::PodObject;

/// The decision on a new pod.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// The pod may start.
    Admit,
    /// The pod has to wait until pods have stopped.
    Wait(Wait),
    /// The pod may not start.
    Reject(Rejection),
}

/// Why a critical pod waits.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    /// The pods that are stopped for it. Empty if the pods that are already stopping release enough.
    pub(crate) victims: Vec<Arc<PodObject>>,
    /// The resources that the node lacks, as text for users.
    pub(crate) lack: String,
    /// The first resource that the node lacks. Empty if the pod lacks a port.
    pub(crate) resource: String,
}

/// Decides on a pod. `check` runs the admission handlers of the node against the pods that it is given.
///
/// Only a critical pod waits, and only for what other pods give back: first for pods that stop anyway, and otherwise for victims
/// (upstream `HandleAdmissionFailure`, kubelet 1.36, which blocks until they have stopped).
pub(crate) fn judge(pod: &PodObject, others: &Admitted, check: &dyn Fn(&Admitted) -> Result<(), Rejection>) -> Verdict {
    let Err(rejection) = check(others) else { return Verdict::Admit };
    if !pod.is_critical() || !rejection.may_end() {
        return Verdict::Reject(rejection);
    }
    let wait = |rejection: &Rejection, victims| {
        let resource = rejection.shortages().first().map(|short| short.resource.clone()).unwrap_or_default();
        Verdict::Wait(Wait { victims, lack: rejection.message.clone(), resource })
    };
    let settled = if others.stopping().is_empty() {
        rejection
    } else {
        let Err(settled) = check(&others.settled()) else { return wait(&rejection, Vec::new()) };
        settled
    };
    if settled.shortages().is_empty() {
        return Verdict::Reject(settled);
    }
    match choose_victims(pod, others.staying(), settled.shortages()) {
        Ok(victims) => wait(&settled, victims),
        Err(missing) => Verdict::Reject(Rejection::no_room(&missing)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{AdmissionHandler, NodeCapacity, NodePredicates};
    use super::*;
    use crate::pod::SYSTEM_CRITICAL_PRIORITY;
    use crate::testing::{PodBuilder, pod};

    fn cpu(name: &str, cpu: &str) -> PodBuilder {
        let requests = json!({"requests": {"cpu": cpu}});
        pod(name).spec(|spec| {
            spec.containers = serde_json::from_value(json!([{"name": "main", "resources": requests}])).unwrap();
        })
    }

    fn port(pod: PodBuilder) -> PodBuilder {
        pod.spec(|spec| {
            spec.containers[0].ports = serde_json::from_value(json!([{"containerPort": 80, "hostPort": 80}])).unwrap();
        })
    }

    fn decide(pod: &PodObject, others: &Admitted) -> String {
        let node = NodePredicates::new("n", NodeCapacity::new(4000, i64::MAX, 10));
        match judge(pod, others, &|others| node.admit(pod, others)) {
            Verdict::Admit => "admit".to_owned(),
            Verdict::Wait(wait) => {
                let names: Vec<_> = wait.victims.iter().map(|pod| pod.full_name().name()).collect();
                format!("wait for {} by {names:?}", wait.resource)
            }
            Verdict::Reject(rejection) => format!("reject: {}", rejection.reason),
        }
    }

    #[test]
    fn critical_pods_wait_for_stopping_pods_and_then_for_victims() {
        let critical = |name: &str, amount: &str| {
            cpu(name, amount).spec(|spec| spec.priority = Some(SYSTEM_CRITICAL_PRIORITY)).build()
        };
        let (usual, file) = (cpu("new", "2").build(), cpu("file", "2").static_pod().build());
        let with = |staying: Vec<PodBuilder>, stopping: Vec<PodBuilder>| {
            let mut others: Admitted = staying.into_iter().map(PodBuilder::build).collect();
            stopping.into_iter().for_each(|pod| others.push_stopping(pod.build()));
            others
        };
        let free = with(vec![cpu("a", "2")], vec![]);
        assert_eq!([&usual, &file].map(|pod| decide(pod, &free)), ["admit", "admit"]);

        let full = with(vec![cpu("a", "3"), cpu("b", "1")], vec![]);
        assert_eq!(decide(&usual, &full), "reject: OutOfcpu");
        assert_eq!(decide(&file, &full), "wait for cpu by [\"a\"]");
        assert_eq!(decide(&critical("c", "1"), &full), "wait for cpu by [\"b\"]");
        assert_eq!(decide(&critical("c", "5"), &full), "reject: UnexpectedAdmissionError");

        let files = with(vec![cpu("a", "3").static_pod()], vec![]);
        assert_eq!(decide(&file, &files), "reject: UnexpectedAdmissionError");

        // No pod is stopped while another one that stops anyway gives enough.
        let stops = with(vec![cpu("a", "2")], vec![cpu("b", "2")]);
        assert_eq!(decide(&usual, &stops), "reject: OutOfcpu");
        assert_eq!(decide(&file, &stops), "wait for cpu by []");
        assert_eq!(decide(&critical("c", "3"), &stops), "wait for cpu by [\"a\"]");
    }

    #[test]
    fn no_pod_is_stopped_for_a_host_port() {
        let file = port(cpu("file", "1").static_pod()).build();
        let staying: Admitted = [port(cpu("web", "1")).build()].into_iter().collect();
        assert_eq!(decide(&file, &staying), "reject: NodePorts");
        let greedy = port(cpu("file", "4").static_pod()).build();
        assert_eq!(decide(&greedy, &staying), "reject: NodePorts");
        let mut stops = Admitted::default();
        stops.push_stopping(port(cpu("web", "1")).build());
        assert_eq!(decide(&file, &stops), "wait for  by []");
    }
}
