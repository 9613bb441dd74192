//! The decision on one pod.

use std::sync::Arc;

use super::{Admitted, Rejection, choose_victims};
use crate::pod::PodObject;

/// The decision on a new pod.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// The pod may start.
    Admit,
    /// The pod has to wait for what other pods give back.
    Wait(Wait),
    /// The pod may not start.
    Reject(Rejection),
}

/// Why a pod waits.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    /// The pods that are stopped for it. Empty if other pods give enough back anyway.
    pub(crate) victims: Vec<Arc<PodObject>>,
    /// The resources that the node lacks, as text for users.
    pub(crate) lack: String,
    /// The first resource that the node lacks. Empty if the pod lacks a port.
    pub(crate) resource: String,
}

/// Decides on a pod. `check` runs the admission handlers of the node against the pods that it is given.
///
/// A pod that lacks only what other pods are about to give back waits for it. If it were rejected, it would be lost, and its controller
/// would make the next pod at once. Upstream does not count pods that the API server no longer has, and starts the new pod while their
/// containers still run. A critical pod waits for victims too (upstream `HandleAdmissionFailure`, kubelet 1.36, which blocks until they
/// have stopped).
pub(crate) fn judge(pod: &PodObject, others: &Admitted, check: &dyn Fn(&Admitted) -> Result<(), Rejection>) -> Verdict {
    let Err(rejection) = check(others) else { return Verdict::Admit };
    if !rejection.may_end() {
        return Verdict::Reject(rejection);
    }
    let wait = |rejection: &Rejection, victims| {
        let resource = rejection.shortages().first().map(|short| short.resource.clone()).unwrap_or_default();
        Verdict::Wait(Wait { victims, lack: rejection.message.clone(), resource })
    };
    let Err(settled) = check(&others.settled()) else { return wait(&rejection, Vec::new()) };
    if !pod.is_critical() || settled.shortages().is_empty() {
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

    /// The pods that stay, and the pods that stop.
    fn beside(staying: Vec<PodBuilder>, stopping: Vec<PodBuilder>) -> Admitted {
        let mut others: Admitted = staying.into_iter().map(PodBuilder::build).collect();
        stopping.into_iter().for_each(|pod| others.push_stopping(pod.build()));
        others
    }

    fn critical(name: &str, amount: &str) -> Arc<PodObject> {
        cpu(name, amount).spec(|spec| spec.priority = Some(SYSTEM_CRITICAL_PRIORITY)).build()
    }

    #[test]
    fn pods_wait_for_stopping_pods_and_critical_pods_also_for_victims() {
        let (usual, file) = (cpu("new", "2").build(), cpu("file", "2").static_pod().build());
        let free = beside(vec![cpu("a", "2")], vec![]);
        assert_eq!([&usual, &file].map(|pod| decide(pod, &free)), ["admit", "admit"]);

        let full = beside(vec![cpu("a", "3"), cpu("b", "1")], vec![]);
        assert_eq!(decide(&usual, &full), "reject: OutOfcpu");
        assert_eq!(decide(&file, &full), "wait for cpu by [\"a\"]");
        assert_eq!(decide(&critical("c", "1"), &full), "wait for cpu by [\"b\"]");
        assert_eq!(decide(&critical("c", "5"), &full), "reject: UnexpectedAdmissionError");

        let files = beside(vec![cpu("a", "3").static_pod()], vec![]);
        assert_eq!(decide(&file, &files), "reject: UnexpectedAdmissionError");

        // No pod is stopped while another one that stops anyway gives enough.
        let stops = beside(vec![cpu("a", "2")], vec![cpu("b", "2")]);
        assert_eq!(decide(&usual, &stops), "wait for cpu by []");
        assert_eq!(decide(&file, &stops), "wait for cpu by []");
        assert_eq!(decide(&critical("c", "3"), &stops), "wait for cpu by [\"a\"]");
        assert_eq!(decide(&cpu("new", "3").build(), &stops), "reject: OutOfcpu", "it does not fit beside a either");
    }

    #[test]
    fn no_pod_waits_for_a_stop_that_has_failed_for_long() {
        let (usual, file) = (cpu("new", "2").build(), cpu("file", "2").static_pod().build());
        let mut stuck = beside(vec![cpu("a", "1")], vec![]);
        stuck.push_stuck(cpu("b", "3").build());
        assert_eq!(decide(&usual, &stuck), "reject: OutOfcpu");
        // It cannot be stopped, so that it is no victim either.
        assert_eq!(decide(&file, &stuck), "reject: UnexpectedAdmissionError");
    }

    // Otherwise each stop that fails would stop one more pod.
    #[test]
    fn pod_for_which_others_were_stopped_waits_however_long_stops_and_resizes_fail() {
        let mut others = beside(vec![cpu("a", "2")], vec![]);
        others.push_stuck(cpu("b", "2").build());
        assert_eq!(decide(&critical("c", "2"), &others), "wait for cpu by [\"a\"]");
        let awaiting = others.awaiting_stuck();
        assert_eq!(decide(&critical("c", "2"), &awaiting), "wait for cpu by []");
        let given = awaiting.releasing("cpu").into_iter().map(|(pod, amount)| (pod.uid().to_string(), amount));
        assert_eq!(given.collect::<Vec<_>>(), [("b".to_owned(), 2000)]);

        let mut others = beside(vec![cpu("a", "1")], vec![]);
        others.push_stuck_resizing(cpu("b", "1").build(), &cpu("b", "3").build());
        assert_eq!(decide(&critical("c", "2"), &others), "wait for cpu by [\"b\", \"a\"]");
        assert_eq!(decide(&critical("c", "2"), &others.awaiting_stuck()), "wait for cpu by []");
    }

    #[test]
    fn pods_wait_for_what_a_resize_gives_back() {
        let usual = cpu("new", "2").build();
        let mut shrinks = beside(vec![cpu("a", "1")], vec![]);
        shrinks.push_resizing(cpu("b", "1").build(), &cpu("b", "3").build());
        assert_eq!(decide(&usual, &shrinks), "wait for cpu by []");
        assert_eq!(decide(&critical("c", "2"), &shrinks), "wait for cpu by []", "no pod is stopped");
        assert_eq!(decide(&cpu("new", "3").build(), &shrinks), "reject: OutOfcpu");
        let names =
            |resource| shrinks.releasing(resource).into_iter().map(|(pod, amount)| (pod.uid().to_string(), amount));
        assert_eq!(names("cpu").collect::<Vec<_>>(), [("b".to_owned(), 2000)]);
        assert_eq!((names("memory").count(), names("").count()), (0, 0));

        let mut grows = beside(vec![cpu("a", "1")], vec![]);
        grows.push_resizing(cpu("b", "3").build(), &cpu("b", "1").build());
        assert_eq!(decide(&usual, &grows), "reject: OutOfcpu");

        let mut stuck = beside(vec![cpu("a", "1")], vec![]);
        stuck.push_stuck_resizing(cpu("b", "1").build(), &cpu("b", "3").build());
        assert_eq!(decide(&usual, &stuck), "reject: OutOfcpu");
    }

    #[test]
    fn critical_pods_go_before_waiting_pods_and_others_in_order_of_arrival() {
        let mut others = beside(vec![], vec![cpu("stops", "4")]);
        ["first", "second"].iter().for_each(|name| others.push_waiting(cpu(name, "2").build()));
        let names = |others: &Admitted, pod: &PodObject, place| {
            let ahead = others.ahead_of(pod, place);
            ahead.pods().skip(1).map(|pod| pod.full_name().name().to_owned()).collect::<Vec<_>>()
        };
        let new = cpu("new", "1").build();
        assert_eq!(names(&others, &new, usize::MAX), ["first", "second"]);
        assert_eq!(decide(&new, &others.ahead_of(&new, usize::MAX)), "reject: OutOfcpu");
        assert_eq!(names(&others, &new, 1), ["first"]);
        assert_eq!(decide(&new, &others.ahead_of(&new, 1)), "wait for cpu by []");

        let vip = critical("vip", "4");
        assert_eq!(names(&others, &vip, usize::MAX), [""; 0]);
        assert_eq!(decide(&vip, &others.ahead_of(&vip, usize::MAX)), "wait for cpu by []");
        others.push_waiting(vip);
        assert_eq!(decide(&new, &others.ahead_of(&new, 0)), "reject: OutOfcpu", "the critical pod goes first");
        // The order of arrival counts among critical pods too. The critical pod at place 2 is judged again before a later one.
        let late = critical("late", "1");
        assert_eq!(names(&others, &late, 3), ["vip"]);
        assert_eq!(names(&others, &late, 2), [""; 0]);
    }

    #[test]
    fn no_pod_is_stopped_for_a_host_port() {
        let file = port(cpu("file", "1").static_pod()).build();
        let usual = port(cpu("usual", "1")).build();
        let staying: Admitted = [port(cpu("web", "1")).build()].into_iter().collect();
        assert_eq!([&file, &usual].map(|pod| decide(pod, &staying)), ["reject: NodePorts", "reject: NodePorts"]);
        let greedy = port(cpu("file", "4").static_pod()).build();
        assert_eq!(decide(&greedy, &staying), "reject: NodePorts");
        let mut stops = Admitted::default();
        stops.push_stopping(port(cpu("web", "1")).build());
        assert_eq!([&file, &usual].map(|pod| decide(pod, &stops)), ["wait for  by []", "wait for  by []"]);
    }
}
