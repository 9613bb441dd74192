//! The actions of the world. The shell around the records (the engine, the worker's loop, the pass) is modelled here. The real
//! functions decide.

use super::frozen::{Form, Frozen, Objects, PendingTarget, Waiters, context};
use super::laws::{Law, RecordEvent, Request};
use super::mutation::Mutation;
use super::world::{Action, Call, ContainersState, End, EndEntry, Faults, Kill, Life, List, Pass, Pod, Uid, World};
use crate::pod_worker::lifecycle::Hook;
use crate::pod_worker::state::Record;
use crate::pod_worker::static_names::StaticNameQueue;
use crate::pod_worker::step::{Effects, Event, HookCall, NameMove, Outcome, new_record, step};
use crate::pod_worker::update::{KillOptions, Update, UpdateKind};
use crate::ports::{FailureCause, Observed, SyncRetry};
use crate::time::Grace;

/// The machine with its surroundings: the real steps, with a mutation applied to their results.
pub(super) struct Machine {
    pub(super) objects: Objects,
    pub(super) statics: bool,
    /// Whether the observer may lag behind what runs.
    pub(super) lags: bool,
    pub(super) mutation: Option<Mutation>,
}

/// The effects of a step as data.
#[derive(Clone, Debug, Default)]
pub(super) struct StepEffects {
    pub(super) wake: bool,
    pub(super) cancel: bool,
    pub(super) notified: Vec<u8>,
    pub(super) leave: bool,
    pub(super) called: Option<Called>,
    pub(super) end: bool,
    pub(super) forget: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Called {
    pub(super) hook: Hook,
    pub(super) form: Option<Form>,
    pub(super) grace: Option<u32>,
    pub(super) status_fn: Option<u8>,
}

impl Machine {
    pub(super) fn start(&self, pods: usize, left: Faults) -> World {
        World {
            pods: vec![Pod::new(); pods],
            queue: StaticNameQueue::default(),
            pass: Pass::Idle,
            ready: true,
            left,
            broken: Default::default(),
        }
    }

    pub(super) fn mutates(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// `None` if nothing would change.
    pub(super) fn after(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Pass | Action::PassWrongly(_) => {
                let list = match action {
                    Action::PassWrongly(uid) => Action::ListWrongly(uid),
                    _ => Action::List,
                };
                next = self.after(&next, Action::Compare)?;
                next = self.after(&next, list)?;
                next = self.after(&next, Action::Plan)?;
                while next.is_locked() {
                    next = self.after(&next, Action::Apply)?;
                }
                next = self.after(&next, Action::Tidy)?;
            }
            Action::Add(uid, form) => {
                let pod = next.pod_mut(uid);
                (pod.config, pod.delivered) = (Some(form), true);
                let form = pod.created(form);
                self.update(&mut next, uid, Request::config(UpdateKind::Create, form));
            }
            Action::Change(uid, form) => {
                next.pod_mut(uid).config = Some(form);
                self.update(&mut next, uid, Request::config(UpdateKind::Update, form));
            }
            Action::Remove(uid) => {
                let ready = next.ready;
                let pod = next.pod_mut(uid);
                let gone = pod.config.take();
                let reported = std::mem::take(&mut pod.delivered) && ready;
                (pod.rejected, pod.reported) = (false, false);
                if let (Some(form), true) = (gone, reported) {
                    self.update(&mut next, uid, Request::config(UpdateKind::Kill, form));
                }
            }
            Action::Deliver(uid) => {
                let pod = next.pod_mut(uid);
                pod.delivered = true;
                if let Some(form) = pod.config.map(|form| pod.created(form)) {
                    self.update(&mut next, uid, Request::config(UpdateKind::Create, form));
                }
            }
            Action::Reject(uid) => {
                let pod = next.pod_mut(uid);
                (pod.delivered, pod.rejected) = (true, true);
            }
            Action::Ready => next.ready = true,
            Action::Recheck(uid) => {
                let form = world.pod(uid).config?;
                self.update(&mut next, uid, Request::config(UpdateKind::Sync, form));
            }
            Action::Kill(uid, kill) => {
                let waiter = (0..2).find(|number| !world.pod(uid).waiting.contains(number))?;
                let form = world.pod(uid).config?;
                let mut request = Request { waiter: Some(waiter), ..Request::config(UpdateKind::Kill, form) };
                match kill {
                    Kill::Plain => {}
                    Kill::Evict => (request.evict, request.status_fn, request.grace) = (true, Some(waiter), Some(2)),
                    Kill::Now => request.grace = Some(0),
                }
                next.pod_mut(uid).waiting.push(waiter);
                next.pod_mut(uid).waiting.sort_unstable();
                self.update(&mut next, uid, request);
            }
            Action::KillRuntime(uid) => self.update(&mut next, uid, Request::runtime()),
            Action::Take(uid) => self.take(&mut next, uid),
            Action::Due(uid) => {
                self.drive(&mut next, uid, RecordEvent::Due, |_| Event::Due);
                next.pod_mut(uid).woken = true;
            }
            Action::Start(uid) => {
                let pod = next.pod_mut(uid);
                (pod.containers, pod.directory) = (ContainersState::Running, true);
                if pod.reported {
                    next.broken.add(Law::W13Reported);
                }
            }
            Action::Note(uid) => {
                let pod = next.pod_mut(uid);
                pod.entry = EndEntry::Noted;
                pod.call = pod.call.map(|call| Call { noted: true, ..call });
            }
            Action::Write(uid) => next.pod_mut(uid).entry = EndEntry::Written,
            Action::Report(uid) => next.pod_mut(uid).reported = true,
            Action::Stop(uid) | Action::Exit(uid) => next.pod_mut(uid).stop(),
            Action::Return(uid, end) => self.end_call(&mut next, uid, Some(end)),
            Action::Lose(uid) => {
                next.left.losses -= 1;
                self.end_call(&mut next, uid, None);
            }
            Action::Observe(uid) => {
                let pod = next.pod_mut(uid);
                (pod.view, pod.observed_once) = (pod.observe(), true);
            }
            Action::FailObservation(uid) => {
                next.left.lies -= 1;
                let pod = next.pod_mut(uid);
                (pod.view, pod.observed_once) = (Observed::Never, true);
            }
            Action::Compare => {
                for uid in world.uids().filter(|uid| world.pod(*uid).record.is_some()) {
                    let desired = world.pod(uid).desired().is_some();
                    self.drive(&mut next, uid, RecordEvent::Known { desired }, |_| Event::Known { desired });
                }
                next.pass = Pass::Compared { known: next.those(|pod| pod.record.is_some()) };
            }
            Action::List | Action::ListWrongly(_) => {
                let Pass::Compared { known } = world.pass else { return None };
                let runs = world.those(Pod::is_running);
                let mut listed = runs;
                if let Action::ListWrongly(uid) = action {
                    next.left.lies -= 1;
                    listed ^= uid.bit();
                }
                next.pass = Pass::Listed { known, list: List { listed, missed: runs & !listed } };
            }
            Action::Plan => {
                let Pass::Listed { known, list } = world.pass else { return None };
                // Just before, the store of final statuses drops pods that are neither desired nor known.
                let is_needed = |pod: &Pod| pod.desired().is_some() || pod.record.is_some();
                next.pods.iter_mut().filter(|pod| !is_needed(pod)).for_each(|pod| pod.entry = EndEntry::Nothing);
                let orders = self.plan(&next, known, list.listed);
                next.pass = Pass::Ordered { list, orders };
            }
            Action::Apply => self.apply_next(&mut next),
            Action::Tidy => self.tidy(&mut next),
            Action::StartZombie(uid) => {
                next.left.zombies -= 1;
                let pod = next.pod_mut(uid);
                (pod.containers, pod.life.excused) = (ContainersState::Running, true);
            }
            Action::Crash => {
                next = self.start(world.pods.len(), world.left);
                next.left.crashes -= 1;
                next.ready = false;
                for (new, old) in next.pods.iter_mut().zip(&world.pods) {
                    (new.config, new.rejected, new.containers) = (old.config, old.rejected, old.containers);
                    (new.directory, new.view, new.observed_once) = (old.directory, Observed::Never, false);
                    new.reported = old.reported;
                    if old.entry == EndEntry::Written && !self.mutates(Mutation::ForgetsFinalStatuses) {
                        new.entry = EndEntry::Written;
                    }
                }
            }
        }
        if !self.lags {
            next.pods.iter_mut().for_each(|pod| (pod.view, pod.observed_once) = (pod.observe(), true));
        }
        next.check_state(self);
        (next != *world).then_some(next)
    }

    pub(super) fn update(&self, world: &mut World, uid: Uid, request: Request) {
        if world.pod(uid).record.is_some() {
            let update = request.clone();
            self.drive(world, uid, RecordEvent::Update(request), |waiters| {
                Event::Update(self.update_of(uid, update, waiters))
            });
            return;
        }
        let mut waiters = Waiters::default();
        let pod = world.pod_mut(uid);
        pod.life = Life::default();
        let is_ended = request.form().is_some_and(Form::is_failed);
        let mut observed = if is_ended { pod.view } else { Observed::Never };
        if self.mutates(Mutation::TreatsUnobservedAsStopped) && observed == Observed::Never {
            observed = Observed::Stopped;
        }
        let (record, effects) =
            new_record(self.update_of(uid, request.clone(), &mut waiters), observed, context(false));
        pod.woken = true; // A new worker begins at once.
        if record.wants_name() {
            pod.queued = true;
            world.queue.join(self.objects.uid(uid));
        }
        self.apply_effects(world, uid, RecordEvent::NewRecord(request), None, record, effects, waiters);
    }

    fn update_of(&self, uid: Uid, request: Request, waiters: &mut Waiters) -> Update {
        let update = match request.target {
            PendingTarget::Runtime => Update::kill_runtime(self.objects.running(uid)),
            PendingTarget::Config(form) => {
                let pod = self.objects.pod(uid, form).clone();
                match request.kind {
                    UpdateKind::Create => Update::create(pod),
                    UpdateKind::Update => Update::changed(pod),
                    UpdateKind::Sync => Update::sync(pod),
                    UpdateKind::Kill => Update::kill(pod),
                }
            }
        };
        let options = KillOptions {
            completed: request.waiter.map(|number| waiters.add(number)),
            evict: request.evict,
            status_fn: request.status_fn.map(|number| self.objects.editor(number).clone()),
            grace: request.grace.map(Grace::from_seconds),
        };
        update.with_options(options)
    }

    fn take(&self, world: &mut World, uid: Uid) {
        world.pod_mut(uid).woken = false;
        let World { pods, queue, .. } = world;
        let pod = &pods[uid as usize];
        let Some(frozen) = &pod.record else { return };
        let mut waiters = Waiters::default();
        let record = frozen.thaw(uid, &self.objects, &mut waiters);
        // Like the engine's `take`.
        let mut may_start = match pod.queued {
            true if record.wants_name() => self.claim(queue, self.objects.uid(uid)),
            true | false => true,
        };
        if self.mutates(Mutation::StartsWaitingPods) {
            may_start = true;
        }
        let mut observed = if record.wants_observation() { pod.view } else { Observed::Never };
        if self.mutates(Mutation::SkipsObservation) {
            observed = Observed::Never;
        }
        drop(record);
        self.drive(world, uid, RecordEvent::Take, |_| Event::Take { may_start, observed });
    }

    /// The call returns, or its worker is lost.
    fn end_call(&self, world: &mut World, uid: Uid, end: Option<End>) {
        let pod = world.pod_mut(uid);
        let Some(call) = pod.call.take() else { return };
        let outcome = match end {
            Some(End::Continues) => Outcome::Continues { check_at: None },
            Some(End::Ended) => Outcome::Ended,
            Some(End::Succeeded) => Outcome::Succeeded,
            Some(End::Cancelled) => Outcome::Cancelled,
            Some(End::Failed) | None => Outcome::Failed {
                error: "out of luck".to_owned(),
                retry: SyncRetry::Backoff,
                cause: FailureCause::Unknown,
            },
        };
        pod.woken = true; // The worker continues by itself, and a new one begins at once.
        if end == Some(End::Succeeded) {
            match call.hook {
                Hook::Terminating => pod.life.stopped = true,
                Hook::Terminated => pod.life.cleaned = true,
                Hook::Sync | Hook::TerminatingRuntime => {}
            }
        }
        if pod.record.is_some() {
            let event = RecordEvent::Done { hook: call.hook, end: end.unwrap_or(End::Failed) };
            self.drive(world, uid, event, |_| Event::Done(outcome));
        }
    }

    /// Thaws the record, steps it, mutates the result, and applies the effects.
    fn drive(&self, world: &mut World, uid: Uid, event: RecordEvent, to_event: impl FnOnce(&mut Waiters) -> Event) {
        let Some(before) = world.pod_mut(uid).record.take() else { return };
        let mut waiters = Waiters::default();
        let mut record = before.thaw(uid, &self.objects, &mut waiters);
        let input = to_event(&mut waiters);
        let effects = step(&mut record, input, context(matches!(event, RecordEvent::Due)));
        self.apply_effects(world, uid, event, Some(before), record, effects, waiters);
    }

    #[expect(clippy::too_many_arguments, reason = "a step with its input and its result")]
    fn apply_effects(
        &self,
        world: &mut World,
        uid: Uid,
        event: RecordEvent,
        before: Option<Frozen>,
        record: Record,
        mut effects: Effects,
        mut waiters: Waiters,
    ) {
        let called = effects.call.take().map(|call| self.called(call));
        if self.mutates(Mutation::LosesNotifiers) {
            effects.completed.clear();
        }
        effects.completed.into_iter().for_each(|notifier| notifier.complete());
        let mut done = StepEffects {
            wake: effects.wake,
            cancel: effects.cancel,
            notified: waiters.notified(),
            leave: effects.name == NameMove::Leave,
            called,
            end: effects.end,
            forget: effects.forget,
        };
        let mut after = Frozen::of(record, &self.objects, &mut waiters);
        if let Some(mutation) = self.mutation {
            mutation.apply(&event, before.as_ref(), &mut after, &mut done);
        }
        world.check_step(uid, &event, before.as_ref(), &after, &done);
        self.perform(world, uid, &event, after, done);
    }

    /// Applies the effects like the engine and the worker's loop.
    fn perform(&self, world: &mut World, uid: Uid, event: &RecordEvent, after: Frozen, done: StepEffects) {
        let mut next = None;
        let World { pods, queue, .. } = &mut *world;
        let pod = &mut pods[uid as usize];
        pod.life.remember(event, &after);
        if (done.forget || done.leave) && std::mem::take(&mut pod.queued) {
            next = self.leave(queue, self.objects.uid(uid));
        }
        if let (true, Some(call)) = (done.cancel, &mut pod.call) {
            call.cancelled = true;
        }
        pod.waiting.retain(|number| !done.notified.contains(number));
        pod.woken |= done.wake;
        if let Some(called) = done.called {
            pod.life.called = true;
            pod.life.set_up |= called.hook == Hook::Sync;
            pod.call = Some(Call { hook: called.hook, cancelled: false, noted: false });
        }
        // A static pod that was stopped before its start while no observation of it succeeded: see the module.
        pod.life.excused |= after.has_ended() && !pod.life.stopped && pod.is_running() && pod.view == Observed::Never;
        if done.end {
            pod.woken = false;
        }
        if done.forget {
            pod.life = Life::default();
        } else {
            pod.record = Some(after);
        }
        if let Some(next) = next.filter(|_| !self.mutates(Mutation::SkipsWakeUpOfNextPod)) {
            let next = world.pod_mut(self.objects.which(&next));
            next.woken |= next.record.is_some();
        }
    }

    fn called(&self, call: HookCall) -> Called {
        let called = |hook, form| Called { hook, form, grace: None, status_fn: None };
        match call {
            HookCall::Sync(work) => called(Hook::Sync, Some(self.objects.form(&work.pod))),
            HookCall::Terminating(work) => Called {
                grace: Some(work.grace.seconds()),
                status_fn: work.status_fn.map(|editor| self.objects.editor_number(&editor)),
                ..called(Hook::Terminating, Some(self.objects.form(&work.pod)))
            },
            HookCall::TerminatingRuntime(..) => called(Hook::TerminatingRuntime, None),
            HookCall::Terminated(pod) => called(Hook::Terminated, Some(self.objects.form(&pod))),
        }
    }
}
