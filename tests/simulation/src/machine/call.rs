//! The calls of the agent.

use std::fmt;
use std::time::Duration;

use podwright_model::ids::{ContainerId, ContainerName, PodUid, SandboxId};
use podwright_ports::{Clock, PodRuntimeStatus};

use super::Machine;
use crate::checks::{self, CallContext};
use crate::scenario::{Fault, Op};

/// The subject of a call, besides its pod.
#[derive(Clone, Debug)]
pub(crate) enum CallDetail {
    Nothing,
    Attempt(u32),
    Sandbox(SandboxId),
    Image(String),
    New { name: ContainerName, restart_count: u32, sandbox: SandboxId },
    Run { name: ContainerName, id: ContainerId },
    Stop { name: ContainerName, id: ContainerId, grace: Duration },
    Command { name: ContainerName, id: ContainerId, command: String },
    Host(String),
    Claims(String),
}

impl CallDetail {
    /// The container of the call.
    pub(super) fn container(&self) -> Option<&ContainerId> {
        match self {
            CallDetail::Run { id, .. } | CallDetail::Stop { id, .. } | CallDetail::Command { id, .. } => Some(id),
            CallDetail::Nothing
            | CallDetail::Attempt(_)
            | CallDetail::Sandbox(_)
            | CallDetail::Image(_)
            | CallDetail::New { .. }
            | CallDetail::Host(_)
            | CallDetail::Claims(_) => None,
        }
    }
}

impl fmt::Display for CallDetail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallDetail::Nothing => Ok(()),
            CallDetail::Attempt(attempt) => write!(f, " {attempt}"),
            CallDetail::Sandbox(id) => write!(f, " {id}"),
            CallDetail::Image(text) | CallDetail::Host(text) | CallDetail::Claims(text) => write!(f, " {text}"),
            CallDetail::New { name, restart_count, sandbox } => write!(f, " {name} {restart_count} in {sandbox}"),
            CallDetail::Run { name, id } => write!(f, " {name} {id}"),
            CallDetail::Stop { name, id, grace } => write!(f, " {name} {id} within {}", grace.as_secs_f64()),
            CallDetail::Command { name, id, command } => write!(f, " {name} {id} {command}"),
        }
    }
}

/// A call that has begun and not ended.
#[derive(Clone, Debug)]
pub(crate) struct ActiveCall {
    pub(crate) op: Op,
    pub(crate) uid: PodUid,
    pub(crate) about: CallDetail,
    /// The call stops a container of a terminated pod. Such calls are made outside the pod's worker.
    pub(crate) zombie_stop: bool,
}

/// Ends an active call when it is answered or dropped.
pub(crate) struct CallGuard<'a> {
    machine: &'a Machine,
    number: u64,
    pub(crate) fault: Option<Fault>,
    answered: bool,
}

impl CallGuard<'_> {
    pub(crate) fn answered(mut self, how: &str) {
        self.answered = true;
        self.machine.call_ended(self.number, how);
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.machine.call_ended(self.number, "dropped");
        }
    }
}

impl Machine {
    /// Begins a call: traces it, checks it and draws its fault.
    pub(crate) fn begin(&self, op: Op, uid: &PodUid, about: CallDetail) -> CallGuard<'_> {
        let now = self.clock.now();
        let agent = self.agent();
        let view = agent.as_ref().and_then(|agent| agent.pod_view(uid));
        let checked = checks::is_checked(op);
        // A container that is removed is recorded for the last time.
        let recorded = checked || op == Op::Remove;
        let status = if recorded { self.runtime_status(uid) } else { PodRuntimeStatus::default() };
        let rivals =
            agent.as_ref().filter(|_| op == Op::Create).map(|agent| agent.engine.snapshots()).unwrap_or_default();
        let mut state = self.state.lock();
        let state = &mut *state;
        match &about {
            _ if op == Op::SetUp => state.runs.set_up(uid),
            CallDetail::Command { id, command, .. } if command == "probe" => state.runs.probed(uid, id),
            _ => {}
        }
        if checked {
            let call = CallContext {
                now,
                life: state.life,
                uid,
                op,
                about: &about,
                view: view.as_ref(),
                status: &status,
                runs: state.runs.of(uid),
                active_calls: &state.active_calls,
                plan: self.plan_of(uid),
                rivals: &rivals,
                applied: about.container().and_then(|id| state.resources.get(id)),
                clock: &self.clock,
            };
            if let Err(what) = checks::call_begin(&call) {
                let what = format!("{uid}: {op:?}{about}: {what}");
                state.trace.note(self.elapsed(), state.life, format!("VIOLATED {what}"));
                state.violation.get_or_insert(what);
            }
        }
        let fault = self.draw(state, op, uid);
        let fault_text = fault.map_or(String::new(), |fault| format!(" {fault:?}"));
        state.trace.note(self.elapsed(), state.life, format!("{uid} {op:?}{about}{fault_text}"));
        state.numbers += 1;
        let zombie_stop = view.as_ref().is_none_or(|view| checks::is_terminated(&view.snapshot));
        state.active_calls.insert(state.numbers, ActiveCall { op, uid: uid.clone(), about, zombie_stop });
        CallGuard { machine: self, number: state.numbers, fault, answered: false }
    }

    fn call_ended(&self, number: u64, how: &str) {
        let at = self.elapsed();
        let mut state = self.state.lock();
        let life = state.life;
        if let Some(ActiveCall { op, uid, about, .. }) = state.active_calls.remove(&number) {
            if op == Op::List && how == "ok" {
                state.listed = Some(self.clock.steady());
            }
            if let (CallDetail::Stop { id, .. }, true) = (&about, how.contains("failed")) {
                state.runs.stop_failed(&uid, id, self.clock.now());
            }
            state.trace.note(at, life, format!("{uid} {op:?}{about}: {how}"));
        }
    }
}
