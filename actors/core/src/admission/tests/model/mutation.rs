//! Faults that the tests inject into the model. Each fault must break a law.

use super::laws::Law;
use super::scenarios::{CRITICAL, SHARED_VICTIM, STATIC, STUCK_VICTIM, Scenario, USUAL};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutation {
    /// The resources of a stopping pod are given away before it has stopped.
    StoppingPodsDoNotCount,
    /// Nothing is reserved for a waiting pod.
    NothingIsReserved,
    /// The pods of the queue keep their first decision.
    QueueIsNotJudgedAgain,
    /// A queue is not judged again beside the same pods, although pods have joined it since it was judged.
    JudgementCountsForNewPods,
    /// A static pod that lacks something is not queued.
    RejectedPodsAreForgotten,
    /// A critical pod stops every pod that it may stop.
    EveryPodIsAVictim,
    /// A waiting pod is rejected when it is judged again and cannot start yet.
    WaitingPodsAreJudgedOnce,
    /// A critical pod stops other pods although the pods that are already stopping release enough.
    StoppingPodsAreNotAwaited,
    /// A pod that is not critical does not wait.
    OnlyCriticalPodsWait,
    /// For a pod that is not critical, what is reserved for the pods behind it counts.
    PodsBehindCount,
    /// For a critical pod, what is reserved for any waiting pod counts.
    CriticalPodsQueueUp,
    /// A pod gets what was reserved for pods behind it, and these are not judged again.
    OvertakenPodsAreNotJudged,
    /// Pods wait for a stop that has failed for long.
    StuckPodsAreAwaited,
    /// A pod for which others were stopped does not wait for a stop that has failed for long either.
    PromisesEndWithPatience,
    /// A stuck pod counts together with the pod that waits for it.
    StuckPodsCountTwice,
}

impl Mutation {
    /// The mutations with the laws that they break in a scenario.
    pub(super) const ALL: &'static [(Mutation, &'static Scenario, &'static [Law])] = &[
        (Mutation::StoppingPodsDoNotCount, &CRITICAL, &[Law::Capacity]),
        (Mutation::NothingIsReserved, &CRITICAL, &[Law::Reservation, Law::NeededVictims]),
        (Mutation::QueueIsNotJudgedAgain, &CRITICAL, &[Law::Rest]),
        (Mutation::JudgementCountsForNewPods, &STATIC, &[Law::Rest]),
        (Mutation::RejectedPodsAreForgotten, &STATIC, &[Law::Queued]),
        (Mutation::EveryPodIsAVictim, &CRITICAL, &[Law::NeededVictims]),
        (Mutation::WaitingPodsAreJudgedOnce, &CRITICAL, &[Law::NeededRejection, Law::Promise]),
        (Mutation::StoppingPodsAreNotAwaited, &CRITICAL, &[Law::NeededVictims]),
        (Mutation::OnlyCriticalPodsWait, &USUAL, &[Law::NeededRejection]),
        (Mutation::PodsBehindCount, &USUAL, &[Law::NeededRejection]),
        (Mutation::CriticalPodsQueueUp, &USUAL, &[Law::NeededRejection, Law::NeededVictims]),
        (Mutation::OvertakenPodsAreNotJudged, &USUAL, &[Law::Reservation]),
        (Mutation::StuckPodsAreAwaited, &USUAL, &[Law::NeededVictims, Law::Rest]),
        (Mutation::PromisesEndWithPatience, &STUCK_VICTIM, &[Law::NeededVictims, Law::Promise]),
        (Mutation::StuckPodsCountTwice, &SHARED_VICTIM, &[Law::NeededVictims]),
    ];
}
