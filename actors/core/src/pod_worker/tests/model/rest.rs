//! Liveness: once faults stop, the world comes to rest.
//!
//! The graph of the world has cycles, and stateright's `eventually` is not sound on cycles. So two fair schedules without
//! faults are run from each reachable state, and both have to come to rest within a bound. Both are deterministic. Fair means
//! that every enabled action happens in the end, that hooks succeed, that due times are reached, and that passes never stop. In
//! the first schedule workers go first, pod A before pod B. In the second a pass that has begun ends before a worker acts, and
//! pod B goes before pod A. A cycle that needs yet another order is not found.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use parking_lot::Mutex;

use super::CheckedScenario;
use super::ends::end_action;
use super::frozen::{Frozen, Stage};
use super::world::{Action, ContainersState, End, EndEntry, Pass, Pod, Uid, World};
use crate::pod_worker::lifecycle::Hook;
use crate::ports::Observed;

/// More steps than any path to rest has.
const MOST: usize = 120;

/// The part of the world that goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Workers,
    Pass,
}

/// The hashes of the states that come to rest, for each order.
#[derive(Default)]
pub(super) struct Resting([Mutex<HashSet<u64>>; 2]);

impl CheckedScenario {
    /// Whether the world comes to rest with its present sources. States without desired pods are among the reachable states, so
    /// this covers the end of all pods too.
    pub(super) fn come_to_rest(&self, world: &World) -> bool {
        [Order::Workers, Order::Pass].into_iter().all(|order| self.come_to_rest_by(order, world))
    }

    fn come_to_rest_by(&self, order: Order, world: &World) -> bool {
        let resting = &self.resting.0[order as usize];
        if world.broken.is_any() {
            return true;
        }
        let mut world = world.clone();
        let mut way = Vec::new();
        for _ in 0..MOST {
            let mut hasher = DefaultHasher::new();
            world.hash(&mut hasher);
            let hash = hasher.finish();
            if resting.lock().contains(&hash) {
                break;
            }
            way.push(hash);
            match self.fair(order, &world) {
                None if world.rests(self) => break,
                None => return false,
                Some(action) => match self.machine.after(&world, action) {
                    // The checker finds a law that is broken on this path too.
                    Some(next) if !next.broken.is_any() => world = next,
                    Some(_) => return true,
                    None => return false,
                },
            }
            if way.len() == MOST {
                return false;
            }
        }
        resting.lock().extend(way);
        true
    }

    /// The next action of a schedule; `None` if only further passes are left.
    fn fair(&self, order: Order, world: &World) -> Option<Action> {
        let mut uids: Vec<Uid> = world.uids().collect();
        if order == Order::Pass {
            uids.reverse();
        }
        for uid in uids.iter().copied() {
            let pod = world.pod(uid);
            if pod.view != pod.observe() || !pod.observed_once {
                return Some(Action::Observe(uid));
            }
            if pod.config.is_some() && !pod.delivered && !world.is_locked() {
                return Some(Action::Deliver(uid));
            }
        }
        if !world.ready {
            return Some(Action::Ready);
        }
        let busy = uids.into_iter().find_map(|uid| self.works(uid, world.pod(uid)));
        let next = match &world.pass {
            Pass::Idle => Action::Compare,
            Pass::Compared { .. } => Action::List,
            Pass::Listed { .. } => Action::Plan,
            Pass::Ordered { .. } => Action::Apply,
            Pass::Applied { .. } => Action::Tidy,
        };
        if order == Order::Pass && world.pass != Pass::Idle {
            return Some(next);
        }
        busy.or_else(|| (world.pass != Pass::Idle || !world.rests(self)).then_some(next))
    }

    /// The next action of a worker or its hook.
    fn works(&self, uid: Uid, pod: &Pod) -> Option<Action> {
        if let Some(call) = pod.call {
            return match call.hook {
                Hook::Sync if call.noted => {
                    let final_report = self.has_final_report(pod, call).then(|| end_action(uid, pod));
                    Some(final_report.unwrap_or(Action::Return(uid, End::Ended)))
                }
                _ if call.cancelled => Some(Action::Return(uid, End::Cancelled)),
                Hook::Terminating | Hook::Terminated if self.has_final_report(pod, call) => Some(end_action(uid, pod)),
                Hook::Sync if !pod.is_running() => Some(Action::Start(uid)),
                Hook::Sync => Some(Action::Return(uid, End::Continues)),
                Hook::Terminating | Hook::TerminatingRuntime if pod.is_running() => Some(Action::Stop(uid)),
                // A running container uses the pod's volumes.
                Hook::Terminated if pod.is_running() => None,
                Hook::Terminating | Hook::TerminatingRuntime | Hook::Terminated => {
                    Some(Action::Return(uid, End::Succeeded))
                }
            };
        }
        if !pod.is_idle() {
            return None;
        }
        if pod.woken {
            return Some(Action::Take(uid));
        }
        let record = pod.record.as_ref()?;
        // A retry, or the resync that finds that the containers ended. The resync of a healthy pod changes nothing.
        let is_healthy = matches!(record.stage, Stage::Sync(_)) && pod.is_running() && record.failing.is_none();
        let is_refused = record.stage == Stage::Waiting { refused: true };
        (record.due && !is_healthy && !is_refused).then_some(Action::Due(uid))
    }
}

impl World {
    fn rests(&self, checked: &CheckedScenario) -> bool {
        self.uids().all(|uid| {
            let pod = self.pod(uid);
            pod.call.is_none() && !pod.woken && pod.waiting.is_empty() && pod.rests(uid, self, checked)
        })
    }
}

impl Pod {
    fn rests(&self, uid: Uid, world: &World, checked: &CheckedScenario) -> bool {
        let Some(wanted) = self.desired() else {
            return self.record.is_none() && !self.is_running() && !self.directory;
        };
        match self.record.as_ref().map(|Frozen { stage, .. }| stage) {
            None => {
                let has_ended = self.rejected || self.entry != EndEntry::Nothing;
                !self.is_running() && (has_ended || (wanted.is_failed() && !wanted.is_deleting()))
            }
            Some(Stage::Waiting { refused }) => {
                // By one that is not over, or it would wait for ever.
                let holder = world.queue.started().map(|started| checked.machine.objects.which(started));
                *refused
                    && holder.is_some_and(|holder| {
                        holder != uid && world.pod(holder).record.as_ref().is_some_and(|record| !record.has_ended())
                    })
            }
            Some(Stage::Sync(form)) => {
                *form == wanted && self.containers == ContainersState::Running && self.view == Observed::Running
            }
            Some(Stage::Finished { flags }) => !self.is_running() && !flags.restart_requested,
            Some(Stage::Terminating(_) | Stage::Terminated { .. }) => false,
        }
    }
}
