//! The same rules once more, written down as a flat record of times and booleans and as naively as they are specified.
//! It shares nothing with the real thing but the vocabulary of its inputs.

use crate::pod_worker::{Hook, UpdateKind};
use crate::ports::Observed;

/// What an update says, reduced to what the rules look at.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) kind: UpdateKind,
    /// `None`: only the runtime knows the pod.
    pub(super) pod: Option<SaidPod>,
    pub(super) mirror: Option<u32>,
    pub(super) start_time: Option<u64>,
    pub(super) notifier: Option<usize>,
    pub(super) evict: bool,
    pub(super) grace: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct SaidPod {
    pub(super) version: u32,
    pub(super) is_static: bool,
    pub(super) deletion: Option<i64>,
    pub(super) spec: i64,
    pub(super) ended: bool,
}

/// A hook call as both sides describe it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Called {
    Sync { kind: UpdateKind, version: u32, mirror: Option<u32> },
    Terminating { version: u32, grace: u32, forced: bool },
    TerminatingRuntime,
    Terminated { version: u32 },
}

impl Called {
    fn hook(&self) -> Hook {
        match self {
            Called::Sync { .. } => Hook::Sync,
            Called::Terminating { .. } => Hook::Terminating,
            Called::TerminatingRuntime => Hook::TerminatingRuntime,
            Called::Terminated { .. } => Hook::Terminated,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Ends {
    Continues(Option<u64>),
    Ended,
    Succeeded,
    Cancelled,
    Failed(u64),
}

/// What both sides do in one step.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Did {
    pub(super) cancel: bool,
    /// Numbers of the notifiers.
    pub(super) told: Vec<usize>,
    pub(super) called: Option<Called>,
    /// Operation (`None`: terminated) and start time of a measured piece of work.
    pub(super) worked: Option<(Option<UpdateKind>, u64)>,
    pub(super) leaves_name: bool,
    pub(super) forgotten: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    pub(super) started_at: Option<u64>,
    pub(super) terminating_at: Option<u64>,
    pub(super) started_terminating: bool,
    pub(super) terminated_at: Option<u64>,
    pub(super) finished: bool,
    pub(super) deleted: bool,
    pub(super) evicted: bool,
    pub(super) restart_requested: bool,
    observed_runtime: bool,
    /// 0: not decided.
    pub(super) grace: u32,
    forced: bool,
    notify: Vec<usize>,
    pub(super) pending: Option<Said>,
    active: Option<Said>,
    mirror: Option<u32>,
    pub(super) hook: Option<(Called, UpdateKind, Option<u64>)>,
    pub(super) blocked: bool,
    pub(super) due: Option<u64>,
    failing: Option<Hook>,
}

/// Delays in nanoseconds as the settings of the test have them, jitter included.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delays {
    pub(super) resync: u64,
    pub(super) error: u64,
    pub(super) name: u64,
}

impl Model {
    pub(super) fn update(&mut self, first: bool, mut said: Said, observed: Observed, now: u64) -> Did {
        let mut did = Did::default();
        let runtime_only = said.pod.is_none();
        let ended = said.pod.as_ref().is_some_and(|pod| pod.ended);
        // U3b, W14
        if first && ended && observed == Observed::Stopped {
            self.terminating_at = Some(now);
            self.terminated_at = Some(now);
            self.started_terminating = true;
        }
        // U5
        if !first && self.terminating_at.is_some() && said.kind == UpdateKind::Create {
            self.restart_requested = true;
            match self.terminated_at {
                Some(_) => did.told.extend(said.notifier),
                None => self.notify.extend(said.notifier),
            }
            return did;
        }
        // U6, and the runtime-only half of U10
        if self.finished || (self.terminated_at.is_some() && runtime_only) {
            did.told.extend(said.notifier);
            return did;
        }
        // U4
        if runtime_only {
            self.observed_runtime = true;
            said.pod = self.pending.as_ref().and_then(|p| p.pod.clone());
            if said.pod.is_none() {
                said.pod = self.active.as_ref().and_then(|a| a.pod.clone());
                said.mirror = said.mirror.or(self.mirror);
            }
        }
        let deleting = said.pod.as_ref().is_some_and(|pod| pod.deletion.is_some());
        let ended = said.pod.as_ref().is_some_and(|pod| pod.ended);
        let kill = said.kind == UpdateKind::Kill;
        // U8, U9, W7
        let becoming = self.terminating_at.is_none() && (runtime_only || deleting || ended || kill);
        if becoming {
            self.request(now);
            did.leaves_name = self.started_at.is_none();
        }
        if self.terminating_at.is_some() {
            self.deleted |= runtime_only || deleting;
            self.evicted |= kill && said.evict;
        }
        let mut shortened = false;
        if self.terminating_at.is_some() && self.terminated_at.is_none() {
            // U11
            self.notify.extend(said.notifier);
            let before = self.grace;
            self.decide(said.pod.as_ref(), said.grace);
            self.forced = true;
            shortened = before != 0 && self.grace != before;
        } else {
            did.told.extend(said.notifier); // U10, U12
        }
        // U14, W18
        if let Some(old) = self.pending.as_ref().and_then(|p| p.start_time) {
            said.start_time = Some(said.start_time.map_or(old, |new| new.min(old)));
        }
        said.mirror = said.mirror.or(self.pending.as_ref().and_then(|p| p.mirror));
        self.pending = Some(said); // U15
        self.blocked = false;
        did.cancel = self.hook.is_some() && (becoming || shortened); // U16
        did
    }

    fn request(&mut self, now: u64) {
        self.terminating_at = Some(now);
        self.due = None;
        self.failing = None;
        self.blocked = false;
    }

    /// Section 6, W5.
    fn decide(&mut self, pod: Option<&SaidPod>, forced: Option<i64>) {
        let mut applied = false;
        for wanted in [pod.and_then(|pod| pod.deletion), forced].into_iter().flatten() {
            let wanted = wanted.max(1) as u32;
            if self.grace == 0 || wanted < self.grace {
                self.grace = wanted;
                applied = true;
            }
        }
        if !applied && self.grace == 0 {
            self.grace = pod.map_or(1, |pod| pod.spec.max(1) as u32);
        }
    }

    pub(super) fn take(&mut self, may_start: bool, observed: Observed, now: u64, delays: Delays) -> Did {
        let mut did = Did::default();
        if self.hook.is_some() {
            return did;
        }
        let Some(said) = self.pending.clone() else { return did };
        let is_static = said.pod.as_ref().is_some_and(|pod| pod.is_static);
        if self.started_at.is_none() && self.terminated_at.is_none() {
            if self.terminating_at.is_none() && is_static && !may_start {
                self.blocked = true;
                self.due = Some(now + delays.name);
                return did;
            }
            // W32
            let seen = self.observed_runtime || observed == Observed::Running;
            if self.terminating_at.is_some() && is_static && !seen {
                self.terminated_at = Some(now);
                self.finished = true;
                self.pending = None;
                did.told.append(&mut self.notify);
                did.worked = said.start_time.map(|start| (None, start));
                return did;
            }
        }
        if said.pod.is_some() {
            self.started_at.get_or_insert(now);
        }
        self.pending = None;
        self.blocked = false;
        self.due = None;
        self.mirror = said.mirror.or(self.mirror);
        self.active = Some(said.clone());
        let version = said.pod.as_ref().map_or(0, |pod| pod.version);
        let call = if self.terminated_at.is_some() {
            Called::Terminated { version }
        } else if self.terminating_at.is_some() {
            self.started_terminating = true;
            match said.pod {
                Some(_) => Called::Terminating { version, grace: self.grace, forced: self.forced },
                None => Called::TerminatingRuntime,
            }
        } else {
            Called::Sync { kind: said.kind, version, mirror: self.mirror }
        };
        if self.failing != Some(call.hook()) {
            self.failing = None;
        }
        self.hook = Some((call.clone(), said.kind, said.start_time));
        did.called = Some(call);
        did
    }

    pub(super) fn done(&mut self, ends: Ends, now: u64, delays: Delays) -> Did {
        let mut did = Did::default();
        let Some((call, kind, start_time)) = self.hook.take() else { return did };
        did.worked = start_time.map(|start| (Some(kind), start));
        match (ends, call) {
            (Ends::Failed(delay), call) => {
                self.due = Some(now + delay);
                self.failing = Some(call.hook());
            }
            (Ends::Cancelled, _) => self.due = Some(now + delays.error),
            (Ends::Continues(check_at), _) => {
                self.failing = None;
                self.due = Some(check_at.unwrap_or(u64::MAX).min(now + delays.resync));
            }
            (Ends::Ended, _) => {
                if self.terminating_at.is_none() {
                    self.request(now);
                    let pod = self.active.as_ref().and_then(|active| active.pod.clone());
                    self.decide(pod.as_ref(), None); // W6
                }
                self.failing = None;
                self.started_terminating = true;
                self.again();
            }
            (Ends::Succeeded, Called::TerminatingRuntime) => {
                did.told.append(&mut self.notify);
                did.forgotten = true;
            }
            (Ends::Succeeded, Called::Terminating { .. }) => {
                self.failing = None;
                self.terminated_at = Some(now);
                did.told.append(&mut self.notify);
                self.again();
            }
            (Ends::Succeeded, Called::Terminated { .. }) => {
                self.failing = None;
                self.finished = true;
                self.pending = None;
                self.due = None;
                did.worked = start_time.map(|start| (None, start));
                did.leaves_name = true;
            }
            (Ends::Succeeded, Called::Sync { .. }) => unreachable!("setup has its own outcomes"),
        }
        did
    }

    fn again(&mut self) {
        self.due = None;
        self.replay();
    }

    fn replay(&mut self) {
        if self.pending.is_none()
            && let Some(active) = &self.active
        {
            let pod = active.pod.clone();
            self.pending = Some(Said {
                kind: UpdateKind::Sync,
                pod,
                mirror: self.mirror,
                start_time: None,
                notifier: None,
                evict: false,
                grace: None,
            });
        }
    }

    pub(super) fn due(&mut self, now: u64) {
        if self.hook.is_none() && self.due.is_some_and(|due| due <= now) {
            self.again();
        }
    }

    /// Section 10, W4, W33.
    pub(super) fn known(&mut self, desired: bool, now: u64) -> Did {
        let mut did = Did::default();
        let never_ran = self.started_at.is_none() && !self.observed_runtime;
        if self.finished && (!desired || self.restart_requested) || !desired && never_ran {
            did.told.append(&mut self.notify);
            did.leaves_name = true;
            did.forgotten = true;
            return did;
        }
        if desired {
            return did;
        }
        self.deleted = true;
        if self.terminating_at.is_none() {
            self.request(now);
            let pod = self.active.as_ref().and_then(|active| active.pod.clone());
            self.decide(pod.as_ref(), None);
            did.cancel = self.hook.is_some();
            self.replay();
        } else if self.hook.is_none() && self.failing.is_none() {
            self.replay();
        }
        did
    }

    pub(super) fn is_working(&self) -> bool {
        self.hook.is_some() || (self.pending.is_some() && !self.blocked)
    }
}
