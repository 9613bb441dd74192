//! A record as plain data: only the facts that decide the next steps.
//!
//! These are left out: absolute times (there is a due time or there is none, and it may be reached at any point), the history,
//! the number and the errors of failures, mirror pods, the kinds and start times of updates, and the times since which a pod
//! waits. None of them decides a transition; the tables beside this model test them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::world::Uid;
use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::pod_worker::lifecycle::{Cause, Failure, History, Hook, Lifecycle};
use crate::pod_worker::state::{
    Finished, Flags, Pending, Record, RunningHook, Started, State, Stop, Terminated, Terminating, Waiting, Work,
};
use crate::pod_worker::step::StepContext;
use crate::pod_worker::update::{Completed, Config, Notifier, StatusEditor, Target, UpdateKind};
use crate::ports::{FailureCause, RunningPod, StatusFn};
use crate::testing::pod;
use crate::time::{Grace, Time};

/// A version of a pod in its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    Plain,
    /// Another version of the spec.
    Edited,
    /// Deletion timestamp, grace 5.
    Deleting,
    /// Deletion timestamp, grace 0.
    DeletingNow,
    /// Phase Failed.
    Failed,
    /// Phase Failed and a deletion timestamp, grace 5.
    FailedDeleting,
}

impl Form {
    const ALL: [Form; 6] =
        [Form::Plain, Form::Edited, Form::Deleting, Form::DeletingNow, Form::Failed, Form::FailedDeleting];

    /// The grace period of the pod itself, in seconds.
    pub(super) fn own_grace(self) -> u32 {
        match self {
            Form::Plain | Form::Edited | Form::Failed => 30,
            Form::Deleting | Form::FailedDeleting => 5,
            Form::DeletingNow => 1,
        }
    }

    pub(super) fn is_deleting(self) -> bool {
        matches!(self, Form::Deleting | Form::DeletingNow | Form::FailedDeleting)
    }

    pub(super) fn is_failed(self) -> bool {
        matches!(self, Form::Failed | Form::FailedDeleting)
    }
}

/// The objects of all pods. They are made once, so each form has exactly one object.
pub(super) struct Objects {
    pods: Vec<[Arc<PodObject>; 6]>,
    uids: [PodUid; 2],
    editors: [StatusFn; 2],
}

impl Objects {
    pub(super) fn new(statics: bool) -> Self {
        let form = |uid: Uid, form: Form| {
            let mut builder = pod("web").uid(uid.as_str());
            if statics {
                builder = builder.static_pod();
            }
            if form.is_failed() {
                builder = builder.phase("Failed");
            }
            match form {
                Form::Plain | Form::Failed => builder,
                Form::Edited => builder.label("v", "2"),
                Form::Deleting | Form::FailedDeleting => builder.deleting(5),
                Form::DeletingNow => builder.deleting(0),
            }
            .build()
        };
        let editor =
            |reason: &'static str| -> StatusFn { Arc::new(move |status| status.reason = Some(reason.to_owned())) };
        Objects {
            pods: Uid::ALL.map(|uid| Form::ALL.map(|f| form(uid, f))).into(),
            uids: Uid::ALL.map(|uid| PodUid::new(uid.as_str())),
            editors: [editor("first"), editor("second")],
        }
    }

    pub(super) fn pod(&self, uid: Uid, form: Form) -> &Arc<PodObject> {
        &self.pods[uid as usize][form as usize]
    }

    pub(super) fn uid(&self, uid: Uid) -> &PodUid {
        &self.uids[uid as usize]
    }

    pub(super) fn which(&self, uid: &PodUid) -> Uid {
        if *uid == self.uids[0] { Uid::A } else { Uid::B }
    }

    pub(super) fn form(&self, pod: &Arc<PodObject>) -> Form {
        let of = self.which(pod.uid());
        Form::ALL
            .into_iter()
            .find(|form| Arc::ptr_eq(self.pod(of, *form), pod))
            .expect("pods are shared and never copied")
    }

    pub(super) fn running(&self, uid: Uid) -> RunningPod {
        RunningPod { uid: self.uid(uid).clone(), full_name: FullName::new("test", "web") }
    }

    pub(super) fn editor(&self, number: u8) -> &StatusFn {
        &self.editors[usize::from(number)]
    }

    pub(super) fn editor_number(&self, editor: &StatusFn) -> u8 {
        u8::from(!Arc::ptr_eq(editor, &self.editors[0]))
    }

    fn config(&self, uid: Uid, form: Form) -> Config {
        Config { pod: self.pod(uid, form).clone(), mirror: None }
    }

    fn target(&self, uid: Uid, target: PendingTarget) -> Target {
        match target {
            PendingTarget::Config(form) => Target::Config(self.config(uid, form)),
            PendingTarget::Runtime => Target::Runtime(Arc::new(self.running(uid))),
        }
    }
}

const NOW: Time = Time::from_secs(1_000);
const LATER: Time = Time::from_secs(2_000);

/// Every step happens now, except that a due time has always been reached.
pub(super) fn context(is_due: bool) -> StepContext {
    StepContext {
        now: if is_due { LATER } else { NOW },
        jitter: 0.0,
        resync: Duration::from_secs(60),
        error_backoff: Duration::from_secs(10),
    }
}

/// A record as plain data. See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Frozen {
    pub(super) stage: Stage,
    pub(super) pending: Option<PendingTarget>,
    pub(super) running: Option<Hook>,
    pub(super) due: bool,
    pub(super) failing: Option<Hook>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Waiting { refused: bool },
    Sync(Form),
    Terminating(Stopping),
    Terminated { config: Option<Form>, flags: FrozenFlags },
    Finished { flags: FrozenFlags },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stopping {
    pub(super) of: StopOf,
    pub(super) flags: FrozenFlags,
    pub(super) grace: u32,
    pub(super) forced: bool,
    pub(super) waiters: Vec<u8>,
    pub(super) status_fn: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum StopOf {
    Unstarted { observed_runtime: bool },
    Started { form: Form, noticed: bool },
    Runtime,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PendingTarget {
    Config(Form),
    Runtime,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct FrozenFlags {
    pub(super) deleted: bool,
    pub(super) evicted: bool,
    pub(super) restart_requested: bool,
}

impl From<Flags> for FrozenFlags {
    fn from(flags: Flags) -> Self {
        let Flags { deleted, evicted, restart_requested } = flags;
        FrozenFlags { deleted, evicted, restart_requested }
    }
}

impl From<FrozenFlags> for Flags {
    fn from(flags: FrozenFlags) -> Self {
        let FrozenFlags { deleted, evicted, restart_requested } = flags;
        Flags { deleted, evicted, restart_requested }
    }
}

/// The other ends of the notifiers in a thawed record.
#[derive(Default)]
pub(super) struct Waiters(Vec<(u8, Completed)>);

impl Waiters {
    pub(super) fn add(&mut self, number: u8) -> Notifier {
        let (notifier, completed) = Notifier::new();
        self.0.push((number, completed));
        notifier
    }

    /// The waiters that were notified since the last call.
    pub(super) fn notified(&mut self) -> Vec<u8> {
        let mut notified = Vec::new();
        self.0.retain_mut(|(number, completed)| {
            let is_notified = completed.now_or_never() == Some(true);
            if is_notified {
                notified.push(*number);
            }
            !is_notified
        });
        notified
    }
}

impl Frozen {
    pub(super) fn lifecycle(&self) -> Lifecycle {
        match &self.stage {
            Stage::Waiting { .. } => Lifecycle::Waiting,
            Stage::Sync(_) => Lifecycle::Sync,
            Stage::Terminating(_) => Lifecycle::Terminating,
            Stage::Terminated { .. } => Lifecycle::Terminated,
            Stage::Finished { .. } => Lifecycle::Finished,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lifecycle() >= Lifecycle::Terminated
    }

    pub(super) fn is_finished(&self) -> bool {
        self.lifecycle() == Lifecycle::Finished
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.lifecycle() >= Lifecycle::Terminating
    }

    pub(super) fn stopping(&self) -> Option<&Stopping> {
        match &self.stage {
            Stage::Terminating(stopping) => Some(stopping),
            _ => None,
        }
    }

    pub(super) fn stopping_mut(&mut self) -> Option<&mut Stopping> {
        match &mut self.stage {
            Stage::Terminating(stopping) => Some(stopping),
            _ => None,
        }
    }

    pub(super) fn flags(&self) -> FrozenFlags {
        match &self.stage {
            Stage::Waiting { .. } | Stage::Sync(_) => FrozenFlags::default(),
            Stage::Terminating(stopping) => stopping.flags,
            Stage::Terminated { flags, .. } | Stage::Finished { flags } => *flags,
        }
    }

    pub(super) fn flags_mut(&mut self) -> Option<&mut FrozenFlags> {
        match &mut self.stage {
            Stage::Waiting { .. } | Stage::Sync(_) => None,
            Stage::Terminating(stopping) => Some(&mut stopping.flags),
            Stage::Terminated { flags, .. } | Stage::Finished { flags } => Some(flags),
        }
    }

    /// The spec that the worker acts on.
    pub(super) fn active(&self) -> Option<Form> {
        match &self.stage {
            Stage::Sync(form) => Some(*form),
            Stage::Terminating(Stopping { of: StopOf::Started { form, .. }, .. }) => Some(*form),
            Stage::Terminated { config, .. } => *config,
            Stage::Waiting { .. } | Stage::Terminating(_) | Stage::Finished { .. } => None,
        }
    }

    pub(super) fn thaw(&self, uid: Uid, objects: &Objects, waiters: &mut Waiters) -> Record {
        let state = match &self.stage {
            Stage::Waiting { refused } => {
                State::Waiting(if *refused { Waiting::Blocked { since: NOW } } else { Waiting::New })
            }
            Stage::Sync(form) => State::Sync(Started { config: objects.config(uid, *form) }),
            Stage::Terminating(stopping) => State::Terminating(Box::new(Terminating {
                stop: match stopping.of {
                    StopOf::Unstarted { observed_runtime } => Stop::Unstarted { observed_runtime },
                    StopOf::Started { form, noticed: false } => Stop::Requested { config: objects.config(uid, form) },
                    StopOf::Started { form, noticed: true } => Stop::Begun { config: objects.config(uid, form) },
                    StopOf::Runtime => Stop::Runtime { running: Arc::new(objects.running(uid)) },
                },
                flags: stopping.flags.into(),
                grace: Grace::from_seconds(stopping.grace.into()),
                forced: stopping.forced,
                notifiers: stopping.waiters.iter().map(|number| waiters.add(*number)).collect(),
                status_fn: stopping.status_fn.map(|number| StatusEditor(objects.editor(number).clone())),
            })),
            Stage::Terminated { config, flags } => State::Terminated(Box::new(Terminated {
                config: config.map(|form| objects.config(uid, form)),
                flags: (*flags).into(),
            })),
            Stage::Finished { flags } => State::Finished(Finished {
                full_name: objects.pod(uid, Form::Plain).full_name().clone(),
                is_static: objects.pod(uid, Form::Plain).is_static(),
                flags: (*flags).into(),
            }),
        };
        let kind = UpdateKind::Sync;
        let pending = self.pending.map(|target| objects.target(uid, target));
        let failure = |hook| {
            Box::new(Failure {
                hook,
                error: "out of luck".to_owned(),
                cause: FailureCause::Unknown,
                count: 1,
                since: NOW,
            })
        };
        Record {
            state,
            pending: pending.map(|target| Pending { kind, target, start_time: None, since: NOW }),
            work: match self.running {
                Some(hook) => Work::Calling(RunningHook { hook, since: NOW, kind, start_time: None }),
                None => Work::Resting { due: self.due.then_some(LATER) },
            },
            failure: self.failing.map(failure),
            history: History::begin(NOW, Cause::FirstUpdate),
        }
    }

    /// The record as data. A notifier becomes the number of its waiter.
    pub(super) fn of(record: Record, objects: &Objects, waiters: &mut Waiters) -> Self {
        let form = |config: &Config| objects.form(&config.pod);
        let (running, due) = (record.running().map(|running| running.hook), record.due().is_some());
        let stage = match record.state {
            State::Waiting(waiting) => Stage::Waiting { refused: matches!(waiting, Waiting::Blocked { .. }) },
            State::Sync(started) => Stage::Sync(form(&started.config)),
            State::Terminating(t) => Stage::Terminating(Stopping {
                of: match t.stop {
                    Stop::Unstarted { observed_runtime } => StopOf::Unstarted { observed_runtime },
                    Stop::Requested { config } => StopOf::Started { form: form(&config), noticed: false },
                    Stop::Begun { config } => StopOf::Started { form: form(&config), noticed: true },
                    Stop::Runtime { .. } => StopOf::Runtime,
                },
                flags: t.flags.into(),
                grace: t.grace.seconds(),
                forced: t.forced,
                waiters: t
                    .notifiers
                    .into_iter()
                    .flat_map(|notifier| {
                        notifier.complete();
                        waiters.notified()
                    })
                    .collect(),
                status_fn: t.status_fn.map(|editor| objects.editor_number(&editor.0)),
            }),
            State::Terminated(t) => Stage::Terminated { config: t.config.as_ref().map(form), flags: t.flags.into() },
            State::Finished(finished) => Stage::Finished { flags: finished.flags.into() },
        };
        Frozen {
            stage,
            pending: record.pending.map(|pending| match &pending.target {
                Target::Config(config) => PendingTarget::Config(form(config)),
                Target::Runtime(_) => PendingTarget::Runtime,
            }),
            running,
            due,
            failing: record.failure.map(|failure| failure.hook),
        }
    }
}
