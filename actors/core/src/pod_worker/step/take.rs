//! The step in which the worker takes the pending update: it decides whether the pod may start, replaces the spec that the
//! worker acts on, and selects the hook.

use std::time::Duration;

use super::update::{finish, keep_mirror};
use super::{Effects, HookCall, StepContext, Worked};
use crate::pod_worker::lifecycle::{Cause, Hook};
use crate::pod_worker::state::{Pending, Record, Started, State, Stop};
use crate::pod_worker::update::{Config, Target};
use crate::ports::{Observed, SyncPod, TerminatingPod};

/// The shortest time after which a static pod that waits for its full name is tried again. The pod that leaves the name wakes it
/// earlier; without this bound, an engine without a backoff would try again and again.
const SHORTEST_BLOCKED_RETRY: Duration = Duration::from_secs(1);

impl Record {
    /// Whether [`Event::Take`](super::Event::Take) needs the last observation of the pod. A static pod that is stopped before its
    /// start may have containers of an earlier agent (POD-W32).
    pub fn wants_observation(&self) -> bool {
        matches!(&self.state, State::Terminating(t) if matches!(t.stop, Stop::Unstarted { .. }))
            && self.pending_config().is_some_and(|config| config.pod.is_static())
    }

    /// Whether [`Event::Take`](super::Event::Take) needs to know who has the full name: for a static pod that was not started.
    pub fn wants_name(&self) -> bool {
        matches!(self.state, State::Waiting(_)) && self.pending_config().is_some_and(|config| config.pod.is_static())
    }
}

#[inline(never)]
pub(super) fn take(record: &mut Record, may_start: bool, observed: Observed, context: StepContext) -> Effects {
    if record.is_calling() {
        return Effects::default();
    }
    let Some(Pending { kind, target, start_time, since }) = record.pending.take() else {
        return Effects::default();
    };
    let target = keep_mirror(record.active(), target);
    let now = context.now;
    let mut effects = Effects::default();

    if let (State::Waiting(waiting), false) = (&mut record.state, may_start) {
        waiting.block(now);
        record.rest_until(context.after(context.error_backoff.max(SHORTEST_BLOCKED_RETRY)));
        record.pending = Some(Pending { kind, target, start_time, since });
        return effects;
    }

    let (hook, call) = match (&mut record.state, target) {
        (State::Waiting(_), Target::Config(config)) => {
            let call = setup(&config, kind);
            record.state = State::Sync(Started { config });
            record.moved(now, Cause::Started);
            effects.started = true;
            (Hook::Sync, call)
        }
        (State::Sync(started), Target::Config(config)) => {
            let call = setup(&config, kind);
            started.config = config;
            (Hook::Sync, call)
        }
        (State::Terminating(t), Target::Config(config)) => {
            if let Stop::Unstarted { observed_runtime } = t.stop {
                let seen = observed_runtime || observed == Observed::Running;
                if config.pod.is_static() && !seen {
                    effects.completed = std::mem::take(&mut t.notifiers);
                    effects.worked = start_time.map(|start_time| Worked { kind: None, start_time });
                    effects.end = true;
                    record.pending = Some(Pending { kind, target: Target::Config(config), start_time, since });
                    finish(record, Cause::NeverStarted, now);
                    return effects;
                }
                effects.started = true;
            }
            let call = HookCall::Terminating(TerminatingPod {
                pod: config.pod.clone(),
                grace: t.grace,
                forced: t.forced,
                status_fn: t.status_fn.as_ref().map(|editor| editor.0.clone()),
            });
            t.stop = Stop::Begun { config };
            (Hook::Terminating, call)
        }
        (State::Terminating(t), Target::Runtime(running)) => {
            t.stop = Stop::Runtime { running: running.clone() };
            (Hook::TerminatingRuntime, HookCall::TerminatingRuntime(running, t.grace))
        }
        (State::Terminated(t), Target::Config(config)) => {
            let call = HookCall::Terminated(config.pod.clone());
            t.config = Some(config);
            (Hook::Terminated, call)
        }
        // A runtime-only update requests a stop, so it is pending only for a pod that is terminating. A finished pod has no
        // pending update.
        (State::Waiting(_) | State::Sync(_) | State::Terminated(_), Target::Runtime(_)) | (State::Finished(_), _) => {
            return effects;
        }
    };
    record.begin(hook, kind, start_time, now);
    effects.call = Some(call);
    effects
}

fn setup(config: &Config, kind: crate::pod_worker::update::UpdateKind) -> HookCall {
    HookCall::Sync(SyncPod { kind: kind.into(), pod: config.pod.clone(), mirror: config.mirror.clone() })
}
