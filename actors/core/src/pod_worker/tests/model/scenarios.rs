//! The small worlds that the checker walks.

use super::frozen::Form;
use super::world::{Faults, Kill};

/// The actions and faults of one small world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) pods: usize,
    pub(super) statics: bool,
    /// The forms that a source may begin with, and those that it may change a pod to. It may also remove a pod, and add it again
    /// under the same UID, at any time.
    pub(super) adds: &'static [Form],
    pub(super) changes: &'static [Form],
    pub(super) kills: &'static [Kill],
    pub(super) also: &'static [Also],
    pub(super) faults: Faults,
    /// The number of reachable states. It changes only if the machine or the model changes.
    pub(super) states: usize,
}

/// Further actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Also {
    /// Housekeeping passes with other actions between their steps.
    Pass,
    /// Housekeeping passes without other actions between their steps.
    PassAtOnce,
    /// The observer may lag. Otherwise it observes every change at once.
    Lag,
    Recheck,
    KillRuntime,
    Exit,
    Failure,
    Rejection,
    /// The ends of pods are written and reported.
    FinalStatusStore,
    /// The second pod is the first one after an edit of its manifest: it is desired once the first one is not, and stays desired.
    Edit,
}

const NO_FAULTS: Faults = Faults { crashes: 0, lies: 0, zombies: 0, losses: 0 };

const API_POD: Scenario = Scenario {
    name: "",
    pods: 1,
    statics: false,
    adds: &[Form::Plain],
    changes: &[],
    kills: &[],
    also: &[],
    faults: NO_FAULTS,
    states: 0,
};

const STATIC_POD: Scenario = Scenario { statics: true, ..API_POD };

const TWO_STATIC_PODS: Scenario = Scenario { pods: 2, ..STATIC_POD };

/// Small scenarios, each checked in seconds.
pub(super) const QUICK: &[Scenario] = &[
    Scenario {
        name: "stops of an API pod",
        changes: &[Form::Edited, Form::Deleting],
        kills: &[Kill::Evict, Kill::Now],
        also: &[Also::Failure, Also::Exit],
        faults: Faults { losses: 1, ..NO_FAULTS },
        states: 14_455,
        ..API_POD
    },
    Scenario {
        name: "an API pod, the pass and wrong lists",
        also: &[Also::Pass, Also::Failure],
        faults: Faults { lies: 1, zombies: 1, ..NO_FAULTS },
        states: 35_249,
        ..API_POD
    },
    Scenario {
        name: "an API pod and a crash",
        changes: &[Form::FailedDeleting],
        also: &[Also::Pass, Also::Lag, Also::Rejection],
        faults: Faults { crashes: 1, ..NO_FAULTS },
        states: 22_178,
        ..API_POD
    },
    Scenario {
        name: "a static pod and a crash",
        kills: &[Kill::Plain],
        also: &[Also::Pass, Also::Lag],
        faults: Faults { crashes: 1, ..NO_FAULTS },
        states: 12_971,
        ..STATIC_POD
    },
    Scenario {
        name: "the end of an API pod and a crash",
        kills: &[Kill::Evict],
        also: &[Also::PassAtOnce, Also::Failure, Also::Exit, Also::FinalStatusStore],
        faults: Faults { crashes: 1, ..NO_FAULTS },
        states: 16_675,
        ..API_POD
    },
    Scenario { name: "two static pods of one name", also: &[Also::PassAtOnce], states: 13_659, ..TWO_STATIC_PODS },
    Scenario {
        name: "an edited static pod, kills and a crash",
        kills: &[Kill::Plain],
        also: &[Also::Edit, Also::PassAtOnce, Also::Failure],
        faults: Faults { crashes: 1, ..NO_FAULTS },
        states: 29_601,
        ..TWO_STATIC_PODS
    },
];

/// Larger scenarios, which take minutes.
pub(super) const DEEP: &[Scenario] = &[
    Scenario {
        name: "all stops of an API pod",
        changes: &[Form::Edited, Form::Deleting, Form::DeletingNow],
        kills: &[Kill::Plain, Kill::Evict, Kill::Now],
        also: &[Also::Failure, Also::KillRuntime, Also::Exit, Also::Recheck],
        faults: Faults { losses: 1, ..NO_FAULTS },
        states: 33_948,
        ..API_POD
    },
    Scenario {
        name: "an API pod, evictions and the pass",
        adds: &[Form::Plain, Form::Deleting],
        kills: &[Kill::Evict],
        also: &[Also::Pass, Also::Failure, Also::Exit],
        faults: Faults { zombies: 1, ..NO_FAULTS },
        states: 98_828,
        ..API_POD
    },
    Scenario {
        name: "an API pod, a crash and wrong observations",
        changes: &[Form::FailedDeleting],
        also: &[Also::Pass, Also::Lag, Also::Rejection],
        faults: Faults { crashes: 1, lies: 1, ..NO_FAULTS },
        states: 71_643,
        ..API_POD
    },
    Scenario {
        name: "a static pod, a crash and wrong observations",
        kills: &[Kill::Plain],
        also: &[Also::Pass, Also::Lag, Also::KillRuntime],
        faults: Faults { crashes: 1, lies: 1, ..NO_FAULTS },
        states: 79_470,
        ..STATIC_POD
    },
    Scenario {
        name: "the end of an API pod, deletions, a crash and views that lag",
        changes: &[Form::Deleting],
        kills: &[Kill::Evict],
        also: &[Also::Pass, Also::Lag, Also::Failure, Also::Exit, Also::FinalStatusStore],
        faults: Faults { crashes: 1, ..NO_FAULTS },
        states: 531_144,
        ..API_POD
    },
    Scenario {
        name: "the end of a static pod and a crash",
        kills: &[Kill::Plain],
        also: &[Also::Pass, Also::Lag, Also::Failure, Also::Exit, Also::FinalStatusStore],
        faults: Faults { crashes: 1, ..NO_FAULTS },
        states: 94_858,
        ..STATIC_POD
    },
    Scenario {
        name: "two static pods of one name, pass by steps",
        also: &[Also::Pass],
        states: 151_746,
        ..TWO_STATIC_PODS
    },
    Scenario {
        name: "two static pods of one name, kills and failures",
        kills: &[Kill::Plain],
        also: &[Also::PassAtOnce, Also::Failure],
        states: 101_799,
        ..TWO_STATIC_PODS
    },
    Scenario {
        name: "an edited static pod and all that may go wrong",
        kills: &[Kill::Plain],
        also: &[Also::Edit, Also::PassAtOnce, Also::Lag, Also::Failure],
        faults: Faults { crashes: 1, lies: 1, ..NO_FAULTS },
        states: 559_794,
        ..TWO_STATIC_PODS
    },
];

// Scenarios that show the mutations. Each is as small as possible.

pub(super) const STOPS: Scenario = Scenario {
    name: "stops",
    changes: &[Form::Edited, Form::Deleting],
    kills: &[Kill::Evict, Kill::Now],
    also: &[Also::Failure, Also::Exit, Also::Recheck],
    ..API_POD
};

pub(super) const ORPHANS: Scenario =
    Scenario { name: "orphans", kills: &[Kill::Plain], also: &[Also::PassAtOnce, Also::Failure], ..API_POD };

pub(super) const ZOMBIES: Scenario =
    Scenario { name: "zombies", also: &[Also::PassAtOnce], faults: Faults { zombies: 1, ..NO_FAULTS }, ..API_POD };

pub(super) const NAMES: Scenario = Scenario { name: "names", ..TWO_STATIC_PODS };

pub(super) const NAMES_AGAIN: Scenario =
    Scenario { name: "names that are desired again", also: &[Also::PassAtOnce], ..TWO_STATIC_PODS };

pub(super) const ENDS: Scenario = Scenario {
    name: "ends",
    also: &[Also::Exit, Also::FinalStatusStore],
    faults: Faults { crashes: 1, ..NO_FAULTS },
    ..API_POD
};

pub(super) const RESTARTS: Scenario = Scenario {
    name: "restarts",
    adds: &[Form::Plain, Form::Failed],
    also: &[Also::PassAtOnce, Also::Lag, Also::Rejection],
    faults: Faults { crashes: 1, lies: 1, ..NO_FAULTS },
    ..API_POD
};

pub(super) const STATIC_RESTARTS: Scenario = Scenario {
    name: "restarts of a static pod",
    kills: &[Kill::Plain],
    also: &[Also::Lag],
    faults: Faults { crashes: 1, ..NO_FAULTS },
    ..STATIC_POD
};
