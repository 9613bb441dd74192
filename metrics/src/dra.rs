//! Dynamic resource allocation.

use std::collections::BTreeMap;
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

use crate::histogram::{DRA_OPERATION, Histogram};
use crate::labels::label_values;
use crate::register::kubelet;

/// The value of the label `driver_name` that stands for all claims.
const ANY_DRIVER: &str = "<any>";

label_values! {
    /// What the node does with the claims of a pod.
    pub enum ClaimOperation {
        /// Makes the devices ready.
        Prepare = "PrepareResources",
        /// Gives the devices back.
        Unprepare = "UnprepareResources",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation_name: ClaimOperation,
    is_error: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    driver_name: Arc<str>,
    method_name: &'static str,
    grpc_status_code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DriverLabel {
    driver_name: Arc<str>,
}

/// The number of prepared claims.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimsInUse {
    /// Of all drivers. A claim of several drivers counts once.
    pub all: usize,
    /// Of each driver that has any.
    pub by_driver: BTreeMap<Arc<str>, usize>,
}

/// Counts the prepared claims.
type CountClaims = Arc<dyn Fn() -> ClaimsInUse + Send + Sync>;

/// The gauge of prepared claims. They are counted at each scrape, and zero before there is anything to count.
#[derive(Clone, Default)]
struct InUse(Arc<Mutex<Option<CountClaims>>>);

impl fmt::Debug for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InUse")
    }
}

impl EncodeMetric for InUse {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let count = self.0.lock().clone();
        let ClaimsInUse { all, by_driver } = count.map(|count| count()).unwrap_or_default();
        for (driver_name, claims) in [(ANY_DRIVER.into(), all)].into_iter().chain(by_driver) {
            let number = i64::try_from(claims).unwrap_or(i64::MAX);
            ConstGauge::new(number).encode(encoder.encode_family(&DriverLabel { driver_name })?)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// ResourceClaims and their drivers.
#[derive(Clone, Debug)]
pub struct DraMetrics {
    operations: Family<OperationLabels, Histogram>,
    calls: Family<CallLabels, Histogram>,
    in_use: InUse,
}

impl DraMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        DraMetrics {
            operations: kubelet(
                registry,
                "dra_operations_duration_seconds",
                "Latency histogram in seconds for the duration of handling all ResourceClaims referenced by a pod when the pod \
                 starts or stops. Identified by the name of the operation (PrepareResources or UnprepareResources) and \
                 separated by the success of the operation. The number of failed operations is provided through the \
                 histogram's overall count",
                Family::new_with_constructor(|| Histogram::new(DRA_OPERATION)),
            ),
            calls: kubelet(
                registry,
                "dra_grpc_operations_duration_seconds",
                "Duration in seconds of the DRA gRPC operations",
                Family::new_with_constructor(|| Histogram::new(DRA_OPERATION)),
            ),
            in_use: kubelet(
                registry,
                "dra_resource_claims_in_use",
                "The number of ResourceClaims that are currently in use on the node, by driver name (driver_name label value) \
                 and across all drivers (special value <any> for driver_name). Note that the sum of all by-driver counts is not \
                 the total number of in-use ResourceClaims because the same ResourceClaim might use devices from different \
                 drivers. Instead, use the count for the <any> driver_name",
                InUse::default(),
            ),
        }
    }

    /// Records the duration of an operation for all claims of a pod.
    pub fn operated(&self, operation_name: ClaimOperation, duration: Duration, success: bool) {
        let is_error = if success { "false" } else { "true" };
        self.operations.get_or_create(&OperationLabels { operation_name, is_error }).observe(duration);
    }

    /// Records a call to a driver. The method has its full name with a leading slash, the code its name in Go's gRPC library.
    pub fn called(&self, driver: &str, method_name: &'static str, grpc_status_code: &'static str, duration: Duration) {
        let labels = CallLabels { driver_name: driver.into(), method_name, grpc_status_code };
        self.calls.get_or_create(&labels).observe(duration);
    }

    /// Counts the prepared claims with `count` at each scrape from now on. `count` must not block, and must not scrape.
    pub fn count_claims_in_use(&self, count: impl Fn() -> ClaimsInUse + Send + Sync + 'static) {
        *self.in_use.0.lock() = Some(Arc::new(count));
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabels {
    socket_path: String,
    state: &'static str,
}

/// The plugins of the node.
#[derive(Clone, Debug)]
pub struct PluginMetrics {
    plugins: Family<PluginLabels, Gauge>,
}

impl PluginMetrics {
    /// Registers the family.
    pub fn register(registry: &mut Registry) -> Self {
        let plugins =
            kubelet(registry, "plugin_manager_total_plugins", "Number of plugins in Plugin Manager", Family::default());
        PluginMetrics { plugins }
    }

    /// Sets whether a registration socket exists (`desired`), and whether its plugin is registered.
    pub fn set(&self, socket_path: &str, desired: bool, registered: bool) {
        for (state, is_set) in [("desired_state_of_world", desired), ("actual_state_of_world", registered)] {
            let labels = PluginLabels { socket_path: socket_path.to_owned(), state };
            if is_set {
                self.plugins.get_or_create(&labels).set(1);
            } else {
                self.plugins.remove(&labels);
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiVersionLabel {
    server_api_version: &'static str,
}

/// The methods of the pod-resources socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodResourcesMethod {
    /// All pods.
    List,
    /// One pod.
    Get,
    /// The resources of the node.
    GetAllocatable,
}

/// Requests of the pod-resources socket.
#[derive(Clone, Debug)]
pub struct PodResourcesMetrics {
    total: Family<ApiVersionLabel, Counter>,
    /// By method, in the order of [`PodResourcesMethod`].
    requests: [Family<ApiVersionLabel, Counter>; 3],
    errors: [Family<ApiVersionLabel, Counter>; 3],
}

impl PodResourcesMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        let mut family = |name: &str, help: &str| kubelet(registry, name, help, Family::default());
        PodResourcesMetrics {
            total: family(
                "kubelet_pod_resources_endpoint_requests_total",
                "Cumulative number of requests to the PodResource endpoint. Broken down by server api version",
            ),
            requests: [
                family(
                    "kubelet_pod_resources_endpoint_requests_list",
                    "Number of requests to the PodResource List endpoint. Broken down by server api version",
                ),
                family(
                    "kubelet_pod_resources_endpoint_requests_get",
                    "Number of requests to the PodResource Get endpoint. Broken down by server api version",
                ),
                family(
                    "kubelet_pod_resources_endpoint_requests_get_allocatable",
                    "Number of requests to the PodResource GetAllocatableResources endpoint. Broken down by server api version",
                ),
            ],
            errors: [
                family(
                    "kubelet_pod_resources_endpoint_errors_list",
                    "Number of requests to the PodResource List endpoint which returned error. Broken down by server api version",
                ),
                family(
                    "kubelet_pod_resources_endpoint_errors_get",
                    "Number of requests to the PodResource Get endpoint which returned error. Broken down by server api version",
                ),
                family(
                    "kubelet_pod_resources_endpoint_errors_get_allocatable",
                    "Number of requests to the PodResource GetAllocatableResources endpoint which returned error. Broken down by \
                     server api version",
                ),
            ],
        }
    }

    /// Counts a request of the service `v1`.
    pub fn answered(&self, method: PodResourcesMethod, success: bool) {
        let label = ApiVersionLabel { server_api_version: "v1" };
        self.total.get_or_create(&label).inc();
        self.requests[method as usize].get_or_create(&label).inc();
        if !success {
            self.errors[method as usize].get_or_create(&label).inc();
        }
    }
}
