//! The controllers of the control plane.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::actors::PanicMetrics;
use crate::encode::{self, Format};
use crate::events::EventMetrics;
use crate::histogram::{Histogram, POD_DELETION};
use crate::register::{kubelet, podwright};
use crate::work_queues::WorkQueueMetrics;

/// The metrics of the controllers over one registry. Clones share their numbers.
#[derive(Clone, Debug)]
pub struct ControllersMetrics {
    /// Panics in handlers and passes.
    pub panics: PanicMetrics,
    /// The ResourceClaim controller.
    pub resource_claims: ResourceClaimControllerMetrics,
    /// The work queues.
    pub work_queues: WorkQueueMetrics,
    /// The events that go to the API server.
    pub events: EventMetrics,
    /// The elections of leaders.
    pub leader_election: LeaderElectionMetrics,
    /// The watches.
    pub watches: WatchMetrics,
    /// The device taint eviction controller.
    pub device_taint_evictions: DeviceTaintEvictionMetrics,
    registry: Arc<Registry>,
}

impl ControllersMetrics {
    /// All controllers, in a new registry.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let panics = PanicMetrics::register(&mut registry);
        ControllersMetrics {
            resource_claims: ResourceClaimControllerMetrics::register(&mut registry),
            work_queues: WorkQueueMetrics::register(&mut registry),
            events: EventMetrics::register(&mut registry, &panics),
            leader_election: LeaderElectionMetrics::register(&mut registry),
            watches: WatchMetrics::register(&mut registry),
            device_taint_evictions: DeviceTaintEvictionMetrics::register(&mut registry),
            panics,
            registry: Arc::new(registry),
        }
    }

    /// Encodes all metrics as the body of a scrape, as [`Metrics::encode`](crate::Metrics::encode) does.
    pub fn encode(&self, format: Format) -> String {
        encode::encode(&self.registry, format)
    }
}

impl Default for ControllersMetrics {
    fn default() -> Self {
        ControllersMetrics::new()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ElectionLabels {
    name: &'static str,
}

/// The elections of leaders.
#[derive(Clone, Debug)]
pub struct LeaderElectionMetrics {
    status: Family<ElectionLabels, Gauge>,
}

impl LeaderElectionMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        LeaderElectionMetrics {
            status: kubelet(
                registry,
                "leader_election_master_status",
                "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. \
                 'name' is the string used to identify the lease. Please make sure to group by name",
                Family::default(),
            ),
        }
    }

    /// Records whether this replica leads, by the name of the lease.
    pub fn leads(&self, lease: &'static str, leads: bool) {
        self.status.get_or_create(&ElectionLabels { name: lease }).set(leads.into());
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    controller: &'static str,
    resource: String,
}

/// The watches of the controllers.
#[derive(Clone, Debug)]
pub struct WatchMetrics {
    failing: Family<WatchLabels, Gauge>,
}

impl WatchMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        WatchMetrics {
            failing: podwright(
                registry,
                "podwright_watch_failing",
                "Whether a watch of a controller fails: 1 from its error until the API server answers the watch, otherwise 0",
                Family::default(),
            ),
        }
    }

    /// Records whether the watch of a controller fails, by the plural of its resource.
    pub fn fails(&self, controller: &'static str, resource: &str, fails: bool) {
        self.failing.get_or_create(&WatchLabels { controller, resource: resource.to_owned() }).set(fails.into());
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CreateLabels {
    status: &'static str,
    admin_access: &'static str,
}

/// The labels of a claim in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClaimSeries {
    allocated: &'static str,
    admin_access: &'static str,
    source: &'static str,
}

impl ClaimSeries {
    /// The series of claims by whether devices are allocated, whether a request has admin access, and the origin of the claims.
    pub const fn new(allocated: bool, admin_access: bool, source: &'static str) -> Self {
        ClaimSeries { allocated: truth(allocated), admin_access: truth(admin_access), source }
    }
}

/// Counts the claims of each series.
type CountClaims = Arc<dyn Fn() -> Vec<(ClaimSeries, u64)> + Send + Sync>;

/// The gauge of claims. They are counted at each scrape.
#[derive(Clone, Default)]
struct Claims(Arc<Mutex<Option<CountClaims>>>);

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Claims")
    }
}

impl EncodeMetric for Claims {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let count = self.0.lock().clone();
        for (series, claims) in count.map(|count| count()).unwrap_or_default() {
            let number = i64::try_from(claims).unwrap_or(i64::MAX);
            ConstGauge::new(number).encode(encoder.encode_family(&series)?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// The ResourceClaim controller.
#[derive(Clone, Debug)]
pub struct ResourceClaimControllerMetrics {
    creates: Family<CreateLabels, Counter>,
    claims: Claims,
}

impl ResourceClaimControllerMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        ResourceClaimControllerMetrics {
            creates: kubelet(
                registry,
                "resourceclaim_controller_creates_total",
                "Number of ResourceClaims creation requests, categorized by creation status and admin access",
                Family::default(),
            ),
            claims: kubelet(
                registry,
                "resourceclaim_controller_resource_claims",
                "Number of ResourceClaims, categorized by allocation status, admin access, and source. Source can be \
                 'resource_claim_template' (created from a template), 'extended_resource' (extended resources), or empty \
                 (manually created by a user)",
                Claims::default(),
            ),
        }
    }

    /// Counts an answered create.
    pub fn created(&self, succeeded: bool, admin_access: bool) {
        let status = if succeeded { "success" } else { "failure" };
        self.creates.get_or_create(&CreateLabels { status, admin_access: truth(admin_access) }).inc();
    }

    /// Counts the claims with `count` at each scrape from now on. `count` must not block, and must not scrape.
    pub fn count_claims(&self, count: impl Fn() -> Vec<(ClaimSeries, u64)> + Send + Sync + 'static) {
        *self.claims.0.lock() = Some(Arc::new(count));
    }
}

/// The device taint eviction controller.
#[derive(Clone, Debug)]
pub struct DeviceTaintEvictionMetrics {
    deletions: Counter,
    durations: Histogram,
}

impl DeviceTaintEvictionMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        DeviceTaintEvictionMetrics {
            deletions: kubelet(
                registry,
                "device_taint_eviction_controller_pod_deletions_total",
                "Total number of Pods deleted by DeviceTaintEvictionController since its start",
                Counter::default(),
            ),
            durations: kubelet(
                registry,
                "device_taint_eviction_controller_pod_deletion_duration_seconds",
                "Latency, in seconds, between the time when a device taint effect has been activated and a Pod's deletion via \
                 DeviceTaintEvictionController",
                Histogram::new(POD_DELETION),
            ),
        }
    }

    /// Counts a pod that was deleted, this long after its eviction was due.
    pub fn deleted(&self, late: Duration) {
        self.deletions.inc();
        self.durations.observe(late);
    }
}

/// A truth value as label.
const fn truth(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}
