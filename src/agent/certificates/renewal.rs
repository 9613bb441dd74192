//! The attempts to get a certificate: the certificate in use, and the failed requests.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use ring::rand::{SecureRandom, SystemRandom};

use super::pair::Validity;
use super::schedule::{self, HeldCertificate, Requester};

/// The certificate in use, and the requests that failed since it was issued.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    held: Option<HeldCertificate>,
    failures: u32,
    retry_at: Option<Timestamp>,
}

impl Renewal {
    /// Notes the certificate in use. `received` is when the cluster issued it, if that is known.
    pub(super) fn hold(&mut self, validity: Validity, received: Option<Timestamp>) {
        let renew_at = schedule::renewal(validity, received, random());
        *self = Renewal { held: Some(HeldCertificate { validity, renew_at }), ..Renewal::default() };
    }

    /// Notes that the certificate in use is gone.
    pub(super) fn release(&mut self) {
        self.held = None;
    }

    /// Notes a failed request. Returns the delay before the next one.
    pub(super) fn failed(&mut self, now: Timestamp) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let delay = schedule::retry_delay(self.failures, random());
        self.retry_at = now.saturating_add(SignedDuration::try_from(delay).unwrap_or_default()).ok();
        delay
    }

    /// The credentials of a request that is due. `None` if no request is due.
    pub(super) fn due(&self, now: Timestamp) -> Option<Requester> {
        schedule::due(self.held, self.retry_at, now)
    }

    /// The time until a request may become due.
    pub(super) fn pause(&self, now: Timestamp) -> Option<Duration> {
        let next = self.retry_at.or(self.held.map(|held| held.renew_at))?;
        Duration::try_from(next.duration_since(now)).ok()
    }

    /// Whether a request that waits is still needed.
    pub(super) fn is_needed(&self, now: Timestamp) -> bool {
        schedule::due(self.held, None, now).is_some()
    }

    /// Whether a certificate should replace the certificate in use.
    pub(super) fn is_better(&self, validity: Validity, now: Timestamp) -> bool {
        let latest = schedule::renewal(validity, None, 1.0);
        now < latest && self.held.is_none_or(|held| held.validity.not_after < validity.not_after)
    }

    /// The seconds until the certificate expires: negative after its expiry, infinite without a certificate.
    pub(super) fn ttl(&self, now: Timestamp) -> f64 {
        self.held.map_or(f64::INFINITY, |held| held.validity.not_after.duration_since(now).as_secs_f64())
    }
}

/// A random number from 0 to 1.
fn random() -> f64 {
    let mut bytes = [0; 4];
    // Without random numbers, the nodes of a cluster renew their certificates at the same time.
    let _ = SystemRandom::new().fill(&mut bytes);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_certificate_is_used_if_it_is_newer_and_not_due() {
        let at = |seconds: i64| Timestamp::from_second(1_000_000 + seconds).unwrap();
        let from_to = |from: i64, to: i64| Validity { not_before: at(from), not_after: at(to) };
        let mut renewal = Renewal::default();
        assert!(renewal.is_better(from_to(0, 100), at(50)));
        assert!(!renewal.is_better(from_to(0, 100), at(95)));
        renewal.hold(from_to(0, 100), None);
        assert!(!renewal.is_better(from_to(0, 100), at(50)), "it is the certificate in use");
        assert!(renewal.is_better(from_to(50, 150), at(80)));
        assert!((renewal.ttl(at(40)) - 60.0).abs() < 0.001 && renewal.ttl(at(110)) < 0.0);
        renewal.release();
        assert!(renewal.ttl(at(0)).is_infinite());
    }
}
