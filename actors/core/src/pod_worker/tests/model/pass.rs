//! The second half of a housekeeping pass: the real plan, and its actions.

use std::collections::HashSet;

use super::frozen::Frozen;
use super::laws::{Law, Request};
use super::moves::Machine;
use super::mutation::Mutation;
use super::world::{EndEntry, List, Pass, PassAction, Uid, World};
use crate::admission::{PodActivity, is_active};
use crate::housekeeping::{PodAction, actions, is_directory_unused};
use crate::pod::Phase;
use crate::pod_manager::PodManager;
use crate::pod_worker::update::UpdateKind;
use crate::ports::{RuntimePod, RuntimePodSandbox, SandboxState};
use crate::time::Time;

impl Machine {
    /// The real plan of a pass.
    pub(super) fn plan(&self, world: &World, known: u8, listed: u8) -> Vec<(Uid, PassAction)> {
        let desired: Vec<_> = world
            .uids()
            .filter_map(|uid| Some((uid, self.objects.pod(uid, world.pod(uid).desired()?).clone())))
            .collect();
        let mut pods = PodManager::default();
        desired.iter().for_each(|(_, pod)| pods.put(pod.clone()));
        let missing = desired.into_iter().filter(|(uid, pod)| {
            let of = world.pod(*uid);
            let record = of.record.as_ref();
            let standing = PodActivity {
                known_terminated: record.is_some_and(Frozen::has_ended),
                termination_requested: record.is_some_and(Frozen::is_stopping),
                cached_phase: (of.rejected || of.entry != EndEntry::Nothing).then_some(Phase::Failed),
            };
            record.is_none() && is_active(pod, standing)
        });
        let listed: Vec<_> = world.uids().filter(|uid| uid.is_in(listed)).map(|uid| self.listed(uid)).collect();
        let before: HashSet<_> =
            world.uids().filter(|uid| uid.is_in(known)).map(|uid| self.objects.uid(uid).clone()).collect();
        let is_known = |uid: &_| world.pod(self.objects.which(uid)).record.is_some();
        let mut orders: Vec<_> =
            actions(&pods, missing.map(|(_, pod)| pod).collect(), &listed, before.iter(), is_known)
                .into_iter()
                .map(|order| {
                    let uid = self.objects.which(order.uid());
                    let asks = match &order {
                        PodAction::Restart(pod) => PassAction::Create(self.objects.form(pod)),
                        PodAction::Stop(_) if self.mutates(Mutation::StopsRejectedAsRuntimeOnly) => {
                            PassAction::KillRuntime
                        }
                        PodAction::Finish(pod) | PodAction::Stop(pod) => PassAction::Kill(self.objects.form(pod)),
                        PodAction::StopRuntimeOnly(_) => PassAction::KillRuntime,
                    };
                    (uid, asks)
                })
                .collect();
        orders.sort_by_key(|(uid, _)| *uid as u8);
        orders
    }

    fn listed(&self, uid: Uid) -> RuntimePod {
        let running = self.objects.running(uid);
        let sandbox =
            RuntimePodSandbox { id: "s".into(), state: SandboxState::Ready, attempt: 0, created_at: Time::ZERO };
        let (uid, full_name) = (running.uid, running.full_name);
        RuntimePod { uid, full_name, is_static: false, grace: None, sandboxes: vec![sandbox], containers: vec![] }
    }

    pub(super) fn apply_next(&self, world: &mut World) {
        let Pass::Ordered { list, orders } = &mut world.pass else { return };
        if orders.is_empty() {
            world.pass = Pass::Applied { list: *list };
            return;
        }
        let (uid, asks) = orders.remove(0);
        match asks {
            PassAction::Create(form) => self.update(world, uid, Request::config(UpdateKind::Create, form)),
            PassAction::Kill(form) => self.update(world, uid, Request::config(UpdateKind::Kill, form)),
            PassAction::KillRuntime => {
                if world.pod(uid).desired().is_some() {
                    world.broken.add(Law::W13RuntimeOnly);
                }
                self.update(world, uid, Request::runtime());
            }
        }
    }

    pub(super) fn tidy(&self, world: &mut World) {
        let Pass::Applied { list: List { listed, missed } } = world.pass else { return };
        for uid in world.uids() {
            let pod = world.pod_mut(uid);
            let has_ended = pod.record.as_ref().is_some_and(Frozen::has_ended);
            // The containers are observed again, because the list may be older than the end of the pod.
            if uid.is_in(listed) && has_ended && pod.is_running() && !self.mutates(Mutation::KeepsZombies) {
                pod.stop();
            }
            let (is_desired, mut is_known) = (pod.desired().is_some(), pod.record.is_some());
            if self.mutates(Mutation::RemovesDirectoriesOfKnownPods) {
                is_known = false;
            }
            if pod.directory && is_directory_unused(is_desired, is_known, uid.is_in(listed)) {
                pod.directory = false;
                // What really runs counts, except for a container that the list wrongly left out.
                let runs = pod.is_running() && !uid.is_in(missed);
                if pod.record.is_some() || pod.desired().is_some() || runs {
                    world.broken.add(Law::W37);
                }
            }
        }
        world.pass = Pass::Idle;
    }
}
