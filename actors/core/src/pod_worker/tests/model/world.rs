//! The world around the records, and its actions.

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
    /// The queue of the full name of all pods. It is empty unless the pods are static.
    pub(super) queue: StaticNameQueue,
    pub(super) pass: Pass,
    /// Whether every source has delivered its pods.
    pub(super) ready: bool,
    /// The faults that may still happen.
    pub(super) left: Faults,
    /// The laws that were broken on the path to this state. No action follows, so that one cause is reported once.
    pub(super) broken: Broken,
}

/// One pod and its surroundings.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pod {
    /// The pod in its source. Survives a crash.
    pub(super) config: Option<Form>,
    /// Whether the source delivered the pod to this agent.
    pub(super) delivered: bool,
    /// Whether admission rejected the pod. Survives a crash, because a node writes a rejection to the API server or to disk before
    /// it reports it. A node that does neither decides again, like after a crash before the rejection.
    pub(super) rejected: bool,
    /// The progress of the pod's end in the store of final statuses.
    pub(super) entry: EndEntry,
    /// Whether the end of the pod was reported, as long as its source has the pod. Survives a crash.
    pub(super) reported: bool,
    pub(super) record: Option<Frozen>,
    /// Whether the pod is in the queue of its full name.
    pub(super) queued: bool,
    /// Whether the worker was woken and has not taken its turn.
    pub(super) woken: bool,
    pub(super) call: Option<Call>,
    pub(super) life: Life,
    /// The callers that wait until nothing can run.
    pub(super) waiting: Vec<u8>,
    /// The containers. They survive a crash.
    pub(super) containers: ContainersState,
    /// The last observation, which may have any age.
    pub(super) view: Observed,
    /// Whether this agent's observer observed the pod, successfully or not. Nothing is dispatched before.
    pub(super) observed_once: bool,
    /// Whether the pod has a directory. Survives a crash.
    pub(super) directory: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ContainersState {
    Nothing,
    Running,
    Exited,
}

/// The progress of a pod's end in the store of final statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum EndEntry {
    Nothing,
    /// In memory.
    Noted,
    /// On disk. Survives a crash.
    Written,
}

/// A running hook call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Call {
    pub(super) hook: Hook,
    pub(super) cancelled: bool,
    /// The call noted the end of the pod. After that, a setup only reports it.
    pub(super) noted: bool,
}

/// The events since the record was made, for laws about the past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Life {
    /// A hook was called.
    pub(super) called: bool,
    /// Setup was called.
    pub(super) set_up: bool,
    /// The record began as terminated, or a terminate hook succeeded.
    pub(super) stopped: bool,
    /// Cleanup succeeded.
    pub(super) cleaned: bool,
    /// The shortest grace period that was requested since the first request to stop.
    pub(super) requested_grace: Option<u32>,
    /// A fault started containers after the pod had ended, or it ended because the state of the runtime was unknown.
    pub(super) excused: bool,
}

/// The progress of a housekeeping pass. Sets of pods are bits; A is the lowest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    Idle,
    /// The records were compared with the desired pods; these remained.
    Compared {
        known: u8,
    },
    /// The runtime was listed.
    Listed {
        known: u8,
        list: List,
    },
    /// The actions were planned. The lock of the desired pods is held until they are applied.
    Ordered {
        list: List,
        orders: Vec<(Uid, PassAction)>,
    },
    /// The actions were applied. The slow part continues in the background.
    Applied {
        list: List,
    },
}

/// The list of the runtime in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct List {
    pub(super) listed: u8,
    /// The running pods that a fault left out.
    pub(super) missed: u8,
}

/// An action of the plan as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PassAction {
    Create(Form),
    Kill(Form),
    KillRuntime,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Faults {
    pub(super) crashes: u8,
    /// Wrong lists, and wrong or failed observations.
    pub(super) lies: u8,
    /// Zombie containers.
    pub(super) zombies: u8,
    /// Lost workers.
    pub(super) losses: u8,
}

/// The options of a request to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kill {
    /// With the pod's own grace period.
    Plain,
    /// With the evict flag, a status editor and a grace period of 2 seconds.
    Evict,
    /// With an explicit grace period of 0.
    Now,
}

/// The result of a hook call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum End {
    Continues,
    Ended,
    Succeeded,
    Cancelled,
    /// The call failed or panicked.
    Failed,
}

/// One action of the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// A source gets a pod and delivers it.
    Add(Uid, Form),
    /// The source changes the pod.
    Change(Uid, Form),
    /// The source removes the pod.
    Remove(Uid),
    /// A source that had the pod before the agent started delivers it.
    Deliver(Uid),
    /// The same, and admission rejects the pod.
    Reject(Uid),
    /// Every source has delivered its pods.
    Ready,
    /// A caller requests a resync.
    Recheck(Uid),
    /// A caller requests a stop and waits for it.
    Kill(Uid, Kill),
    /// A caller requests the stop of the containers in the runtime.
    KillRuntime(Uid),

    /// The worker takes its turn.
    Take(Uid),
    /// The due time is reached.
    Due(Uid),
    /// The running hook starts the containers.
    Start(Uid),
    /// The running hook stops the containers.
    Stop(Uid),
    /// The running hook returns.
    Return(Uid, End),
    /// The running hook notes the end of the pod.
    Note(Uid),
    /// The noted end is written to disk.
    Write(Uid),
    /// The running hook reports the end.
    Report(Uid),

    /// The containers end by themselves.
    Exit(Uid),
    /// The observer observes the pod.
    Observe(Uid),

    /// The pass compares the records with the desired pods (POD-K3).
    Compare,
    /// The pass lists the runtime (POD-K4).
    List,
    /// The pass plans its actions.
    Plan,
    /// The pass applies one action (POD-K10 to POD-K12).
    Apply,
    /// In the background, zombie containers are stopped and unused directories are removed (POD-W9, POD-K7).
    Tidy,
    /// All steps of a pass without another action between them.
    Pass,

    /// Fault: the agent crashes and a new one starts. Containers and files stay.
    Crash,
    /// Fault: the worker's thread is lost.
    Lose(Uid),
    /// Fault: an observation fails.
    FailObservation(Uid),
    /// Fault: the pass gets a list that is wrong about one pod.
    ListWrongly(Uid),
    /// Fault: the same in a pass without other actions between its steps.
    PassWrongly(Uid),
    /// Fault: a container that was requested long ago starts.
    StartZombie(Uid),
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

    /// The set of pods for which `is` holds.
    pub(super) fn those(&self, is: impl Fn(&Pod) -> bool) -> u8 {
        self.uids().filter(|uid| is(self.pod(*uid))).map(Uid::bit).sum()
    }

    /// Whether the pass holds the lock that dispatch waits for.
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
            entry: EndEntry::Nothing,
            reported: false,
            record: None,
            queued: false,
            woken: false,
            call: None,
            life: Life::default(),
            waiting: Vec::new(),
            containers: ContainersState::Nothing,
            view: Observed::Stopped,
            observed_once: true,
            directory: false,
        }
    }

    /// The desired pod.
    pub(super) fn desired(&self) -> Option<Form> {
        self.config.filter(|_| self.delivered)
    }

    /// The desired form after the final status: a pod that has ended is terminal for the engine too.
    pub(super) fn created(&self, form: Form) -> Form {
        match form {
            _ if self.entry == EndEntry::Nothing || self.record.is_some() => form,
            Form::Plain | Form::Edited | Form::Failed => Form::Failed,
            Form::Deleting | Form::DeletingNow | Form::FailedDeleting => Form::FailedDeleting,
        }
    }

    /// Stops the containers of the pod, those that a fault started too.
    pub(super) fn stop(&mut self) {
        (self.containers, self.life.excused) = (ContainersState::Exited, false);
    }

    pub(super) fn is_running(&self) -> bool {
        self.containers == ContainersState::Running
    }

    pub(super) fn observe(&self) -> Observed {
        if self.is_running() { Observed::Running } else { Observed::Stopped }
    }

    pub(super) fn lifecycle(&self) -> Option<Lifecycle> {
        self.record.as_ref().map(Frozen::lifecycle)
    }

    /// Whether the pod has a worker without a running hook call.
    pub(super) fn is_idle(&self) -> bool {
        self.call.is_none() && self.record.as_ref().is_some_and(|record| !record.is_finished())
    }

    /// Whether the worker would find work in its next turn.
    pub(super) fn has_work(&self) -> bool {
        self.record.as_ref().is_some_and(|record| record.pending.is_some())
    }
}
