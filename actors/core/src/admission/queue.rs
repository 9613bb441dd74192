//! The pods that admission judges again when something is freed.
//!
//! ```text
//!                  .-- wait --> Waiting --.
//!   new pod -- judge -- admit ------------+--> the pod starts
//!                  `-- reject --> Rejected (a static pod that lacks something)
//! ```
//!
//! Critical pods go before all others, and otherwise pods go in the order of their arrival. If a pod gets what was reserved for pods
//! behind it, those are judged again in the same step.
//!
//! A waiting pod has no status and no record: other parts of the node see only pods that may start or were rejected. A rejected
//! pod keeps its failed status until it is admitted.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::{Admitted, Rejection, Requests, Verdict, Wait};
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::time::Time;

/// The pods that are judged again.
#[derive(Debug, Default)]
pub struct AdmissionQueue {
    /// The pods that wait, in the order of their arrival.
    waiting: Vec<WaitingPod>,
    /// The rejected pods with their numbers in the order of their arrival.
    rejected: HashMap<PodUid, (u64, Arc<PodObject>), RandomState>,
    next_number: u64,
    /// A digest of the pods beside which the queue was judged last. `None` if a pod has joined the queue since then: that pod was
    /// judged beside other pods, so the queue must be judged again.
    judged_beside: Option<u64>,
    /// Whether a pod was rejected since then for a reason that may end without a change of other pods, such as a shutdown of the node
    /// that is cancelled.
    is_rejected_by_node: bool,
}

/// A pod that waits for what other pods give back: pods that stop, and pods with a resize to less.
#[derive(Clone, Debug)]
pub struct WaitingPod {
    /// The pod.
    pub pod: Arc<PodObject>,
    /// The start of the wait.
    pub since: Time,
    /// The pods that it waits for, each with the amount of `resource` that the pod gives back.
    pub releasing: Vec<(Arc<PodObject>, i64)>,
    /// The resources that the node lacks, as text for users.
    pub lack: String,
    /// The first resource that the node lacks. Empty if the pod lacks a port.
    pub resource: String,
    /// Whether other pods were stopped for it.
    pub has_victims: bool,
}

/// The earlier decision on a pod that is judged again.
#[derive(Debug)]
pub enum EarlierDecision {
    /// The pod was not judged before.
    None,
    /// The pod waited.
    Waited {
        /// The start of the wait.
        since: Time,
        /// The number of waiting pods that arrived before the pod.
        before: usize,
        /// Whether other pods were stopped for the pod.
        has_victims: bool,
    },
    /// The pod was rejected.
    Rejected {
        /// The number of the pod in the order of arrival.
        number: u64,
    },
}

impl EarlierDecision {
    /// The number of waiting pods that arrived before the pod.
    pub fn place(&self) -> usize {
        match *self {
            EarlierDecision::Waited { before, .. } => before,
            EarlierDecision::None | EarlierDecision::Rejected { .. } => usize::MAX,
        }
    }

    /// Whether the pod waits, and others were stopped for it.
    pub fn has_victims(&self) -> bool {
        matches!(self, EarlierDecision::Waited { has_victims: true, .. })
    }
}

/// The next action of the dispatcher for a pod, after the verdict.
#[derive(Debug)]
#[must_use]
pub enum Decision {
    /// Start the pod.
    Start,
    /// Let the pod wait.
    Wait {
        /// The pods to stop. Empty if other pods give enough back anyway.
        victims: Vec<Arc<PodObject>>,
        /// The resources that the node lacks, as text for users.
        lack: String,
        /// The first resource that the node lacks. Empty if the pod lacks a port.
        resource: String,
    },
    /// Publish this rejection.
    Reject(Rejection),
    /// Nothing: the pod was rejected before and keeps that status.
    StaysRejected,
}

impl AdmissionQueue {
    /// Whether no pod is judged again.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.rejected.is_empty()
    }

    /// The pods that wait.
    pub fn waiting(&self) -> &[WaitingPod] {
        &self.waiting
    }

    /// The pods in the order in which they are judged: critical pods that wait, static pods that were rejected, and the other pods
    /// that wait.
    pub fn pods(&self) -> Vec<Arc<PodObject>> {
        let mut rejected: Vec<_> = self.rejected.values().collect();
        rejected.sort_unstable_by_key(|(number, _)| *number);
        let rejected = rejected.into_iter().map(|(_, pod)| pod);
        let (critical, usual): (Vec<_>, Vec<_>) =
            self.waiting.iter().map(|waiting| &waiting.pod).partition(|pod| pod.is_critical());
        critical.into_iter().chain(rejected).chain(usual).cloned().collect()
    }

    /// Whether the queue was judged beside the same pods before. Then no decision would change.
    pub fn is_judged_beside(&self, others: &Admitted) -> bool {
        self.judged_beside == Some(others.digest())
    }

    /// Notes the pods beside which the queue was judged. The queue is judged again beside the same pods if the node itself rejected a
    /// pod.
    pub fn set_judged_beside(&mut self, others: &Admitted) {
        let is_final = !std::mem::take(&mut self.is_rejected_by_node);
        self.judged_beside = is_final.then(|| others.digest());
    }

    /// Whether no pod has joined the queue since it was judged.
    #[cfg(test)]
    pub(super) fn was_judged(&self) -> bool {
        self.judged_beside.is_some()
    }

    /// Whether the pod was rejected and is judged again.
    pub fn is_rejected(&self, uid: &PodUid) -> bool {
        self.rejected.contains_key(uid)
    }

    /// Removes a pod, because it is judged again or left its source.
    pub fn take(&mut self, uid: &PodUid) -> EarlierDecision {
        if let Some(before) = self.waiting.iter().position(|waiting| waiting.pod.uid() == uid) {
            let WaitingPod { since, has_victims, .. } = self.waiting.remove(before);
            return EarlierDecision::Waited { since, before, has_victims };
        }
        match self.rejected.remove(uid) {
            Some((number, _)) => EarlierDecision::Rejected { number },
            None => EarlierDecision::None,
        }
    }

    /// Adds the pod to the queue if its verdict requires it, and returns the dispatcher's next action. `beside` has the pods that
    /// it was judged beside.
    pub fn settle(
        &mut self,
        pod: &Arc<PodObject>,
        earlier: &EarlierDecision,
        verdict: Verdict,
        beside: &Admitted,
        now: Time,
    ) -> Decision {
        match verdict {
            Verdict::Admit => Decision::Start,
            Verdict::Wait(Wait { victims, lack, resource }) => {
                let since = if let EarlierDecision::Waited { since, .. } = earlier { *since } else { now };
                let needs_stuck = beside.needs_stuck(pod, earlier.has_victims());
                let mut releasing = beside.releasing(&resource, needs_stuck);
                releasing.extend(victims.iter().map(|pod| (pod.clone(), Requests::of(pod).get(&resource))));
                let has_victims = earlier.has_victims() || !victims.is_empty();
                self.wait(
                    WaitingPod {
                        pod: pod.clone(),
                        since,
                        releasing,
                        lack: lack.clone(),
                        resource: resource.clone(),
                        has_victims,
                    },
                    earlier,
                );
                Decision::Wait { victims, lack, resource }
            }
            Verdict::Reject(rejection) => {
                let was_rejected = matches!(earlier, EarlierDecision::Rejected { .. });
                // A pod of the API server is replaced by its controller, so it is not judged again. A pod that is judged again stays,
                // because its status does not say that the node rejects it now.
                if pod.is_static() && (was_rejected || rejection.may_end()) {
                    self.is_rejected_by_node |= !rejection.may_end();
                    self.reject(pod.clone(), earlier);
                }
                if was_rejected { Decision::StaysRejected } else { Decision::Reject(rejection) }
            }
        }
    }

    /// Lets a pod wait. A pod that waited before keeps its position in the queue.
    pub(super) fn wait(&mut self, waiting: WaitingPod, earlier: &EarlierDecision) {
        self.judged_beside = None;
        self.waiting.insert(earlier.place().min(self.waiting.len()), waiting);
    }

    /// Keeps a rejected pod, so that it is judged again. A pod that was rejected before keeps its place.
    pub fn reject(&mut self, pod: Arc<PodObject>, earlier: &EarlierDecision) {
        let number = match *earlier {
            EarlierDecision::Rejected { number } => number,
            EarlierDecision::None | EarlierDecision::Waited { .. } => {
                self.next_number += 1;
                self.next_number
            }
        };
        self.judged_beside = None;
        self.rejected.insert(pod.uid().clone(), (number, pod));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn names(queue: &AdmissionQueue) -> Vec<String> {
        queue.pods().iter().map(|pod| pod.full_name().name().to_owned()).collect()
    }

    #[test]
    fn critical_pods_are_judged_first_and_all_keep_their_place() {
        let mut queue = AdmissionQueue::default();
        let waiting = |pod: Arc<PodObject>, since: u64| WaitingPod {
            pod,
            since: Time::from_secs(since),
            releasing: Vec::new(),
            lack: String::new(),
            resource: String::new(),
            has_victims: false,
        };
        let (usual, file) = (|name: &str| pod(name).build(), |name: &str| pod(name).static_pod().build());
        queue.reject(file("r"), &EarlierDecision::None);
        queue.reject(file("q"), &EarlierDecision::None);
        queue.wait(waiting(usual("u"), 0), &EarlierDecision::None);
        queue.wait(waiting(file("a"), 1), &EarlierDecision::None);
        queue.wait(waiting(file("b"), 2), &EarlierDecision::None);
        assert_eq!(names(&queue), ["a", "b", "r", "q", "u"]);
        let earlier = queue.take(&"a".into());
        assert!(matches!(earlier, EarlierDecision::Waited { since, before: 1, .. } if since == Time::from_secs(1)));
        assert_eq!(names(&queue), ["b", "r", "q", "u"]);
        queue.wait(waiting(file("a"), 1), &earlier);
        assert_eq!(names(&queue), ["a", "b", "r", "q", "u"]);
        let order: Vec<_> = queue.waiting().iter().map(|waiting| waiting.pod.full_name().name()).collect();
        assert_eq!(order, ["u", "a", "b"], "the order of arrival");
        assert!(queue.is_rejected(&"r".into()) && !queue.is_rejected(&"a".into()));
        let earlier = queue.take(&"r".into());
        assert!(matches!(earlier, EarlierDecision::Rejected { .. }));
        assert!(matches!(queue.take(&"r".into()), EarlierDecision::None));
        queue.reject(file("r"), &earlier);
        assert_eq!(names(&queue), ["a", "b", "r", "q", "u"]);
        assert_eq!((queue.waiting().len(), queue.is_empty()), (3, false));
    }

    #[test]
    fn queue_is_judged_again_only_beside_other_pods() {
        let mut queue = AdmissionQueue::default();
        let beside = |staying: &[&str], stopping: &[&str]| {
            let mut others: Admitted = staying.iter().map(|name| pod(name).build()).collect();
            stopping.iter().for_each(|name| others.push_stopping(pod(name).build(), None));
            others
        };
        assert!(!queue.is_judged_beside(&beside(&[], &[])));
        queue.set_judged_beside(&beside(&["a", "b"], &["c"]));
        for (staying, stopping, expected) in [
            (&["a", "b"][..], &["c"][..], true),
            (&["b", "a"], &["c"], true),
            (&["a"], &["c"], false),
            (&["a", "b"], &[], false),
            (&["a", "c"], &["b"], false),
            (&["a", "d"], &["c"], false),
        ] {
            assert_eq!(queue.is_judged_beside(&beside(staying, stopping)), expected, "{staying:?} {stopping:?}");
        }
        // The pods that wait may have to be rejected now.
        let mut stuck = beside(&["a", "b"], &[]);
        stuck.push_stuck(pod("c").build(), None);
        assert!(!queue.is_judged_beside(&stuck), "the stop of c has failed for long");
        // A pod that joins was judged beside other pods.
        queue.reject(pod("r").build(), &EarlierDecision::None);
        assert!(!queue.is_judged_beside(&beside(&["a", "b"], &["c"])));
    }

    // A shutdown of the node may be cancelled, and other pods do not change then.
    #[test]
    fn rejected_pod_is_judged_again_after_the_node_rejected_it() {
        let (mut queue, others, file) = (AdmissionQueue::default(), Admitted::default(), pod("f").static_pod().build());
        let mut judge = |rejection: Rejection| {
            let earlier = queue.take(file.uid());
            let decision = queue.settle(&file, &earlier, Verdict::Reject(rejection), &Admitted::default(), Time::ZERO);
            queue.set_judged_beside(&others);
            (
                matches!(decision, Decision::StaysRejected),
                queue.is_rejected(file.uid()),
                queue.is_judged_beside(&others),
            )
        };
        let lack = || Rejection::in_use("NodePorts", "in use");
        assert_eq!(judge(lack()), (false, true, true));
        assert_eq!(judge(Rejection::new("NodeShutdown", "shuts down")), (true, true, false));
        assert_eq!(judge(lack()), (true, true, true));
    }
}
