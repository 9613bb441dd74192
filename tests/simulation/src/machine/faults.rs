//! The faults of the machine: windows in which calls fail, jumps of the clock, and calls in which the agent is killed.

use std::time::Duration;

use futures_util::FutureExt;
use podwright_model::ids::{ContainerId, PodUid};
use podwright_model::time::Time;
use podwright_ports::{ContainerRuntime, ContainerState, SandboxConfig};

use super::{Machine, MachineState};
use crate::rng::Rng;
use crate::scenario::{Fault, Moment, Op, Window};

/// How long after the last fault the agent surely knows what the API server has: its watch has waited for the longest backoff and listed the
/// pods again.
const CALM_AFTER: Duration = Duration::from_secs(120);

/// The longest delay of a call by a fault.
const SLOWEST: Duration = Duration::from_secs(60);

impl Machine {
    /// Sets the clock of the machine ahead. For a while, the checks find nothing late.
    pub(crate) fn clock_jumps(&self, time: Duration) {
        self.clock.jump(time);
        let mut state = self.state.lock();
        state.faults_until = state.faults_until.max(self.clock.steady()) + SLOWEST;
    }

    pub(crate) fn add_fault_window(&self, window: Window) {
        let mut state = self.state.lock();
        if window.op != Some(Op::Event) {
            // A delayed call ends after the window.
            state.faults_until = state.faults_until.max(self.clock.steady() + window.lasts + SLOWEST);
        }
        state.windows.push((self.clock.steady() + window.lasts, window));
    }

    /// The time, without the jumps of the clock, since which no call can have failed. Faults of events do not count.
    pub(crate) fn faultless_since(&self) -> Time {
        self.state.lock().faults_until
    }

    /// Ends all faults.
    pub(crate) fn end_faults(&self) {
        let mut state = self.state.lock();
        state.faults_ended = Some(self.clock.steady());
        state.windows.clear();
        state.crashes.clear();
        state.devices.all_return();
    }

    /// Whether the agent and the API server had enough time since the last fault to agree.
    pub(crate) fn is_calm(&self) -> bool {
        self.state.lock().faults_ended.is_some_and(|at| self.clock.steady().since(at) >= CALM_AFTER)
    }

    /// Creates a sandbox later although its call was dropped.
    pub(crate) fn add_late_sandbox(&self, config: SandboxConfig) {
        self.state.lock().late_sandboxes.push(config);
    }

    pub(crate) fn take_late_sandboxes(&self) -> Vec<SandboxConfig> {
        std::mem::take(&mut self.state.lock().late_sandboxes)
    }

    /// The start of a container is dropped before it took effect.
    pub(crate) fn start_dropped(&self, uid: PodUid, id: ContainerId) {
        self.state.lock().dropped_starts.push((uid, id));
    }

    /// Cancels some of the starts that the agent had requested when it was killed, as a runtime does whose client is gone. `is_known`
    /// says whether the next agent knows that the start was under way.
    pub(crate) fn cancel_starts(&self, is_known: impl Fn(&ContainerId) -> bool) {
        let dropped = std::mem::take(&mut self.state.lock().dropped_starts);
        for (uid, id) in dropped {
            let status = self.runtime_status(&uid);
            let is_created = status.containers.iter().any(|run| run.id == id && run.state == ContainerState::Created);
            let chosen = Rng::of(self.scenario.seed, &[id.as_str().as_bytes()]).percent(70);
            if !is_created || !chosen {
                continue;
            }
            self.note(format!("{uid} the start of {id} is cancelled"));
            // A container that is stopped before its start ends at once, and never starts.
            self.runtime.stop_container(&id, Duration::ZERO).now_or_never().expect("a created container ends").unwrap();
            self.runtime_status(&uid);
            if is_known(&id) {
                self.state.lock().runs.start_cancelled(&uid, &id);
            }
        }
    }

    /// Kills the agent at this moment of its next call of a kind.
    pub(crate) fn crash_in(&self, op: Op, moment: Moment, down: Duration) {
        self.state.lock().crashes.push((op, moment, down));
    }

    /// A call reaches a moment. Does not return if the agent is killed now.
    pub(crate) async fn reach(&self, op: Op, moment: Moment) {
        {
            let mut state = self.state.lock();
            let found = state.crashes.iter().position(|(of, at, _)| (*of, *at) == (op, moment));
            let Some((_, _, down)) = found.map(|index| state.crashes.remove(index)) else { return };
            state.crash = Some(down);
        }
        self.note(format!("the agent is killed: {op:?} {moment:?}"));
        self.must_crash.notify_one();
        std::future::pending().await
    }

    /// Waits until the agent is killed in a call. Returns when the next one starts.
    pub(crate) async fn crash(&self) -> Duration {
        loop {
            self.must_crash.notified().await;
            if let Some(down) = self.state.lock().crash.take() {
                return down;
            }
        }
    }

    /// The fault of one more call, if it gets one.
    pub(crate) fn draw_fault(&self, op: Op, uid: &PodUid) -> Option<Fault> {
        self.draw(&mut self.state.lock(), op, uid)
    }

    pub(super) fn draw(&self, state: &mut MachineState, op: Op, uid: &PodUid) -> Option<Fault> {
        let now = self.clock.steady();
        state.windows.retain(|(until, _)| *until > now);
        if state.windows.is_empty() {
            return None;
        }
        let count = state.calls.entry((op, uid.clone())).or_default();
        *count += 1;
        let text = uid.to_string();
        let mut rng = Rng::of(self.scenario.seed, &[&[op as u8], text.as_bytes(), &count.to_le_bytes()]);
        let of_pod =
            |which: usize| text.split('-').next() == self.scenario.pods.get(which).map(|pod| pod.name.as_str());
        let hit = state.windows.iter().find(|(_, window)| {
            window.op.is_none_or(|only| only == op) && window.pod.is_none_or(of_pod) && rng.percent(window.percent)
        });
        hit.map(|(_, window)| window.fault)
    }
}
