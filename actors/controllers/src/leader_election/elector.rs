//! Performs the calls of a candidate, and publishes whether it leads.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use podwright_model::text::{error_chain, plain};
use podwright_model::time::Time;
use podwright_ports::{ApiError, Clock, LeaseApi, TokioClock};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::candidate::{Call, CallFailure, Candidate, Event, Moment, Next};
use super::guard::LeaseGuard;
use super::record::JITTER;

/// A problem that stays the same is logged again after this number of failed attempts.
const ATTEMPTS_PER_LOG_LINE: u32 = 30;

/// The maximum length of the name of a leader in the log, in bytes.
const LONGEST_NAME: usize = 256;

/// Whether this replica leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leadership {
    /// It does not lead.
    Following {
        /// The replica that holds the lease, if one is known.
        holder: Option<String>,
        /// Where the admin endpoints of the holder are reachable, if it has written that to the lease.
        address: Option<String>,
        /// Why the last attempt failed, if it did.
        problem: Option<String>,
    },
    /// It leads.
    Leading {
        /// The number of the term. A lease that was lost and taken again begins another term.
        term: u64,
    },
}

impl Leadership {
    /// No replica is known to lead.
    const NOBODY: Leadership = Leadership::Following { holder: None, address: None, problem: None };

    /// Whether the replica leads.
    pub fn is_leading(&self) -> bool {
        matches!(self, Leadership::Leading { .. })
    }
}

/// The election of one replica. It runs in one task.
pub struct Elector {
    api: Arc<dyn LeaseApi>,
    candidate: Candidate,
    /// A clock that does not jump.
    local: TokioClock,
    wall: Arc<dyn Clock>,
    leadership: watch::Sender<Leadership>,
    guard: LeaseGuard,
    /// The leader that was last logged.
    logged_leader: Option<String>,
    problem: Option<String>,
    failures: u32,
}

impl Elector {
    /// An election that has not begun. `wall` gives the times that are written to the lease.
    pub fn new(api: Arc<dyn LeaseApi>, candidate: Candidate, wall: Arc<dyn Clock>) -> Self {
        let leadership = watch::Sender::new(Leadership::NOBODY);
        let local = TokioClock::new();
        let guard = LeaseGuard::new(local);
        Elector { api, candidate, local, wall, leadership, guard, logged_leader: None, problem: None, failures: 0 }
    }

    /// Whether the replica leads. The value changes at the deadline, also while a call has no answer.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// The guard that each call of the leader checks.
    pub fn guard(&self) -> LeaseGuard {
        self.guard.clone()
    }

    /// Takes part in the election until `stop` is cancelled, and then gives the lease back. The caller stops the work of the leader
    /// before it cancels `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let _stopped = stop.run_until_cancelled(self.take_part()).await;
        self.publish(Leadership::NOBODY);
        let limit = self.call_timeout();
        // The process may end without this. Other replicas then wait for the lease duration.
        let release = async {
            let next = self.candidate.step(Event::Release, self.now());
            self.perform(next).await;
        };
        if timeout(limit, release).await.is_err() {
            tracing::warn!("cannot give the lease back: another replica takes it when it expires");
        }
    }

    async fn take_part(&mut self) {
        loop {
            let next = self.candidate.step(Event::Due, self.now());
            self.perform(next).await;
            let wait = self.until_next_attempt();
            self.watching_the_deadline(sleep(wait)).await;
        }
    }

    /// Performs calls until the candidate waits.
    async fn perform(&mut self, mut next: Next) {
        while let Next::Call(call) = next {
            let sent = self.local.now();
            let (api, limit) = (self.api.clone(), self.call_timeout());
            let answer = async {
                let answer = match &call {
                    Call::Read => api.read(),
                    Call::Create(lease) => api.create(lease),
                    Call::Renew(lease) | Call::Replace(lease) | Call::Release(lease) => api.replace(lease),
                };
                timeout(limit, answer).await
            };
            let answer = self.watching_the_deadline(answer).await;
            let answer = answer.unwrap_or_else(|elapsed| Err(ApiError::unavailable(elapsed, None)));
            let answer = answer.map_err(|error| self.failed(&call, &error));
            if answer.is_ok() {
                self.problem = None;
            }
            let answer = answer.map(Box::new);
            next = self.candidate.step(Event::Answered { call, sent, answer }, self.now());
            self.publish_state();
        }
    }

    /// Waits for `work`, and publishes the end of the leadership at the deadline.
    async fn watching_the_deadline<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let Some(until) = self.candidate.leads_until() else { return work.await };
            tokio::select! {
                biased;
                () = sleep(until.since(self.local.now())) => {}
                done = &mut work => return done,
            }
            let next = self.candidate.step(Event::Expired, self.now());
            debug_assert_eq!(next, Next::Wait);
            self.publish_state();
        }
    }

    fn until_next_attempt(&self) -> Duration {
        let period = self.candidate.timing().retry_period;
        match self.candidate.leads_until() {
            Some(_) => period,
            None => period.mul_f64(1.0 + JITTER * fastrand::f64()),
        }
    }

    /// How long a call may take (client-go sets half of the renew deadline, so that a leader has a second attempt).
    fn call_timeout(&self) -> Duration {
        self.candidate.timing().renew_deadline / 2
    }

    fn failed(&mut self, call: &Call, error: &ApiError) -> CallFailure {
        let problem = match (call, error) {
            (Call::Create(lease), ApiError::NotFound) => {
                let namespace = lease.metadata.namespace.as_deref().unwrap_or_default();
                format!(
                    "cannot create the lease: the namespace {namespace} does not exist: create it, or choose another one for the lease"
                )
            }
            (_, ApiError::NotFound) => return CallFailure::NotFound,
            // Another replica was faster.
            (_, ApiError::Conflict(_)) => return CallFailure::Conflict,
            (Call::Read, error) => format!("cannot read the lease: {}", error_chain(error)),
            (Call::Create(_), error) => format!("cannot create the lease: {}", error_chain(error)),
            (Call::Renew(_) | Call::Replace(_) | Call::Release(_), error) => {
                format!("cannot write the lease: {}", error_chain(error))
            }
        };
        let problem = match error {
            ApiError::Refused(_) => format!("{problem}: permit the verbs get, create and update on leases"),
            _ => problem,
        };
        if self.problem.as_ref() != Some(&problem) || self.failures >= ATTEMPTS_PER_LOG_LINE {
            self.failures = 0;
            tracing::warn!(problem, "the election of the leader failed; it is tried again");
        }
        self.failures += 1;
        self.problem = Some(problem);
        CallFailure::Other
    }

    fn publish_state(&mut self) {
        self.publish(match self.candidate.leads(self.local.now()) {
            true => Leadership::Leading { term: self.candidate.term() },
            false => Leadership::Following {
                holder: self.candidate.holder().map(str::to_owned),
                address: self.candidate.address_of_holder().map(str::to_owned),
                problem: self.problem.clone(),
            },
        });
    }

    fn publish(&mut self, leadership: Leadership) {
        let term = match (&leadership, self.candidate.leads_until()) {
            (Leadership::Leading { term }, Some(deadline)) => Some((*term, deadline)),
            (Leadership::Leading { .. }, None) | (Leadership::Following { .. }, _) => None,
        };
        self.guard.set(term);
        self.log_leader(&leadership);
        let identity = self.candidate.identity();
        self.leadership.send_if_modified(|before| {
            if *before == leadership {
                return false;
            }
            match (&*before, &leadership) {
                (_, Leadership::Leading { term }) => tracing::info!(identity, term, "this replica is the leader"),
                (Leadership::Leading { term }, Leadership::Following { .. }) => {
                    tracing::info!(identity, term, "this replica is not the leader any more");
                }
                (Leadership::Following { .. }, Leadership::Following { .. }) => {}
            }
            *before = leadership;
            true
        });
    }

    /// Logs each replica that leads, once.
    fn log_leader(&mut self, leadership: &Leadership) {
        let leader = match leadership {
            Leadership::Leading { .. } => None,
            Leadership::Following { holder: Some(holder), .. } if holder != self.candidate.identity() => Some(holder),
            // No replica holds the lease at the moment, or this replica has not read it.
            Leadership::Following { .. } => return,
        };
        if self.logged_leader.as_ref() != leader {
            self.logged_leader = leader.cloned();
            if let Some(leader) = leader {
                let identity = self.candidate.identity();
                tracing::info!(identity, leader = %plain(leader, LONGEST_NAME), "another replica is the leader");
            }
        }
    }

    fn now(&self) -> Moment {
        Moment { local: self.local.now(), wall: self.wall_time() }
    }

    fn wall_time(&self) -> Time {
        self.wall.now()
    }
}
