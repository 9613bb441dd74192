//! The probes of containers.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::histogram::Histogram;
use crate::labels::label_values;
use crate::register::{kubelet, kubelet_beta};

label_values! {
    /// The kind of a probe (`pkg/kubelet/prober/prober_manager.go`, `probeType`, Kubernetes 1.36).
    pub enum ProbeType {
        /// A startup probe.
        Startup = "Startup",
        /// A liveness probe.
        Liveness = "Liveness",
        /// A readiness probe.
        Readiness = "Readiness",
    }
}

label_values! {
    enum ProbeOutcome {
        Successful = "successful",
        Failed = "failed",
    }
}

/// The container that a probe tests. The kubelet's metrics name it, so each probe has series of its own.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProbedContainer {
    /// The kind of the probe.
    pub probe: ProbeType,
    /// The name of the container.
    pub container: String,
    /// The name of the pod.
    pub pod: String,
    /// The name of the workload that created the pod, or the pod's own name. The durations of a workload's pods are counted together
    /// (`pkg/kubelet/prober/worker.go`, `getPodLabelName`, Kubernetes 1.36).
    pub workload: String,
    /// The namespace of the pod.
    pub namespace: String,
    /// The UID of the pod.
    pub pod_uid: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    container: String,
    namespace: String,
    pod: String,
    pod_uid: String,
    probe_type: ProbeType,
    result: ProbeOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    container: String,
    namespace: String,
    pod: String,
    probe_type: ProbeType,
}

/// The probes of containers.
#[derive(Clone, Debug)]
pub struct ProbeMetrics {
    results: Family<ResultLabels, Counter>,
    durations: Family<DurationLabels, Histogram>,
}

impl ProbeMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        ProbeMetrics {
            results: kubelet_beta(
                registry,
                "prober_probe_total",
                "Cumulative number of a liveness, readiness or startup probe for a container by result",
                Family::default(),
            ),
            durations: kubelet(
                registry,
                "prober_probe_duration_seconds",
                "Duration in seconds for a probe response",
                Family::new_with_constructor(Histogram::request),
            ),
        }
    }

    /// Counts a probe that passed, and its duration with all its attempts.
    pub fn passed(&self, of: &ProbedContainer, took: Duration) {
        self.results.get_or_create(&of.results(ProbeOutcome::Successful)).inc();
        self.durations.get_or_create(&of.durations()).observe(took);
    }

    /// Counts a probe that failed. The kubelet does not measure its duration, and counts no probe that could not run.
    pub fn failed(&self, of: &ProbedContainer) {
        self.results.get_or_create(&of.results(ProbeOutcome::Failed)).inc();
    }

    /// Removes the series of a probe that ended, so that pods which come and go do not add up.
    pub fn ended(&self, of: &ProbedContainer) {
        for outcome in ProbeOutcome::ALL {
            self.results.remove(&of.results(outcome));
        }
        self.durations.remove(&of.durations());
    }
}

impl ProbedContainer {
    fn results(&self, result: ProbeOutcome) -> ResultLabels {
        ResultLabels {
            container: self.container.clone(),
            namespace: self.namespace.clone(),
            pod: self.pod.clone(),
            pod_uid: self.pod_uid.clone(),
            probe_type: self.probe,
            result,
        }
    }

    fn durations(&self) -> DurationLabels {
        DurationLabels {
            container: self.container.clone(),
            namespace: self.namespace.clone(),
            pod: self.workload.clone(),
            probe_type: self.probe,
        }
    }
}
