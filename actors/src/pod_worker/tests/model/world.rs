//! What there is besides the records, and what may happen.

use std::fmt;

use super::frozen::{Form, Frozen};
use super::laws::Broken;
use crate::pod_worker::lifecycle::{Hook, Lifecycle};
use crate::pod_worker::static_names::StaticNameQueue;
use crate::ports::Observed;

/// The two pods.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Uid {
    A,
    B,
}

impl Uid {
    pub(super) const ALL: [Uid; 2] = [Uid::A, Uid::B];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Uid::A => "a",
            Uid::B => "b",
        }
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Uid::A => "A",
            Uid::B => "B",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) pods: Vec<Pod>,
    /// The queue of the full name that all of them have. Empty if they are no static pods.
    pub(super) queue: StaticNameQueue,
    pub(super) pass: Pass,
    /// Whether every source delivered.
    pub(super) ready: bool,
    /// How much more may go wrong.
    pub(super) left: Faults,
    /// The laws that the way to here broke. Nothing happens after that, so that one cause is blamed once.
    pub(super) broken: Broken,
}

/// What concerns one UID.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pod {
    /// What its source wants. Survives a crash, as it is the source's.
    pub(super) config: Option<Form>,
    /// Whether the source delivered it to this agent.
    pub(super) delivered: bool,
    /// Whether it was rejected. Survives a crash, as of a node that writes each rejection down before it tells of it, to the
    /// API server or on disk. A node that does neither decides anew, which is a crash before the rejection.
    pub(super) rejected: bool,
    /// What the journal has of its end.
    pub(super) entry: Entry,
    /// Whether somebody was told that it ended, for as long as its source wants it. Survives a crash, as it is theirs.
    pub(super) told: bool,
    pub(super) record: Option<Frozen>,
    /// Whether it has a place in the queue of its full name.
    pub(super) queued: bool,
    /// Whether the worker was woken and has not looked yet.
    pub(super) rung: bool,
    pub(super) call: Option<Call>,
    pub(super) life: Life,
    /// Who waits to be told that nothing can run.
    pub(super) waiting: Vec<u8>,
    /// What runs. Survives a crash.
    pub(super) real: Real,
    /// What the observer said last; as old as can be.
    pub(super) view: Observed,
    /// Whether the observer of this agent looked at all: nothing is dispatched before it did.
    pub(super) looked: bool,
    /// Whether it has a directory. Survives a crash.
    pub(super) directory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Real {
    Nothing,
    Running,
    Exited,
}

/// What the journal has of the end of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Entry {
    Nothing,
    /// In memory.
    Noted,
    /// On disk. Survives a crash.
    Written,
}

/// A hook call under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) hook: Hook,
    pub(super) cancelled: bool,
    /// It had the end of the pod noted: a setup does nothing more then but tell.
    pub(super) noted: bool,
}

/// What happened since the record was made, for laws that look back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Life {
    /// A hook was called.
    pub(super) called: bool,
    /// Setup was called.
    pub(super) set_up: bool,
    /// It was born terminated, or a terminate hook succeeded.
    pub(super) stopped: bool,
    /// Cleanup succeeded.
    pub(super) cleaned: bool,
    /// The shortest grace that somebody asked for since the stop was requested.
    pub(super) asked: Option<u32>,
    /// Containers came by a fault after the pod was over, or it was over because the runtime's state was not known.
    pub(super) excused: bool,
}

/// Where the housekeeping pass is. Sets are bits, A the lowest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    Idle,
    /// The records were compared with what is desired; these remained.
    Compared {
        known: u8,
    },
    /// The runtime was listed.
    Listed {
        known: u8,
        list: List,
    },
    /// What to ask of the engine was decided; the lock of the desired pods is held until it was asked.
    Ordered {
        list: List,
        orders: Vec<(Uid, Asks)>,
    },
    /// What is slow goes on in the background.
    Settled {
        list: List,
    },
}

/// What a pass learnt of the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct List {
    pub(super) listed: u8,
    /// What ran and was left out by a fault.
    pub(super) missed: u8,
}

/// An order of the plan, as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Asks {
    Create(Form),
    Kill(Form),
    KillRuntime,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) crashes: u8,
    /// A list or a look that is wrong, or a look that failed.
    pub(super) lies: u8,
    /// Containers that come from nowhere.
    pub(super) zombies: u8,
    /// Workers that are lost.
    pub(super) losses: u8,
}

/// How somebody asks for a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kill {
    /// By the pod's own grace.
    Plain,
    /// With the evict flag, a status function and grace 2.
    Evict,
    /// With an explicit grace of 0.
    Now,
}

/// How a hook call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum End {
    Continues,
    Ended,
    Succeeded,
    Cancelled,
    /// A panic in a hook is told to the record as a failure too.
    Failed,
}

/// One step of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// A source wants a pod, and says so to the agent.
    Add(Uid, Form),
    /// The source changes it.
    Change(Uid, Form),
    /// Its source wants it no more.
    Remove(Uid),
    /// A source that wanted it before the agent came up delivers it.
    Deliver(Uid),
    /// The same, and admission refuses it.
    Reject(Uid),
    /// Every source delivered.
    Ready,
    /// Somebody wants it to be looked at again.
    Recheck(Uid),
    /// Somebody asks for a stop, and waits for it.
    Kill(Uid, Kill),
    /// Somebody saw containers of it, and asks for their stop.
    KillRuntime(Uid),

    /// The worker looks for work.
    Take(Uid),
    /// The due time has come.
    Due(Uid),
    /// The hook under way starts the containers.
    Start(Uid),
    /// The hook under way stops the containers.
    Stop(Uid),
    /// The hook under way returns.
    Return(Uid, End),
    /// The hook under way has the end of the pod noted in the journal.
    Note(Uid),
    /// What was noted is on disk.
    Write(Uid),
    /// The hook under way tells of the end.
    Tell(Uid),

    /// The containers end by themselves.
    Exit(Uid),
    /// The observer looks.
    Look(Uid),

    /// The pass compares the records with what is desired (K3).
    Compare,
    /// It lists the runtime (K4).
    List,
    /// It decides what to ask of the engine.
    Plan,
    /// It asks for one thing (K10 to K12).
    Obey,
    /// In the background, stray containers are stopped and unused directories removed (W9, K7).
    Tidy,
    /// All of these, and nothing between them.
    Pass,

    /// Fault: the agent dies and another one comes up. What runs and what is on disk stays.
    Crash,
    /// Fault: the worker's thread dies.
    Lose(Uid),
    /// Fault: a look fails.
    MissLook(Uid),
    /// Fault: the pass gets a list that is wrong about one pod.
    ListWrongly(Uid),
    /// Fault: the same in a pass between whose steps nothing comes.
    PassWrongly(Uid),
    /// Fault: a container that was asked for long ago starts.
    Haunt(Uid),
}

impl World {
    pub(super) fn pod(&self, uid: Uid) -> &Pod {
        &self.pods[uid as usize]
    }

    pub(super) fn pod_mut(&mut self, uid: Uid) -> &mut Pod {
        &mut self.pods[uid as usize]
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = Uid> + use<> {
        Uid::ALL.into_iter().take(self.pods.len())
    }

    /// The set of those of which something is true.
    pub(super) fn those(&self, is: impl Fn(&Pod) -> bool) -> u8 {
        self.uids().filter(|uid| is(self.pod(*uid))).map(Uid::bit).sum()
    }

    /// The pass decides under a lock that dispatch waits for.
    pub(super) fn is_locked(&self) -> bool {
        matches!(self.pass, Pass::Ordered { .. })
    }
}

impl Uid {
    pub(super) fn bit(self) -> u8 {
        1 << self as u8
    }

    pub(super) fn is_in(self, set: u8) -> bool {
        set & self.bit() != 0
    }
}

impl Pod {
    pub(super) fn new() -> Self {
        Pod {
            config: None,
            delivered: false,
            rejected: false,
            entry: Entry::Nothing,
            told: false,
            record: None,
            queued: false,
            rung: false,
            call: None,
            life: Life::default(),
            waiting: Vec::new(),
            real: Real::Nothing,
            view: Observed::Stopped,
            looked: true,
            directory: false,
        }
    }

    /// What the pod manager holds.
    pub(super) fn desired(&self) -> Option<Form> {
        self.config.filter(|_| self.delivered)
    }

    /// What a source's word comes to: a pod that is known to be over is over to the engine too.
    pub(super) fn created(&self, form: Form) -> Form {
        match form {
            _ if self.entry == Entry::Nothing || self.record.is_some() => form,
            Form::Plain | Form::Edited | Form::Failed => Form::Failed,
            Form::Deleting | Form::DeletingNow | Form::FailedDeleting => Form::FailedDeleting,
        }
    }

    /// Nothing of it runs any more, whatever made it run.
    pub(super) fn stop(&mut self) {
        (self.real, self.life.excused) = (Real::Exited, false);
    }

    pub(super) fn is_running(&self) -> bool {
        self.real == Real::Running
    }

    pub(super) fn observe(&self) -> Observed {
        if self.is_running() { Observed::Running } else { Observed::Stopped }
    }

    pub(super) fn lifecycle(&self) -> Option<Lifecycle> {
        self.record.as_ref().map(Frozen::lifecycle)
    }

    /// Whether the worker is there and free.
    pub(super) fn is_idle(&self) -> bool {
        self.call.is_none() && self.record.as_ref().is_some_and(|record| !record.is_finished())
    }

    /// Whether a look would find work.
    pub(super) fn has_work(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.pending.is_some())
    }
}
