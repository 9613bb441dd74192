//! Where the world comes to, once nothing fails any more.
//!
//! The graph of the world has cycles, and stateright's `eventually` is not sound on those. So each reachable state is
//! asked instead: two fair schedules without faults, each always the same for the same state, have to lead to rest within a
//! bound. Fair means that whatever can go on does, that hooks do their work and succeed, that due times come, and that
//! passes go on for ever. In one of them workers go first, A before B; in the other a pass that has begun ends before a
//! worker does anything, and B comes before A. A circle that only yet another order keeps up is not found.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use parking_lot::Mutex;

use super::Lives;
use super::ends::end_action;
use super::frozen::{Frozen, Stage};
use super::world::{Action, End, Entry, Pass, Pod, Real, Uid, World};
use crate::pod_worker::lifecycle::Hook;
use crate::ports::Observed;

/// More steps than any way to rest takes.
const MOST: usize = 120;

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Workers,
    Pass,
}

/// The states from which rest was found before, by what they hash to, for each order.
#[derive(Default)]
pub(super) struct Resting([Mutex<HashSet<u64>>; 2]);

impl Lives {
    /// With the sources as they are; that all ends where nothing is wanted is what this says of the states in which
    /// nothing is wanted, and from each state one of those is a step or two away.
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
                    // What is broken on a way that only this walks is found by the checker too.
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

    /// What happens next, if all goes well. `None` if that is nothing but the next of many passes.
    fn fair(&self, order: Order, world: &World) -> Option<Action> {
        let mut uids: Vec<Uid> = world.uids().collect();
        if order == Order::Pass {
            uids.reverse();
        }
        for uid in uids.iter().copied() {
            let pod = world.pod(uid);
            if pod.view != pod.observe() || !pod.looked {
                return Some(Action::Look(uid));
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
            Pass::Ordered { .. } => Action::Obey,
            Pass::Settled { .. } => Action::Tidy,
        };
        if order == Order::Pass && world.pass != Pass::Idle {
            return Some(next);
        }
        busy.or_else(|| (world.pass != Pass::Idle || !world.rests(self)).then_some(next))
    }

    /// What the worker or its hook does next.
    fn works(&self, uid: Uid, pod: &Pod) -> Option<Action> {
        if let Some(call) = pod.call {
            return match call.hook {
                Hook::Sync if call.noted => {
                    let last_word = self.has_last_word(pod, call).then(|| end_action(uid, pod));
                    Some(last_word.unwrap_or(Action::Return(uid, End::Ended)))
                }
                _ if call.cancelled => Some(Action::Return(uid, End::Cancelled)),
                Hook::Terminating | Hook::Terminated if self.has_last_word(pod, call) => Some(end_action(uid, pod)),
                Hook::Sync if !pod.is_running() => Some(Action::Start(uid)),
                Hook::Sync => Some(Action::Return(uid, End::Continues)),
                Hook::Terminating | Hook::TerminatingRuntime if pod.is_running() => Some(Action::Stop(uid)),
                // What runs keeps the pod's volumes in use.
                Hook::Terminated if pod.is_running() => None,
                Hook::Terminating | Hook::TerminatingRuntime | Hook::Terminated => {
                    Some(Action::Return(uid, End::Succeeded))
                }
            };
        }
        if !pod.is_idle() {
            return None;
        }
        if pod.rung {
            return Some(Action::Take(uid));
        }
        let record = pod.record.as_ref()?;
        // A retry, or the re-check that finds that the containers ended; not the one that finds all well.
        let is_well = matches!(record.stage, Stage::Sync(_)) && pod.is_running() && record.failing.is_none();
        let is_refused = record.stage == Stage::Waiting { refused: true };
        (record.due && !is_well && !is_refused).then_some(Action::Due(uid))
    }
}

impl World {
    fn rests(&self, lives: &Lives) -> bool {
        self.uids().all(|uid| {
            let pod = self.pod(uid);
            pod.call.is_none() && !pod.rung && pod.waiting.is_empty() && pod.rests(uid, self, lives)
        })
    }
}

impl Pod {
    fn rests(&self, uid: Uid, world: &World, lives: &Lives) -> bool {
        let Some(wanted) = self.desired() else {
            return self.record.is_none() && !self.is_running() && !self.directory;
        };
        match self.record.as_ref().map(|Frozen { stage, .. }| stage) {
            None => {
                let is_over = self.rejected || self.entry != Entry::Nothing;
                !self.is_running() && (is_over || (wanted.is_failed() && !wanted.is_deleting()))
            }
            Some(Stage::Waiting { refused }) => {
                // By one that is not over, or it would wait for ever.
                let holder = world.queue.started().map(|started| lives.machine.objects.which(started));
                *refused
                    && holder.is_some_and(|holder| {
                        holder != uid && world.pod(holder).record.as_ref().is_some_and(|record| !record.is_over())
                    })
            }
            Some(Stage::Sync(form)) => *form == wanted && self.real == Real::Running && self.view == Observed::Running,
            Some(Stage::Finished { flags }) => !self.is_running() && !flags.restart_requested,
            Some(Stage::Terminating(_) | Stage::Terminated { .. }) => false,
        }
    }
}
