//! The steps of a scenario.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use podwright_actors::shutdown::ShutdownConfig;
use podwright_engine::KillNow;
use podwright_model::ids::PodUid;
use podwright_ports::{ContainerRuntime, SandboxState};
use tokio::time::sleep;

use super::life::AgentLife;
use super::{LifeEnd, Simulation};
use crate::devices::driver_name;
use crate::scenario::{Source, StepAction};

impl Simulation {
    pub(super) async fn perform(&mut self, life: &mut AgentLife, what: StepAction) -> Option<LifeEnd> {
        let now = self.machine.clock.steady();
        self.machine.note(format!("{what:?}"));
        match what {
            StepAction::Add(which) => self.add(which),
            StepAction::Remove(which) => self.sources.lock().remove(which),
            StepAction::Return(which, after) => {
                let uid = self.sources.lock().uid(which);
                if self.sources.lock().desired_pods().into_iter().any(|desired| Some(desired.uid) == uid) {
                    self.sources.lock().remove(which);
                    self.deliver(life, self.machine.scenario.pods[which].source, now);
                    self.returns.push((now + after, which));
                }
            }
            StepAction::Delete(which, grace) => self.sources.lock().delete(which, grace),
            StepAction::Image(which) => self.sources.lock().image(which),
            StepAction::Label(which) => self.sources.lock().label(which),
            StepAction::Replace(which) | StepAction::Recreate(which) => {
                self.sources.lock().replace(which);
                if let Some(uid) = self.sources.lock().uid(which) {
                    self.machine.with_devices(|devices| devices.set_pod(which, uid));
                }
            }
            StepAction::Away(time) => self.sources.lock().api_is_away(now + time),
            StepAction::Kill { pod, evict, grace } => {
                let pod = self.sources.lock().kill(pod)?;
                if evict && matches!(grace, Some(0 | 1)) && !pod.is_critical() {
                    // The agent measures the pod and evicts it.
                    life.usage.exceed(pod.uid());
                    return None;
                }
                let engine = life.agent.engine.clone();
                actix::spawn(async move {
                    let how = KillNow { evict, grace_seconds: grace, status_fn: None };
                    // A late kill is no violation: the checks inspect the running containers.
                    let _late = engine.kill_pod_now(&pod, how).await;
                });
            }
            StepAction::SandboxEnds(which) => self.end_sandbox(which),
            StepAction::Empty(source, time) => self.sources.lock().empty(source, now + time),
            StepAction::Mute(source, time) => self.sources.lock().mute(source, now + time),
            StepAction::Repeat(source) => self.sources.lock().repeat(source),
            StepAction::Relist(source) => self.sources.lock().relist(source),
            StepAction::LoseChanges(which, time) => self.sources.lock().lose_changes(which, now + time),
            StepAction::ClockJump(time) => self.machine.clock_jumps(time),
            StepAction::Resize(which, resources) => self.sources.lock().resize(which, resources),
            StepAction::DeleteMirror(which) => self.sources.lock().delete_mirror(which),
            StepAction::Problem(source) => self.sources.lock().problem(source),
            StepAction::Fault(window) => self.machine.add_fault_window(window),
            StepAction::CrashIn { op, moment, down } => self.machine.crash_in(op, moment, down),
            StepAction::DriverLeaves { driver, lasts, absence } => {
                self.machine.with_devices(|devices| devices.leave(driver_name(driver), now + lasts, absence));
            }
            StepAction::Crash(down) => return Some(LifeEnd::Down(down)),
            StepAction::SetBack { by, down } => return Some(LifeEnd::SetBack { by, down }),
            StepAction::Shutdown { critical, total, down } => {
                self.shut_down(life, critical, total, None).await;
                return Some(LifeEnd::Down(down));
            }
            StepAction::CancelledShutdown { critical, total, after } => {
                self.shut_down(life, critical, total, Some(after)).await;
            }
        }
        None
    }

    fn end_sandbox(&self, which: usize) {
        let Some(uid) = self.sources.lock().uid(which) else { return };
        let status = self.machine.runtime_status(&uid);
        if let Some(sandbox) = status.sandboxes.iter().find(|sandbox| sandbox.state == SandboxState::Ready) {
            self.machine.runtime.stop_sandbox(&sandbox.id).now_or_never().unwrap().unwrap();
        }
    }

    async fn shut_down(&mut self, life: &mut AgentLife, critical: u64, total: u64, cancelled_after: Option<Duration>) {
        let config = ShutdownConfig::new(Duration::from_secs(total), Duration::from_secs(critical));
        // Pods that were delivered before are added first, so that the set of pods does not change until they stop.
        life.node.refuse_new_pods(true).await;
        let engine = &life.agent.engine;
        let stops = |uid: &PodUid| engine.is_pod_known(uid) && !engine.is_pod_known_terminated(uid);
        let desired = life.agent.desired.pods().into_iter().filter(|pod| stops(pod.uid()));
        let all: BTreeSet<PodUid> = desired.chain(engine.unterminated_pods()).map(|pod| pod.uid().clone()).collect();
        all.iter().for_each(|uid| self.sources.lock().doom(uid));
        if cancelled_after.is_some() {
            let is_static = |uid: &PodUid| self.machine.plan_of(uid).is_some_and(|plan| plan.source == Source::File);
            life.reruns.extend(all.iter().filter(|uid| is_static(uid)).cloned());
        }
        let stopping = life.node.stop_pods(config);
        let report = match cancelled_after {
            None => stopping.await,
            Some(after) => {
                let cancel = async {
                    sleep(after).await;
                    life.node.resume().await;
                };
                tokio::join!(stopping, cancel).0
            }
        };
        // A pod that stopped runs again after a cancelled shutdown.
        if report.left_running > 0 || cancelled_after.is_some() {
            return;
        }
        for uid in all.iter().filter(|uid| !report.late.iter().any(|pod| pod.uid() == *uid)) {
            if self.machine.runtime_status(uid).has_running_container() {
                self.machine.violated(format!("{uid}: runs after a shutdown that reported it as stopped"));
            }
        }
    }
}
