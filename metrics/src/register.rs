//! Registers families by the exact name that scrapers see, with help in the kubelet's form.

use prometheus_client::registry::{Metric, Registry};

/// Counters that the kubelet exposes without `_total` (Kubernetes 1.36). OpenMetrics demands the suffix even for them;
/// the classic format shows these names unchanged.
pub(crate) const COUNTERS_WITHOUT_TOTAL: [&str; 13] = [
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "kubelet_evented_pleg_connection_error_count",
    "kubelet_evented_pleg_connection_success_count",
    "kubelet_evictions",
    "kubelet_pleg_discard_events",
    "kubelet_pod_resources_endpoint_errors_get",
    "kubelet_pod_resources_endpoint_errors_get_allocatable",
    "kubelet_pod_resources_endpoint_errors_list",
    "kubelet_pod_resources_endpoint_requests_get",
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    "kubelet_pod_resources_endpoint_requests_list",
    "kubelet_preemptions",
    "kubelet_server_expiration_renew_errors",
];

/// Registers a family with the kubelet's name and meaning. Most of them have the stability ALPHA.
pub(crate) fn kubelet<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    family(registry, name, format!("[ALPHA] {help}"), metric)
}

/// Registers a family of the kubelet with the stability BETA.
pub(crate) fn kubelet_beta<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    family(registry, name, format!("[BETA] {help}"), metric)
}

/// Registers a family of the kubelet with the stability INTERNAL.
pub(crate) fn kubelet_internal<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    family(registry, name, format!("[INTERNAL] {help}"), metric)
}

/// Registers a family that only podwright has.
pub(crate) fn podwright<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    family(registry, name, help.to_owned(), metric)
}

/// `help` has no full stop; the registry adds it.
fn family<M: Metric + Clone>(registry: &mut Registry, name: &str, help: String, metric: M) -> M {
    // The registry takes a counter's name without the suffix and adds it when it encodes.
    registry.register(name.strip_suffix("_total").unwrap_or(name), help, metric.clone());
    metric
}
