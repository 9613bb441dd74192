//! The lease of the node: its holder and its next renewal. Pure.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};

use crate::time::Time;

/// How long a lease is valid after its renewal (upstream `nodeLeaseDurationSeconds`, kubelet 1.36).
pub(super) const DURATION: Duration = Duration::from_secs(40);
/// How often the lease is renewed: a quarter of its duration (upstream `nodeLeaseRenewIntervalFraction`, kubelet 1.36).
pub(super) const RENEWAL_PERIOD: Duration = Duration::from_secs(10);
/// The annotation of a lease that identifies the agent that renews it. Every kubelet writes the name of the node as the holder, so
/// the holder does not tell two agents apart.
const INSTANCE: &str = "podwright.dev/instance";
/// The annotation of a lease that repeats the renew time. A kubelet that takes the lease of an agent keeps all annotations and changes the
/// renew time, so the two times tell whether the agent renewed the lease last.
const RENEWED: &str = "podwright.dev/renewed";

/// A lease of another agent or of a kubelet, as it was first read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ForeignLease {
    renewed: jiff::Timestamp,
}

/// Whether this agent may take the lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Claim {
    /// The agent may take it.
    Free,
    /// Another agent may hold it. The lease has to be read again.
    Wait(ForeignLease),
    /// Another agent renews it.
    Taken,
}

/// Decides whether this agent may take the lease. `before` is the result of the last read, and `waited` the time since the first read.
/// Only renewals between two reads of this agent count, however old the lease seems: the clocks of two machines may differ.
pub(super) fn claim(lease: Option<&Lease>, instance: &str, before: Option<ForeignLease>, waited: Duration) -> Claim {
    let Some(lease) = lease.filter(|lease| !is_own(lease, instance)) else { return Claim::Free };
    match (before, renewal(lease)) {
        (_, None) => Claim::Free,
        (None, Some(renewed)) => Claim::Wait(ForeignLease { renewed }),
        (Some(before), Some(renewed)) if before.renewed != renewed => Claim::Taken,
        (Some(_), Some(_)) if waited >= DURATION => Claim::Free,
        (Some(before), Some(_)) => Claim::Wait(before),
    }
}

/// Whether this agent, or an earlier run of it, renewed the lease last.
pub(super) fn is_own(lease: &Lease, instance: &str) -> bool {
    instance_of(lease) == Some(instance)
        && renewal(lease).is_some_and(|renewed| annotation(lease, RENEWED) == Some(text(renewed).as_str()))
}

/// Whether another agent or a kubelet has taken or renewed the lease since this agent found it free. `found` is the lease that this agent
/// found.
pub(super) fn is_claimed_by_another(lease: &Lease, found: Option<&Lease>, instance: &str) -> bool {
    let is_as_found =
        found.is_some_and(|found| instance_of(found) == instance_of(lease) && renewal(found) == renewal(lease));
    !is_own(lease, instance) && !is_as_found
}

/// The instance of the agent that wrote the lease last. A kubelet may have renewed it since. `None` if no agent wrote it.
fn instance_of(lease: &Lease) -> Option<&str> {
    annotation(lease, INSTANCE)
}

fn annotation<'a>(lease: &'a Lease, name: &str) -> Option<&'a str> {
    lease.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// A renew time in an annotation, as exact as the server keeps it.
fn text(renewed: jiff::Timestamp) -> String {
    format!("{renewed:.6}")
}

/// When the lease was renewed last, by the clock of the machine that did it.
fn renewal(lease: &Lease) -> Option<jiff::Timestamp> {
    lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0)
}

/// The lease as it is written next. `base` is the lease that the server has. `uid` is the UID of the Node object, which owns the
/// lease.
pub(super) fn renewed(base: Option<Lease>, node: &str, uid: &str, instance: &str, now: Time) -> Lease {
    let mut lease = base.unwrap_or_else(|| Lease {
        metadata: ObjectMeta { name: Some(node.to_owned()), ..ObjectMeta::default() },
        spec: None,
    });
    lease.metadata.managed_fields = None;
    let renewed = now.to_timestamp();
    let annotations = lease.metadata.annotations.get_or_insert_default();
    annotations.insert(INSTANCE.to_owned(), instance.to_owned());
    annotations.insert(RENEWED.to_owned(), text(renewed));
    lease.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }]);
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(node.to_owned());
    spec.lease_duration_seconds = Some(i32::try_from(DURATION.as_secs()).unwrap_or(i32::MAX));
    spec.renew_time = Some(MicroTime(renewed));
    lease
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_secs(1_800_000_000 + seconds)
    }

    fn lease_of(instance: Option<&str>, renewed_at: u64) -> Lease {
        let mut lease = renewed(None, "n1", "uid", instance.unwrap_or("x"), at(renewed_at));
        if instance.is_none() {
            lease.metadata.annotations = None;
        }
        lease
    }

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn first(lease: &Lease) -> ForeignLease {
        match claim(Some(lease), "a", None, Duration::ZERO) {
            Claim::Wait(found) => found,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn absent_and_own_leases_are_free_at_once() {
        assert_eq!(claim(None, "a", None, after(0)), Claim::Free);
        assert_eq!(claim(Some(&lease_of(Some("a"), 0)), "a", None, after(0)), Claim::Free, "the agent was restarted");
        let empty = Lease { spec: None, ..lease_of(Some("b"), 0) };
        assert_eq!(claim(Some(&empty), "a", None, after(0)), Claim::Free, "nobody renewed it");
    }

    #[test]
    fn lease_that_another_agent_renews_is_taken() {
        for other in [Some("b"), None] {
            let found = first(&lease_of(other, 0));
            assert_eq!(
                claim(Some(&lease_of(other, 0)), "a", Some(found.clone()), after(8)),
                Claim::Wait(found.clone())
            );
            assert_eq!(claim(Some(&lease_of(other, 10)), "a", Some(found), after(10)), Claim::Taken, "{other:?}");
        }
    }

    /// The lease after a kubelet has renewed it.
    fn renewed_by_kubelet(mut lease: Lease, renewed_at: u64) -> Lease {
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(at(renewed_at).to_timestamp()));
        lease
    }

    #[test]
    fn lease_that_a_kubelet_renews_is_not_own_although_the_kubelet_keeps_the_annotations() {
        let (own, taken) = (lease_of(Some("a"), 0), renewed_by_kubelet(lease_of(Some("a"), 0), 3));
        assert!(is_own(&own, "a") && !is_own(&taken, "a"));
        assert!(is_claimed_by_another(&taken, Some(&own), "a") && is_claimed_by_another(&taken, None, "a"));
        assert!(!is_claimed_by_another(&taken, Some(&taken), "a"), "nobody renewed it since it was found");
        let found = first(&taken);
        assert_eq!(claim(Some(&renewed_by_kubelet(own, 13)), "a", Some(found), after(10)), Claim::Taken);
        let back = renewed(Some(taken), "n1", "uid", "a", at(50));
        assert!(is_own(&back, "a"), "the agent has taken it back");
    }

    // The server keeps microseconds.
    #[test]
    fn own_lease_is_recognized_in_the_answer_of_the_server() {
        let now = Time::from_secs(1_800_000_000) + Duration::from_nanos(1_999_999_999);
        for now in [now, at(0)] {
            let written = renewed(None, "n1", "uid", "a", now);
            let stored: Lease = serde_json::from_value(serde_json::to_value(&written).unwrap()).unwrap();
            assert!(is_own(&written, "a") && is_own(&stored, "a"), "{stored:?}");
        }
    }

    #[test]
    fn lease_that_nobody_renews_becomes_free() {
        let lease = lease_of(Some("b"), 0);
        let found = first(&lease);
        assert_eq!(claim(Some(&lease), "a", Some(found.clone()), after(39)), Claim::Wait(found.clone()));
        assert_eq!(claim(Some(&lease), "a", Some(found), after(40)), Claim::Free);
    }

    #[test]
    fn only_a_write_after_the_lease_was_found_free_is_a_claim_by_another_agent() {
        for other in [Some("b"), None] {
            let found = lease_of(other, 0);
            assert!(!is_claimed_by_another(&found, Some(&found), "a"), "{other:?}: nobody renews it");
            assert!(is_claimed_by_another(&found, None, "a"), "{other:?}: there was no lease");
            assert!(is_claimed_by_another(&lease_of(other, 50), Some(&found), "a"), "{other:?}: it is renewed again");
            assert!(is_claimed_by_another(&lease_of(Some("c"), 0), Some(&found), "a"), "{other:?}: a third agent");
            assert!(!is_claimed_by_another(&lease_of(Some("a"), 50), Some(&found), "a"), "{other:?}: the agent itself");
        }
    }

    #[test]
    fn renewed_lease_keeps_what_others_wrote() {
        let mut base = lease_of(Some("a"), 0);
        base.metadata.resource_version = Some("7".to_owned());
        base.metadata.labels = Some([("foreign".to_owned(), "stays".to_owned())].into());
        let lease = renewed(Some(base), "n1", "uid-2", "a", at(10));
        assert_eq!(lease.metadata.resource_version.as_deref(), Some("7"));
        assert!(lease.metadata.labels.is_some());
        let spec = lease.spec.as_ref().unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some("n1"), Some(40)));
        assert_eq!(spec.renew_time, Some(MicroTime(at(10).to_timestamp())));
        assert_eq!(lease.metadata.owner_references.as_ref().unwrap()[0].uid, "uid-2");
        assert!(is_own(&lease, "a") && !is_own(&lease, "b"));
    }
}
