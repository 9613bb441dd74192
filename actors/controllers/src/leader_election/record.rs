//! The lease as a record: its holder, its duration, and the next version of it. Pure.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use podwright_model::time::Time;

/// The durations of an election. The defaults are those of upstream's controller manager (1.36).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long other replicas wait after the last renewal that they observed.
    pub lease_duration: Duration,
    /// How long a leader tries to renew the lease before it stops leading. Shorter than the lease duration.
    pub renew_deadline: Duration,
    /// The time between two attempts. Shorter than the renew deadline.
    pub retry_period: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// How much longer than the retry period a replica that does not lead waits at most, as a factor (client-go `JitterFactor`, 1.36).
pub(super) const JITTER: f64 = 1.2;

impl Timing {
    /// What is wrong with the durations. `None` if an election can use them.
    pub fn fault(&self) -> Option<&'static str> {
        if self.lease_duration <= self.renew_deadline {
            Some("the lease duration must be longer than the renew deadline")
        } else if self.renew_deadline <= self.retry_period.mul_f64(JITTER) {
            Some("the renew deadline must be longer than 1.2 times the retry period")
        } else if self.lease_duration.subsec_nanos() > 0 {
            // The Lease has whole seconds. Other replicas would wait for less than this one assumes.
            Some("the lease duration must be a whole number of seconds")
        } else if self.retry_period.is_zero() {
            Some("the retry period must be longer than zero")
        } else {
            None
        }
    }
}

/// The namespace and the name of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

/// The annotation of a lease with the admin address of its holder.
const ADDRESS_ANNOTATION: &str = "podwright.dev/admin-address";

/// Where the admin endpoints of the holder are reachable, if the holder has written that.
pub(super) fn address(lease: &Lease) -> Option<&str> {
    holder(lease)?;
    lease.metadata.annotations.as_ref()?.get(ADDRESS_ANNOTATION).map(String::as_str)
}

fn set_address(lease: &mut Lease, address: Option<&str>) {
    let mut annotations = lease.metadata.annotations.take().unwrap_or_default();
    match address {
        Some(address) => drop(annotations.insert(ADDRESS_ANNOTATION.to_owned(), address.to_owned())),
        None => drop(annotations.remove(ADDRESS_ANNOTATION)),
    }
    lease.metadata.annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
}

/// A replica, as it is written to the lease.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Replica {
    pub(super) identity: String,
    /// Where its admin endpoints are reachable from other machines.
    pub(super) address: Option<String>,
    pub(super) timing: Timing,
}

/// The holder of a lease. `None` if the lease is free.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// How long the holder of a lease keeps it without a renewal. Zero if the lease has no positive duration, so that it is free.
pub(super) fn duration(lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds).unwrap_or_default();
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// The first version of a lease.
pub(super) fn created(name: &LeaseName, replica: &Replica, wall: Time) -> Lease {
    let metadata =
        ObjectMeta { namespace: Some(name.namespace.clone()), name: Some(name.name.clone()), ..ObjectMeta::default() };
    let base = Lease { metadata, spec: None };
    let mut lease = held(&base, replica, wall);
    lease.spec.get_or_insert_with(LeaseSpec::default).lease_transitions = Some(0);
    lease
}

/// The lease with this holder, as it is written next. A change of the holder is counted.
pub(super) fn held(base: &Lease, Replica { identity, address, timing }: &Replica, wall: Time) -> Lease {
    let is_renewal = holder(base) == Some(identity.as_str());
    let mut lease = base.clone();
    lease.metadata.managed_fields = None;
    set_address(&mut lease, address.as_deref());
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    let now = MicroTime(wall.to_timestamp());
    if !is_renewal {
        spec.acquire_time = Some(now.clone());
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default().saturating_add(1));
    }
    spec.holder_identity = Some(identity.clone());
    spec.lease_duration_seconds = Some(i32::try_from(timing.lease_duration.as_secs()).unwrap_or(i32::MAX));
    spec.renew_time = Some(now);
    lease
}

/// The lease without a holder. Another replica takes it with its next attempt.
pub(super) fn released(base: &Lease, wall: Time) -> Lease {
    let mut lease = base.clone();
    lease.metadata.managed_fields = None;
    set_address(&mut lease, None);
    let now = MicroTime(wall.to_timestamp());
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(now.clone());
    spec.acquire_time = Some(now);
    lease
}
