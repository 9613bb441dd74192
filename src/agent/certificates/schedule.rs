//! Decides when a certificate is requested, and with which credentials. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::pair::Validity;

/// The parts of a certificate's lifetime after which the certificate is renewed, at the earliest and at the latest (upstream
/// `certificate_manager.go`, `nextRotationDeadline`, client-go 1.36).
const RENEWAL: (f64, f64) = (0.7, 0.9);
/// The delay after the first failed request, and the longest delay. Each failure doubles the delay (upstream
/// `certificate_manager.go`, client-go 1.36: four doubled delays from 2 s, then a request every 32 s).
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(32));

/// The content of the kubeconfig that the agent finds at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundKubeconfig {
    /// The file does not exist.
    Missing,
    /// The file is a kubeconfig, but its certificate or another file that it names cannot be used.
    Unusable,
    /// The user has a certificate.
    Certificate(Validity),
    /// The user has a token or another credential.
    Other,
}

/// Where the agent gets its credentials from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CredentialSource {
    /// The agent uses the kubeconfig, and does not renew the credentials.
    Use,
    /// The agent uses the certificate of the kubeconfig, and renews the certificate.
    Renew,
    /// The agent requests a certificate with the bootstrap kubeconfig.
    Request,
    /// There are no credentials.
    Fail,
}

/// The source of the credentials for an agent that finds this kubeconfig at its start.
pub(super) fn credential_source(found: FoundKubeconfig, has_bootstrap: bool, now: Timestamp) -> CredentialSource {
    match (found, has_bootstrap) {
        (FoundKubeconfig::Missing | FoundKubeconfig::Unusable, false) => CredentialSource::Fail,
        (FoundKubeconfig::Missing | FoundKubeconfig::Unusable, true) => CredentialSource::Request,
        (FoundKubeconfig::Certificate(validity), true) if validity.has_ended(now) => CredentialSource::Request,
        (FoundKubeconfig::Certificate(_), true) => CredentialSource::Renew,
        (FoundKubeconfig::Other, _) | (FoundKubeconfig::Certificate(_), false) => CredentialSource::Use,
    }
}

/// When a certificate is renewed. `received` is when the agent received the certificate, if that is known: a cluster may issue
/// certificates whose validity started long before. `jitter` is from 0 to 1.
pub(super) fn renewal(validity: Validity, received: Option<Timestamp>, jitter: f64) -> Timestamp {
    let start = received.filter(|received| *received > validity.not_before).unwrap_or(validity.not_before);
    let lifetime = validity.not_after.duration_since(start).max(SignedDuration::ZERO);
    let part = RENEWAL.0 + (RENEWAL.1 - RENEWAL.0) * jitter;
    start.saturating_add(lifetime.mul_f64(part)).unwrap_or(validity.not_after)
}

/// The delay before the next request after this many failed ones. `jitter` is from 0 to 1.
pub(super) fn retry_delay(failures: u32, jitter: f64) -> Duration {
    let delay = RETRY.0.saturating_mul(1 << failures.saturating_sub(1).min(10)).min(RETRY.1);
    delay.mul_f64(1.0 + jitter / 10.0)
}

/// A certificate in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldCertificate {
    pub(super) validity: Validity,
    pub(super) renew_at: Timestamp,
}

/// The credentials with which a certificate is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Requester {
    /// The certificate in use.
    Current,
    /// The bootstrap kubeconfig.
    Bootstrap,
}

/// The credentials of a request that is due. `None` if no request is due.
pub(super) fn due(held: Option<HeldCertificate>, retry_at: Option<Timestamp>, now: Timestamp) -> Option<Requester> {
    if retry_at.is_some_and(|retry_at| now < retry_at) {
        return None;
    }
    match held {
        None => Some(Requester::Bootstrap),
        Some(held) if held.validity.has_ended(now) => Some(Requester::Bootstrap),
        Some(held) => (now >= held.renew_at).then_some(Requester::Current),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + seconds).unwrap()
    }

    fn from_to(from: i64, to: i64) -> Validity {
        Validity { not_before: at(from), not_after: at(to) }
    }

    #[test]
    fn agent_requests_a_certificate_if_the_kubeconfig_has_none_that_is_valid() {
        let valid = FoundKubeconfig::Certificate(from_to(0, 100));
        for (found, has_bootstrap, now, expected) in [
            (FoundKubeconfig::Missing, false, 0, CredentialSource::Fail),
            (FoundKubeconfig::Unusable, false, 0, CredentialSource::Fail),
            (FoundKubeconfig::Missing, true, 0, CredentialSource::Request),
            (FoundKubeconfig::Unusable, true, 0, CredentialSource::Request),
            (valid, true, 99, CredentialSource::Renew),
            (valid, true, 100, CredentialSource::Request),
            (valid, false, 99, CredentialSource::Use),
            // The administrator may replace the file at any time.
            (valid, false, 100, CredentialSource::Use),
            (FoundKubeconfig::Other, true, 0, CredentialSource::Use),
            (FoundKubeconfig::Other, false, 0, CredentialSource::Use),
        ] {
            assert_eq!(credential_source(found, has_bootstrap, at(now)), expected, "{found:?} {has_bootstrap} {now}");
        }
    }

    #[test]
    fn certificate_is_renewed_after_70_to_90_percent_of_its_lifetime() {
        let year = from_to(0, 1000);
        assert_eq!(renewal(year, None, 0.0), at(700));
        assert_eq!(renewal(year, None, 1.0), at(900));
        assert_eq!(renewal(year, None, 0.5), at(800));
        // The validity started before the certificate was issued.
        assert_eq!(renewal(year, Some(at(900)), 0.0), at(970));
        assert_eq!(renewal(year, Some(at(-5)), 0.0), at(700), "the clock of the signer is ahead");
        assert_eq!(renewal(year, Some(at(2000)), 0.5), at(2000), "the certificate has expired already");
    }

    #[test]
    fn failed_requests_are_repeated_after_2_to_32_seconds() {
        let delays: Vec<u64> = (1..8).map(|failures| retry_delay(failures, 0.0).as_secs()).collect();
        assert_eq!(delays, [2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(retry_delay(1, 1.0), Duration::from_millis(2200));
        assert_eq!(retry_delay(u32::MAX, 0.0), RETRY.1);
    }

    #[test]
    fn request_is_due_at_the_renewal_and_uses_the_bootstrap_credentials_after_the_expiry() {
        let held = Some(HeldCertificate { validity: from_to(0, 100), renew_at: at(80) });
        assert_eq!(due(None, None, at(0)), Some(Requester::Bootstrap));
        assert_eq!(due(held, None, at(79)), None);
        assert_eq!(due(held, None, at(80)), Some(Requester::Current));
        assert_eq!(due(held, None, at(100)), Some(Requester::Bootstrap));
        for held in [None, held] {
            assert_eq!(due(held, Some(at(200)), at(199)), None, "a failed request waits for its delay");
        }
        assert_eq!(due(held, Some(at(90)), at(90)), Some(Requester::Current));
    }
}
