//! Decides for one replica: when it takes the lease, how long it leads, and when it stops. Pure.

use k8s_openapi::api::coordination::v1::Lease;
use podwright_model::time::Time;

use super::record::{LeaseName, Replica, Timing, address, created, duration, held, holder, released};

/// One replica in the election.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    replica: Replica,
    name: LeaseName,
    state: State,
    /// How often this replica has become the leader.
    terms: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// Another replica may lead.
    Following { observed: Option<Observed> },
    /// This replica leads until `until`. `lease` is the last version that it wrote.
    Leading { lease: Lease, until: Time },
    /// This replica gives the lease back. `has_read` is set once the newest version was read for that.
    Releasing { has_read: bool },
}

/// A version of the lease, and the time at which this replica first read it.
#[derive(Clone, Debug, PartialEq)]
struct Observed {
    lease: Lease,
    since: Time,
}

/// The time of an event.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// By a clock that neither jumps nor goes back. All decisions use it.
    pub local: Time,
    /// By the wall clock. It is written to the lease for readers, and decides nothing.
    pub wall: Time,
}

/// What happens to a candidate.
#[derive(Clone, Debug)]
pub enum Event {
    /// An attempt is due.
    Due,
    /// A call was answered.
    Answered {
        /// The call.
        call: Call,
        /// The local time at which the call was sent.
        sent: Time,
        /// The lease as the server has it, or why there is none.
        answer: Result<Box<Lease>, CallFailure>,
    },
    /// The renew deadline may be over.
    Expired,
    /// The controller has stopped its work. No call of the election is open.
    Release,
}

/// A call to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    /// Read the lease.
    Read,
    /// Create the lease.
    Create(Box<Lease>),
    /// Replace the lease by the next renewal, without reading it first.
    Renew(Box<Lease>),
    /// Replace the lease after it was read.
    Replace(Box<Lease>),
    /// Replace the lease by one without a holder.
    Release(Box<Lease>),
}

/// Why a call has no lease as its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFailure {
    /// The lease does not exist.
    NotFound,
    /// The lease has another version, or exists already.
    Conflict,
    /// The call was refused, or has no answer.
    Other,
}

/// What follows an event.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub enum Next {
    /// Perform the call, and report its answer.
    Call(Call),
    /// Wait for the next attempt.
    Wait,
    /// The election ends. The lease was given back, or could not be given back.
    End,
}

impl Candidate {
    /// A replica that follows. No two replicas may have the same identity.
    pub fn new(identity: impl Into<String>, name: LeaseName, timing: Timing) -> Self {
        let replica = Replica { identity: identity.into(), address: None, timing };
        Candidate { replica, name, state: State::Following { observed: None }, terms: 0 }
    }

    /// Sets the address at which other machines reach the admin endpoints of this replica. A leader writes it to the lease.
    #[must_use]
    pub fn with_address(mut self, address: Option<String>) -> Self {
        self.replica.address = address;
        self
    }

    /// Its identity.
    pub fn identity(&self) -> &str {
        &self.replica.identity
    }

    /// The durations of the election.
    pub fn timing(&self) -> Timing {
        self.replica.timing
    }

    /// Until when this replica leads, by its local clock. `None` if it does not lead.
    pub fn leads_until(&self) -> Option<Time> {
        match self.state {
            State::Leading { until, .. } => Some(until),
            State::Following { .. } | State::Releasing { .. } => None,
        }
    }

    /// Whether this replica leads at a local time.
    pub fn leads(&self, now: Time) -> bool {
        self.leads_until().is_some_and(|until| now < until)
    }

    /// The number of the current or last term as the leader. The first term has the number 1.
    pub fn term(&self) -> u64 {
        self.terms
    }

    /// The holder of the lease that was last read or written.
    pub fn holder(&self) -> Option<&str> {
        match &self.state {
            State::Following { observed } => holder(&observed.as_ref()?.lease),
            State::Leading { .. } => Some(self.identity()),
            State::Releasing { .. } => None,
        }
    }

    /// Where the admin endpoints of the holder are reachable, according to the lease that was last read.
    pub fn address_of_holder(&self) -> Option<&str> {
        match &self.state {
            State::Following { observed } => address(&observed.as_ref()?.lease),
            State::Leading { .. } | State::Releasing { .. } => None,
        }
    }

    /// One step. Total: no I/O, no clock, no panic.
    pub fn step(&mut self, event: Event, now: Moment) -> Next {
        match event {
            Event::Expired => {
                self.expire(now.local);
                Next::Wait
            }
            Event::Due => {
                self.expire(now.local);
                match &self.state {
                    State::Leading { lease, .. } => Next::Call(Call::Renew(Box::new(self.next_version(lease, now)))),
                    State::Following { .. } => Next::Call(Call::Read),
                    State::Releasing { .. } => Next::End,
                }
            }
            Event::Answered { call, sent, answer } => {
                self.expire(now.local);
                self.answered(&call, sent, answer.map(|lease| *lease), now)
            }
            Event::Release => self.release(now),
        }
    }

    /// Stops leading at the deadline.
    fn expire(&mut self, now: Time) {
        if let State::Leading { lease, until } = &self.state
            && now >= *until
        {
            self.state = State::Following { observed: Some(Observed { lease: lease.clone(), since: now }) };
        }
    }

    fn answered(&mut self, call: &Call, sent: Time, answer: Result<Lease, CallFailure>, now: Moment) -> Next {
        if let State::Releasing { has_read } = self.state {
            return self.answered_release(call, answer, has_read, now);
        }
        match (call, answer) {
            (Call::Read, Ok(lease)) => self.observed(lease, now),
            (Call::Read, Err(CallFailure::NotFound)) => {
                Next::Call(Call::Create(Box::new(created(&self.name, &self.replica, now.wall))))
            }
            (Call::Create(_) | Call::Renew(_) | Call::Replace(_), Ok(lease)) => {
                // The server may have stored the lease at any time since the call was sent, and others count from then.
                let until = sent + self.replica.timing.renew_deadline;
                if !matches!(self.state, State::Leading { .. }) {
                    self.terms += 1;
                }
                self.state = State::Leading { lease, until };
                self.expire(now.local);
                Next::Wait
            }
            // Another client has changed the lease, or an earlier renewal of this replica, whose answer was lost.
            (Call::Renew(_), Err(CallFailure::Conflict | CallFailure::NotFound)) => Next::Call(Call::Read),
            (Call::Read | Call::Create(_) | Call::Renew(_) | Call::Replace(_), Err(_)) | (Call::Release(_), _) => {
                Next::Wait
            }
        }
    }

    /// Decides on a lease that was read.
    fn observed(&mut self, lease: Lease, now: Moment) -> Next {
        let is_own = holder(&lease) == Some(self.identity());
        if is_own && matches!(self.state, State::Leading { .. }) {
            return Next::Call(Call::Replace(Box::new(self.next_version(&lease, now))));
        }
        let since = match &self.state {
            // Every write counts as a renewal. The times in the lease do not: a wrong clock may repeat a time.
            State::Following { observed: Some(observed) } if is_same_version(&observed.lease, &lease) => observed.since,
            State::Following { .. } | State::Leading { .. } | State::Releasing { .. } => now.local,
        };
        let is_free = is_own || holder(&lease).is_none() || now.local >= since + duration(&lease);
        let next = match is_free {
            true => Next::Call(Call::Replace(Box::new(self.next_version(&lease, now)))),
            false => Next::Wait,
        };
        self.state = State::Following { observed: Some(Observed { lease, since }) };
        next
    }

    fn next_version(&self, lease: &Lease, now: Moment) -> Lease {
        held(lease, &self.replica, now.wall)
    }

    fn release(&mut self, now: Moment) -> Next {
        let next = match &self.state {
            State::Leading { lease, .. } => Next::Call(Call::Release(Box::new(released(lease, now.wall)))),
            // The deadline is over, or the answer that would have made this replica the leader was lost.
            State::Following { observed: Some(observed) } if holder(&observed.lease) == Some(self.identity()) => {
                Next::Call(Call::Read)
            }
            State::Following { .. } | State::Releasing { .. } => Next::End,
        };
        self.state = State::Releasing { has_read: false };
        next
    }

    fn answered_release(
        &mut self,
        call: &Call,
        answer: Result<Lease, CallFailure>,
        has_read: bool,
        now: Moment,
    ) -> Next {
        match (call, answer) {
            (Call::Read, Ok(lease)) if holder(&lease) == Some(self.identity()) => {
                self.state = State::Releasing { has_read: true };
                Next::Call(Call::Release(Box::new(released(&lease, now.wall))))
            }
            (Call::Release(_), Err(CallFailure::Conflict)) if !has_read => Next::Call(Call::Read),
            _ => Next::End,
        }
    }
}

fn is_same_version(one: &Lease, other: &Lease) -> bool {
    let (one, other) = (&one.metadata, &other.metadata);
    one.uid == other.uid && one.resource_version == other.resource_version
}
