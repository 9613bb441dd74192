//! The decision on one pod.

use std::sync::Arc;

use super::{Admitted, Rejection, choose_victims};
use crate::pod::PodObject;

/// The decision on a new pod.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// The pod may start.
    Admit,
    /// The pod has to wait for what other pods give back.
    Wait(Wait),
    /// The pod may not start.
    Reject(Rejection),
}

/// Why a pod waits.
#[derive(Clone, Debug)]
pub struct Wait {
    /// The pods that are stopped for it. Empty if other pods give enough back anyway.
    pub victims: Vec<Arc<PodObject>>,
    /// The resources that the node lacks, as text for users.
    pub lack: String,
    /// The first resource that the node lacks. Empty if the pod lacks a port.
    pub resource: String,
}

/// Runs the admission handlers of the node for a pod beside other pods.
pub(crate) type Check<'a> = &'a dyn Fn(&PodObject, &Admitted) -> Result<(), Rejection>;

/// Decides on a pod. `has_victims` is whether the pod waits and others were stopped for it.
///
/// A pod that lacks only what other pods are about to give back waits for it. If it were rejected, it would be lost, and its controller
/// would make the next pod at once. Upstream does not count pods that the API server no longer has, and starts the new pod while their
/// containers still run. A critical pod waits for victims too (upstream `HandleAdmissionFailure`, kubelet 1.36, which blocks until they
/// have stopped).
pub fn judge(pod: &PodObject, others: &Admitted, has_victims: bool, check: Check<'_>) -> Verdict {
    let others = others.counted_once(check);
    let Err(rejection) = check(pod, &others) else { return Verdict::Admit };
    if !rejection.may_end() {
        return Verdict::Reject(rejection);
    }
    let wait = |rejection: &Rejection, victims| {
        let resource = rejection.shortages().first().map(|short| short.resource.clone()).unwrap_or_default();
        Verdict::Wait(Wait { victims, lack: rejection.message.clone(), resource })
    };
    let settled = others.settled(others.needs_stuck(pod, has_victims));
    let Err(settled) = check(pod, &settled) else { return wait(&rejection, Vec::new()) };
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
        decide_again(pod, others, false)
    }

    fn decide_again(pod: &PodObject, others: &Admitted, has_victims: bool) -> String {
        let node = NodePredicates::new("n", NodeCapacity::new(4000, i64::MAX, 10));
        match judge(pod, others, has_victims, &|pod, others| node.admit(pod, others)) {
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
        stopping.into_iter().for_each(|pod| others.push_stopping(pod.build(), None));
        others
    }

    fn released(others: &Admitted, resource: &str, needs_stuck: bool) -> Vec<(String, i64)> {
        let releasing = others.releasing(resource, needs_stuck);
        releasing.into_iter().map(|(pod, amount)| (pod.uid().to_string(), amount)).collect()
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
        stuck.push_stuck(cpu("b", "3").build(), None);
        assert_eq!(decide(&usual, &stuck), "reject: OutOfcpu");
        // It cannot be stopped, so that it is no victim either.
        assert_eq!(decide(&file, &stuck), "reject: UnexpectedAdmissionError");
    }

    // Otherwise each stop that fails would stop one more pod.
    #[test]
    fn pod_for_which_others_were_stopped_waits_however_long_stops_and_resizes_fail() {
        let mut others = beside(vec![cpu("a", "2")], vec![]);
        others.push_stuck(cpu("b", "2").build(), None);
        assert_eq!(decide(&critical("c", "2"), &others), "wait for cpu by [\"a\"]");
        assert_eq!(decide_again(&critical("c", "2"), &others, true), "wait for cpu by []");
        assert_eq!(released(&others, "cpu", true), [("b".to_owned(), 2000)]);

        let mut others = beside(vec![cpu("a", "1")], vec![]);
        others.push_stuck_resizing(cpu("b", "1").build(), &cpu("b", "3").build());
        assert_eq!(decide(&critical("c", "2"), &others), "wait for cpu by [\"b\", \"a\"]");
        assert_eq!(decide_again(&critical("c", "2"), &others, true), "wait for cpu by []");
        assert_eq!(released(&others, "cpu", true), [("b".to_owned(), 2000)]);
    }

    // The node has 4 CPUs. The first critical pod waits for the stop of `stuck`.
    #[test]
    fn stuck_pod_and_the_pod_that_waits_for_it_count_once() {
        let beside = |stuck: &str, first: &str, stopping: Vec<PodBuilder>| {
            let mut others = beside(vec![cpu("a", "1"), cpu("b", "1")], stopping);
            others.push_stuck(cpu("stuck", stuck).build(), None);
            others.push_waiting(critical("first", first), true);
            others
        };
        let late = |cpus| critical("late", cpus);
        // The late pod fits beside the stuck pod, and beside the first pod once the stuck pod is gone.
        let others = beside("1.5", "1", vec![]);
        assert_eq!([decide(&late("0.5"), &others), decide(&cpu("usual", "0.5").build(), &others)], ["admit", "admit"]);
        assert_eq!(decide(&late("1"), &others), "wait for cpu by [\"b\"]");
        // A late pod may lack room only while the stuck pod stays, or only once it is gone.
        assert_eq!(decide(&late("1"), &beside("2", "1", vec![])), "wait for cpu by [\"b\"]");
        assert_eq!(decide(&late("1"), &beside("1", "2", vec![])), "wait for cpu by [\"b\"]");
        assert_eq!(decide(&cpu("usual", "1").build(), &beside("1", "2", vec![])), "reject: OutOfcpu");
        // The victim stops, so the first pod will start although the stuck pod stays. So both count.
        let others = beside("0.5", "1.5", vec![cpu("victim", "1")]);
        assert_eq!(decide(&late("0.5"), &others), "wait for cpu by [\"b\"]");
        assert_eq!(decide_again(&late("0.5"), &others, true), "wait for cpu by []");
    }

    // The two versions have one full name, so the new one cannot start before the stuck one has stopped.
    #[test]
    fn new_version_of_a_stuck_static_pod_waits_for_it_and_stops_no_other_pod() {
        let version = |uid: &str, cpus: &str| cpu("web", cpus).uid(uid).static_pod().build();
        let mut others = beside(vec![cpu("a", "1")], vec![]);
        others.push_stuck(version("1", "2"), None);
        let new = version("2", "2");
        assert_eq!(decide(&new, &others), "wait for cpu by []");
        assert_eq!(released(&others, "cpu", others.needs_stuck(&new, false)), [("1".to_owned(), 2000)]);
        assert_eq!(decide(&version("2", "4"), &others), "wait for cpu by [\"a\"]");
        others.push_waiting(new, false);
        assert_eq!(decide(&cpu("usual", "1").build(), &others), "admit", "the two versions count once");
    }

    #[test]
    fn pods_wait_for_what_a_resize_gives_back() {
        let usual = cpu("new", "2").build();
        let mut shrinks = beside(vec![cpu("a", "1")], vec![]);
        shrinks.push_resizing(cpu("b", "1").build(), &cpu("b", "3").build());
        assert_eq!(decide(&usual, &shrinks), "wait for cpu by []");
        assert_eq!(decide(&critical("c", "2"), &shrinks), "wait for cpu by []", "no pod is stopped");
        assert_eq!(decide(&cpu("new", "3").build(), &shrinks), "reject: OutOfcpu");
        assert_eq!(released(&shrinks, "cpu", false), [("b".to_owned(), 2000)]);
        assert_eq!(["memory", ""].map(|resource| released(&shrinks, resource, false)), [vec![], vec![]]);

        let mut grows = beside(vec![cpu("a", "1")], vec![]);
        grows.push_resizing(cpu("b", "3").build(), &cpu("b", "1").build());
        assert_eq!(decide(&usual, &grows), "reject: OutOfcpu");

        let mut stuck = beside(vec![cpu("a", "1")], vec![]);
        stuck.push_stuck_resizing(cpu("b", "1").build(), &cpu("b", "3").build());
        assert_eq!(decide(&usual, &stuck), "reject: OutOfcpu");
    }

    // The stop ends the resize, and the containers keep their resources until they have stopped.
    #[test]
    fn pod_that_is_resized_to_less_and_stops_gives_back_all_that_it_uses() {
        let (small, large) = (|| cpu("b", "1").build(), cpu("b", "3").build());
        let mut stops = beside(vec![], vec![]);
        stops.push_stopping(small(), Some(&large));
        assert_eq!(decide(&cpu("new", "2").build(), &stops), "wait for cpu by []");
        assert_eq!(released(&stops, "cpu", false), [("b".to_owned(), 3000)]);
        assert_eq!(decide(&cpu("new", "4").build(), &stops.without_stopping(small().uid())), "admit");

        let mut stuck = beside(vec![], vec![]);
        stuck.push_stuck(small(), Some(&large));
        assert_eq!(decide(&cpu("new", "2").build(), &stuck), "reject: OutOfcpu");
        assert_eq!(released(&stuck, "cpu", true), [("b".to_owned(), 3000)]);
        assert_eq!(decide(&cpu("new", "4").build(), &stuck.without_stopping(small().uid())), "admit");
    }

    #[test]
    fn critical_pods_go_before_waiting_pods_and_others_in_order_of_arrival() {
        let mut others = beside(vec![], vec![cpu("stops", "4")]);
        ["first", "second"].iter().for_each(|name| others.push_waiting(cpu(name, "2").build(), false));
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
        others.push_waiting(vip, false);
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
        stops.push_stopping(port(cpu("web", "1")).build(), None);
        assert_eq!([&file, &usual].map(|pod| decide(pod, &stops)), ["wait for  by []", "wait for  by []"]);
    }
}
