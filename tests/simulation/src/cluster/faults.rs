//! The faults of the API server: of requests, of watches, and its absence.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_model::ids::PodUid;
use podwright_model::time::Time;
use podwright_stand_in::{Fault as ServerFault, Refusal};

use super::{Cluster, target};
use crate::rng::Rng;
use crate::scenario::{Fault, Op};

/// How many of a hundred writes the server performs whose client has gone before the server came to them.
const PERFORMED_AFTER_HANG_UP: u64 = 50;

/// A fault of watches that lasts for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchFault {
    /// The events of pods wait for the end of the fault.
    Held,
    /// The events of pods are late.
    Late,
    /// The server does not report the end of a streaming list of pods.
    EndlessLists,
}

impl Cluster {
    /// Draws a fault for each request of an agent.
    pub(super) fn draw_faults(&self) {
        let (machine, away_until) = (self.machine.clone(), self.away_until.clone());
        self.server.faults().on(move |request| {
            if machine.clock.steady() < *away_until.lock() {
                return Some(ServerFault::DropBefore);
            }
            let (op, pod) = target(&request.method, &request.path);
            let fault = server_fault(machine.draw_fault(op, &pod)?)?;
            machine.note(format!("{} {} gets {fault:?}", request.method, request.path));
            Some(fault)
        });
    }

    /// Draws whether the server performs a write whose client has gone: because the time of the call was over, or because the agent was
    /// killed.
    pub(super) fn draw_hang_ups(&self) {
        let machine = self.machine.clone();
        let mut counts: BTreeMap<(Op, PodUid), u64> = BTreeMap::new();
        self.server.faults().on_hang_up(move |request| {
            let (op, pod) = target(&request.method, &request.path);
            let text = pod.to_string();
            let count = counts.entry((op, pod)).or_default();
            *count += 1;
            let mut rng =
                Rng::of(machine.scenario.seed, &[b"hang up", &[op as u8], text.as_bytes(), &count.to_le_bytes()]);
            let is_performed = rng.percent(PERFORMED_AFTER_HANG_UP);
            let done = if is_performed { "is performed" } else { "is not performed" };
            machine.note(format!("{} {} {done}, and its client has gone", request.method, request.path));
            is_performed
        });
    }

    /// The server cannot be reached for a time.
    pub(crate) fn goes_away(&self, until: Time) {
        {
            let mut end = self.away_until.lock();
            *end = until.max(*end);
        }
        self.drop_watches();
    }

    pub(crate) fn hold_events(&self, until: Time) {
        if !self.lasting.lock().contains_key(&WatchFault::Held) {
            self.server.hold("pods");
        }
        self.lasts(WatchFault::Held, until);
    }

    /// Delays the events of pods by the whole time until then.
    pub(crate) fn delay_events(&self, until: Time) {
        let lag = until.since(self.machine.clock.steady());
        self.server.faults().set_lag("pods", lag);
        self.lasts(WatchFault::Late, until);
    }

    /// The watch begins a list, and the list does not end.
    pub(crate) fn keep_lists_open(&self, until: Time) {
        self.server.faults().hold_list_ends("pods");
        self.lasts(WatchFault::EndlessLists, until);
        self.list_again();
    }

    fn lasts(&self, fault: WatchFault, until: Time) {
        let mut lasting = self.lasting.lock();
        let end = lasting.entry(fault).or_insert(until);
        *end = until.max(*end);
    }

    /// Breaks the connections of all watches. They continue from their versions.
    pub(crate) fn drop_watches(&self) {
        self.server.drop_watches();
    }

    /// The server forgets its history, so that the watches have to list again.
    pub(crate) fn list_again(&self) {
        self.server.compact();
        self.server.drop_watches();
    }

    /// The next time at which a fault of watches ends.
    pub(crate) fn next_change(&self, now: Time) -> Option<Time> {
        self.lasting.lock().values().copied().filter(|end| *end > now).min()
    }

    /// Ends the faults whose time is over.
    pub(crate) fn end_due_faults(&self, now: Time) {
        let mut due = Vec::new();
        self.lasting.lock().retain(|fault, end| {
            let lasts = *end > now;
            due.extend((!lasts).then_some(*fault));
            lasts
        });
        for fault in due {
            match fault {
                WatchFault::Held => self.server.release("pods"),
                WatchFault::Late => self.server.faults().set_lag("pods", Duration::ZERO),
                WatchFault::EndlessLists => self.server.faults().end_lists(),
            }
        }
    }

    pub(crate) fn end_faults(&self) {
        *self.away_until.lock() = Time::ZERO;
        self.lasting.lock().values_mut().for_each(|end| *end = Time::ZERO);
        self.end_due_faults(self.machine.clock.steady());
    }
}

/// The fault of a request that corresponds to a fault of a call. `None` if only other calls can have the fault.
fn server_fault(fault: Fault) -> Option<ServerFault> {
    let timeout = || Refusal::plain(504, "Timeout", "simulated");
    Some(match fault {
        Fault::Error => ServerFault::status(500),
        Fault::ErrorAfter => ServerFault::RefuseAfter(timeout()),
        Fault::Slow(time) => ServerFault::Delay(time),
        Fault::Late(time) => ServerFault::DelayAfter(time),
        Fault::Panic => ServerFault::DropBefore,
        Fault::PanicAfter => ServerFault::DropAfter,
        Fault::Refuses => ServerFault::too_many_requests(1),
        Fault::Omits | Fault::OtherClaim | Fault::OtherDevices | Fault::Lost | Fault::Twice => return None,
    })
}
