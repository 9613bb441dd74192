//! The laws that hold in every state of admission.

use std::collections::hash_map::DefaultHasher;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;

use stateright::Property;

use super::CheckedScenario;
use super::node::{Action, Index, Node, Stage, World};
use crate::admission::{Decision, Verdict, judge};
use crate::pod::PodObject;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Law {
    /// The pods whose containers may run fit on the node together.
    Capacity,
    /// The running pods fit together with the pods that wait.
    Reservation,
    /// Each desired pod has a decision. The queue has each pod whose decision is not final, once, and no other pod.
    Queued,
    /// A pod that waits fits once the victims and the stopping pods are gone, whether stuck pods go or stay, and each victim is needed.
    NeededVictims,
    /// A pod that is rejected does not fit once the stopping pods are gone either, beside the waiting pods that go before it.
    NeededRejection,
    /// A pod for which others were stopped is not rejected.
    Promise,
    /// Once every stopping pod has stopped, no pod waits and no pod of the queue could start. A pod for which others were stopped may
    /// wait for a stop that has failed for long.
    Rest,
}

impl Law {
    pub(super) const ALL: &'static [Law] = &[
        Law::Capacity,
        Law::Reservation,
        Law::Queued,
        Law::NeededVictims,
        Law::NeededRejection,
        Law::Promise,
        Law::Rest,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Law::Capacity => "pods that may run fit on the node",
            Law::Reservation => "waiting pods fit beside running pods",
            Law::Queued => "no pod is forgotten",
            Law::NeededVictims => "no pod is stopped in vain",
            Law::NeededRejection => "no pod is rejected for what is given back",
            Law::Promise => "a pod for which others were stopped is not rejected",
            Law::Rest => "no pod waits at rest",
        }
    }

    pub(super) fn property(self) -> Property<CheckedScenario> {
        // A property is a function without captured values.
        macro_rules! holds {
            ($law:ident) => {
                Property::always(Law::$law.name(), |_, world: &World| world.broken != Some(Law::$law))
            };
        }
        match self {
            Law::Capacity => holds!(Capacity),
            Law::Reservation => holds!(Reservation),
            Law::Queued => holds!(Queued),
            Law::NeededVictims => holds!(NeededVictims),
            Law::NeededRejection => holds!(NeededRejection),
            Law::Promise => holds!(Promise),
            Law::Rest => holds!(Rest),
        }
    }
}

/// The first law that a world breaks.
pub(super) fn broken(node: &Node, world: &World) -> Option<Law> {
    let fits = |stages: &[Stage]| {
        let pods = || world.in_stages(stages).map(|index| &node.scenario.pods[index]);
        let cores: i64 = pods().map(|pod| pod.cores).sum();
        cores <= node.scenario.cores && pods().filter(|pod| pod.port != 0).count() <= 1
    };
    let rules = [
        (Law::Capacity, fits(&[Stage::Running, Stage::Stopping, Stage::Stuck])),
        (Law::Reservation, fits(&[Stage::Running, Stage::Waiting])),
        (Law::Queued, is_queued(node, world)),
        (Law::Promise, !world.pods.iter().any(|pod| pod.owed && pod.stage == Stage::Rejected)),
    ];
    let broken = rules.into_iter().find_map(|(law, holds)| (!holds).then_some(law));
    broken.or_else(|| (!rests(node, world)).then_some(Law::Rest))
}

fn is_queued(node: &Node, world: &World) -> bool {
    let sorted = |pods: &[usize]| {
        let mut pods = pods.to_vec();
        pods.sort_unstable();
        pods
    };
    let waiting: Vec<_> = world.in_stages(&[Stage::Waiting]).collect();
    let rejected =
        world.in_stages(&[Stage::Rejected]).filter(|index| node.objects[*index].is_static()).collect::<Vec<_>>();
    let has_decision = world.pods.iter().all(|pod| match pod.stage {
        Stage::Absent => !pod.desired,
        Stage::Stopping | Stage::Stuck => true,
        Stage::Waiting | Stage::Running | Stage::Ended | Stage::Rejected => pod.desired,
    });
    has_decision && sorted(&world.waiting) == waiting && sorted(&world.rejected) == rejected
}

fn could_start(node: &Node, world: &World) -> bool {
    let others = node.admitted(world, &world.waiting);
    world.rejected.iter().any(|index| {
        let pod = &node.objects[*index];
        matches!(judge(pod, &others, false, &|pod, others| node.check(pod, others)), Verdict::Admit)
    })
}

/// Whether [`Law::Rest`] holds.
fn rests(node: &Node, world: &World) -> bool {
    let mut world = world.clone();
    let mut visited = Vec::new();
    loop {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&world);
        if node.resting.lock().contains(&hash) {
            break;
        }
        visited.push(hash);
        let stopping = world.in_stages(&[Stage::Stopping]).next();
        let next = node.acted(&world, stopping.map_or(Action::Judge, Action::Stopped));
        if next == world {
            let is_stuck = world.in_stages(&[Stage::Stuck]).next().is_some();
            let may_wait = |index: &usize| is_stuck && world.pods[*index].owed;
            if !world.waiting.iter().all(may_wait) || could_start(node, &world) {
                return false;
            }
            break;
        }
        // The checker visits the next world too, and reports the law that it breaks.
        if next.broken.is_some() {
            return true;
        }
        assert!(visited.len() < 50, "no end: {world:?}");
        world = next;
    }
    node.resting.lock().extend(visited);
    true
}

/// Checks a decision on a pod. Each of the cases has the pods that the pod may have to fit beside in the end.
pub(super) fn broken_by_decision(
    node: &Node,
    pod: &PodObject,
    cases: &[Vec<Index>],
    is_owed: bool,
    decision: &Decision,
) -> Option<Law> {
    match decision {
        Decision::Start => None,
        Decision::Wait { victims, .. } => broken_by_victims(node, pod, cases, victims),
        // `Law::Promise` covers the rejection of a pod for which others were stopped.
        Decision::Reject(_) | Decision::StaysRejected if is_owed => None,
        Decision::Reject(_) | Decision::StaysRejected => {
            cases.iter().all(|beside| node.fits(pod, beside)).then_some(Law::NeededRejection)
        }
    }
}

/// Checks the victims of a pod: with all of them gone the pod fits, and without any one of them it would not.
fn broken_by_victims(node: &Node, pod: &PodObject, cases: &[Vec<Index>], victims: &[Arc<PodObject>]) -> Option<Law> {
    let victims: Vec<Index> = victims.iter().map(|victim| node.index_of(victim.uid())).collect();
    let fits_if_gone = |is_gone: &dyn Fn(Index) -> bool| {
        cases.iter().all(|beside| {
            let left: Vec<Index> = beside.iter().copied().filter(|index| !is_gone(*index)).collect();
            node.fits(pod, &left)
        })
    };
    let is_needed = |victim: &Index| !fits_if_gone(&|index| victims.contains(&index) && index != *victim);
    let suffice = fits_if_gone(&|index| victims.contains(&index));
    (!suffice || !victims.iter().all(is_needed)).then_some(Law::NeededVictims)
}
