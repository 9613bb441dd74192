//! Claims the lease of the node, and renews it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use podwright_work_queue::Backoff;
use tokio::time::{Instant, sleep};

use super::lease::{self, Claim};
use super::presence::{NodePresence, uid};
use super::registration::Registration;
use crate::ports::ApiError;
use crate::text::error_chain;

/// The delays after a failed call (upstream `backoffEnsureLease`, 1.36).
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(200), longest: Duration::from_secs(7) };
/// How often the lease of another agent is read.
const WATCH_PERIOD: Duration = Duration::from_secs(2);

/// Another agent or a kubelet renews the lease.
#[derive(Debug)]
pub(super) struct Taken;

/// Whether this agent holds the lease while it deletes the node.
pub(super) enum Hold {
    /// This agent has renewed it, so another agent waits. This is the lease as the server stored it.
    Held(Box<Lease>),
    /// The server refuses the lease to this agent.
    Refused,
    /// Another agent or a kubelet has written it.
    Taken,
}

impl NodePresence {
    /// Waits until no other agent holds the lease. Returns the lease that the server has. A server that refuses the read does not
    /// delay the registration.
    pub(super) async fn wait_for_lease(&self) -> Result<Option<Lease>, Taken> {
        let (mut foreign, mut failures, mut first_read) = (None, 0, Instant::now());
        loop {
            let lease = match self.parts.api.lease().await {
                Ok(lease) => Some(lease),
                Err(ApiError::NotFound) => None,
                Err(error @ ApiError::Refused(_)) => {
                    self.report("cannot read the lease of the node", &error);
                    return Ok(None);
                }
                Err(error) => {
                    failures += 1;
                    self.report("cannot read the lease of the node", &error);
                    sleep(BACKOFF.after(failures).max(error.retry_after())).await;
                    continue;
                }
            };
            failures = 0;
            let is_first = foreign.is_none();
            if is_first {
                first_read = Instant::now();
            }
            match lease::claim(lease.as_ref(), &self.parts.settings.instance, foreign, first_read.elapsed()) {
                Claim::Free => return Ok(lease),
                Claim::Taken => return Err(Taken),
                Claim::Wait(found) => {
                    if is_first {
                        let seconds = lease::DURATION.as_secs();
                        tracing::info!(
                            node = self.name(),
                            seconds,
                            "another agent or a kubelet held the lease of the node; waiting to find out whether the lease is renewed"
                        );
                        self.pending(
                            "waiting to find out whether another agent or a kubelet renews the lease of the node"
                                .to_owned(),
                        );
                    }
                    foreign = Some(found);
                    sleep(WATCH_PERIOD).await;
                }
            }
        }
    }

    /// Renews the lease periodically while the node exists. Returns when another agent has taken it.
    pub(super) async fn keep_lease(&self, mut lease: Option<Lease>) {
        loop {
            sleep(lease::RENEWAL_PERIOD).await;
            // A deleted node has no UID that could own the lease, and nobody reads its lease.
            let node = match &*self.progress().borrow() {
                Registration::Registered(node) => uid(node).to_owned(),
                Registration::Pending { .. } | Registration::Deleted(_) | Registration::Taken => continue,
            };
            match self.renew_lease(lease.take(), &node).await {
                Ok(renewed) => lease = renewed,
                Err(Taken) => return,
            }
        }
    }

    /// Writes the lease until that succeeds. `base` is the lease that the server has. A server that refuses the lease ends the attempts,
    /// and the next period tries again.
    pub(super) async fn renew_lease(&self, mut base: Option<Lease>, uid: &str) -> Result<Option<Lease>, Taken> {
        let instance = &self.parts.settings.instance;
        let mut failures = 0;
        loop {
            let error = match self.write_lease(base.clone(), uid).await {
                Ok(lease) => return Ok(Some(lease)),
                Err(ApiError::NotFound) => {
                    base = None;
                    None
                }
                // Somebody else wrote the lease, or an earlier write succeeded although its call failed.
                Err(ApiError::Conflict(_)) => match self.parts.api.lease().await {
                    Ok(lease) if lease::is_own(&lease, instance) => {
                        base = Some(lease);
                        None
                    }
                    Ok(_) => return Err(Taken),
                    Err(ApiError::NotFound) => {
                        base = None;
                        None
                    }
                    Err(error) => Some(error),
                },
                Err(error) => Some(error),
            };
            if let Some(error) = &error {
                tracing::warn!(node = self.name(), error = %error_chain(error), "cannot renew the lease of the node");
                if matches!(error, ApiError::Refused(_)) {
                    return Ok(base);
                }
            }
            let at_least = error.map(|error| error.retry_after()).unwrap_or_default();
            failures += 1;
            sleep(BACKOFF.after(failures).max(at_least)).await;
        }
    }

    /// Renews the lease before the node with this UID is deleted. The server compares the resource version, so no other agent claims
    /// the lease between the read and the write, and none takes it for the next 40 s.
    ///
    /// The server may perform a write late that this agent requested before it ended. So a lease that has changed after the read is read
    /// again, and written once more unless another agent or a kubelet has claimed it. Such a late write changes the lease only once: the
    /// server refuses others of the same resource version.
    ///
    /// # Errors
    /// [`ApiError`] if the server does not answer a read or a write, or if it refuses the second write because the lease has changed again.
    pub(super) async fn hold_lease(&self, uid: &str) -> Result<Hold, ApiError> {
        let found = self.found_lease.lock().clone();
        let mut is_second = false;
        loop {
            let base = match self.parts.api.lease().await {
                Ok(lease) if lease::is_claimed_by_another(&lease, found.as_ref(), &self.parts.settings.instance) => {
                    return Ok(Hold::Taken);
                }
                Ok(lease) => Some(lease),
                Err(ApiError::NotFound) => None,
                Err(ApiError::Refused(_)) => return Ok(Hold::Refused),
                Err(error) => return Err(error),
            };
            match self.write_lease(base, uid).await {
                Ok(lease) => return Ok(Hold::Held(Box::new(lease))),
                Err(ApiError::Refused(_)) => return Ok(Hold::Refused),
                // Somebody wrote or deleted the lease after the read. The next read shows who did.
                Err(ApiError::Conflict(_) | ApiError::NotFound) if !is_second => is_second = true,
                // For the caller, a conflict is one about the node.
                Err(error @ (ApiError::Conflict(_) | ApiError::NotFound)) => {
                    return Err(ApiError::unavailable(error, None));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes the lease once. `base` is the lease that the server has.
    async fn write_lease(&self, base: Option<Lease>, uid: &str) -> Result<Lease, ApiError> {
        let exists = base.is_some();
        let lease = lease::renewed(base, self.name(), uid, &self.parts.settings.instance, self.parts.clock.now());
        if exists { self.parts.api.replace_lease(&lease).await } else { self.parts.api.create_lease(&lease).await }
    }
}
