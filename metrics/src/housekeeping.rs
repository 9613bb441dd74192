//! Metrics of the housekeeping passes.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::labels::label_values;
use crate::register::{kubelet, podwright};

label_values! {
    /// The lifecycle of a pod that the engine has a record of.
    pub enum Lifecycle {
        /// The pod is expected to run, or waits for its start.
        Sync = "sync",
        /// No container may start; some may still run.
        Terminating = "terminating",
        /// No container runs; the cleanup is not complete.
        Terminated = "terminated",
    }
}

/// What the node's sources know about a pod that the engine has a record of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodConfig {
    /// A source desires the pod.
    Desired {
        /// Whether the pod is static.
        is_static: bool,
    },
    /// No source desires the pod any more.
    Orphan {
        /// Whether the pod was static.
        is_static: bool,
    },
    /// A runtime-only pod.
    RuntimeOnly,
}

/// The number of pods that the engine has a record of: one number for each of the 15 possible combinations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkingPods([[u64; Lifecycle::ALL.len()]; CONFIGS.len()]);

impl WorkingPods {
    /// Counts one more pod.
    pub fn add(&mut self, config: PodConfig, lifecycle: Lifecycle) {
        let row = match config {
            PodConfig::Desired { is_static: false } => 0,
            PodConfig::Desired { is_static: true } => 1,
            PodConfig::Orphan { is_static: false } => 2,
            PodConfig::Orphan { is_static: true } => 3,
            PodConfig::RuntimeOnly => 4,
        };
        self.0[row][lifecycle as usize] += 1;
    }
}

/// The labels of each row of [`WorkingPods`].
const CONFIGS: [(Config, Static); 5] = [
    (Config::Desired, Static::No),
    (Config::Desired, Static::Yes),
    (Config::Orphan, Static::No),
    (Config::Orphan, Static::Yes),
    (Config::RuntimeOnly, Static::Unknown),
];

/// A number of pods, by origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BySource {
    /// Pods from a file or URL.
    pub static_pods: usize,
    /// Pods from the API server.
    pub api_pods: usize,
}

/// For each phase, the age of the oldest stay of a pod in it; zero without pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldestPhases {
    /// Not yet allowed to start.
    pub waiting: Duration,
    /// Expected to run.
    pub sync: Duration,
    /// No container may start.
    pub terminating: Duration,
    /// No container runs; the cleanup is in progress.
    pub terminated: Duration,
}

label_values! {
    enum Config {
        Desired = "desired",
        Orphan = "orphan",
        RuntimeOnly = "runtime_only",
    }
}

label_values! {
    enum Static {
        No = "",
        Yes = "true",
        Unknown = "unknown",
    }
}

label_values! {
    enum Phase {
        Waiting = "waiting",
        Sync = "sync",
        Terminating = "terminating",
        Terminated = "terminated",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StaticLabel {
    r#static: Static,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkingLabels {
    config: Config,
    lifecycle: Lifecycle,
    r#static: Static,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    lifecycle: Phase,
}

type Seconds = Gauge<f64, AtomicU64>;

/// Metrics of the housekeeping passes. Every series exists, with value 0, before the first pass.
#[derive(Clone, Debug)]
pub struct HousekeepingMetrics {
    desired_pods: Split<Gauge>,
    active_pods: Split<Gauge>,
    mirror_pods: Gauge,
    working_pods: [[Gauge; Lifecycle::ALL.len()]; CONFIGS.len()],
    restarted_pods: Split<Counter>,
    orphaned_runtime_pods: Counter,
    cleaned_volumes: Gauge,
    cleaned_volumes_errors: Gauge,
    admission_pods: Gauge,
    zombie_containers: Counter,
    oldest_phases: [Seconds; Phase::ALL.len()],
}

/// The two series of a family that separates static pods from others.
#[derive(Clone, Debug)]
struct Split<M> {
    api: M,
    r#static: M,
}

impl<M: Clone + Default> From<Family<StaticLabel, M>> for Split<M> {
    fn from(family: Family<StaticLabel, M>) -> Self {
        Split {
            api: family.get_or_create_owned(&StaticLabel { r#static: Static::No }),
            r#static: family.get_or_create_owned(&StaticLabel { r#static: Static::Yes }),
        }
    }
}

impl HousekeepingMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        let working_pods: Family<WorkingLabels, Gauge> = kubelet(
            registry,
            "kubelet_working_pods",
            "Pods that the engine has a record of, by what the sources know of them and by lifecycle",
            Family::default(),
        );
        let oldest_phases: Family<PhaseLabel, Seconds> = podwright(
            registry,
            "podwright_oldest_phase_seconds",
            "Age of the phase that some pod has been in longest, by phase",
            Family::default(),
        );
        HousekeepingMetrics {
            desired_pods: kubelet(
                registry,
                "kubelet_desired_pods",
                "Pods that the sources desire on this node",
                Family::default(),
            )
            .into(),
            active_pods: kubelet(
                registry,
                "kubelet_active_pods",
                "Pods whose resources count in the admission of another pod",
                Family::default(),
            )
            .into(),
            mirror_pods: kubelet(
                registry,
                "kubelet_mirror_pods",
                "Mirror pods that this node knows of",
                Gauge::default(),
            ),
            working_pods: CONFIGS.map(|(config, r#static)| {
                Lifecycle::ALL
                    .map(|lifecycle| working_pods.get_or_create_owned(&WorkingLabels { config, lifecycle, r#static }))
            }),
            restarted_pods: kubelet(
                registry,
                "kubelet_restarted_pods_total",
                "Pods that were created again under the same UID before the earlier pod had finished",
                Family::default(),
            )
            .into(),
            orphaned_runtime_pods: kubelet(
                registry,
                "kubelet_orphaned_runtime_pods_total",
                "Pods found in the runtime that the engine did not know",
                Counter::default(),
            ),
            cleaned_volumes: kubelet(
                registry,
                "kubelet_orphan_pod_cleaned_volumes",
                "Orphaned pod directories whose volumes the last sweep inspected",
                Gauge::default(),
            ),
            cleaned_volumes_errors: kubelet(
                registry,
                "kubelet_orphan_pod_cleaned_volumes_errors",
                "Orphaned pod directories that the last sweep failed to clean",
                Gauge::default(),
            ),
            admission_pods: podwright(
                registry,
                "podwright_admission_pods",
                "Pods that admission counts: the active ones, those about to stop, and orphans whose containers may still run",
                Gauge::default(),
            ),
            zombie_containers: podwright(
                registry,
                "podwright_zombie_containers_total",
                "Containers found running in pods whose containers had all been stopped",
                Counter::default(),
            ),
            oldest_phases: Phase::ALL.map(|lifecycle| oldest_phases.get_or_create_owned(&PhaseLabel { lifecycle })),
        }
    }

    /// Sets the number of desired pods.
    pub fn desired_pods(&self, pods: BySource) {
        self.desired_pods.set(pods);
    }

    /// Sets the number of active pods as in the kubelet: desired pods that are neither terminal nor rejected.
    pub fn active_pods(&self, pods: BySource) {
        self.active_pods.set(pods);
    }

    /// Sets the number of mirror pods.
    pub fn mirror_pods(&self, pods: usize) {
        self.mirror_pods.set(pods as i64);
    }

    /// Sets all 15 series of working pods.
    pub fn working_pods(&self, pods: &WorkingPods) {
        for (gauge, count) in self.working_pods.iter().flatten().zip(pods.0.iter().flatten()) {
            gauge.set(*count as i64);
        }
    }

    /// Counts a pod that restarts under a UID whose earlier pod was just forgotten.
    pub fn restarted(&self, is_static: bool) {
        let series = if is_static { &self.restarted_pods.r#static } else { &self.restarted_pods.api };
        series.inc();
    }

    /// Counts a runtime-only pod.
    pub fn orphaned_runtime_pod(&self) {
        self.orphaned_runtime_pods.inc();
    }

    /// Sets the result of a cleanup of orphaned pod directories.
    pub fn cleaned_volumes(&self, directories: usize, failed: usize) {
        self.cleaned_volumes.set(directories as i64);
        self.cleaned_volumes_errors.set(failed as i64);
    }

    /// Sets the number of pods that admission counts: active pods, pods that are about to stop, and orphans that still terminate (POD-W1).
    pub fn admission_pods(&self, pods: usize) {
        self.admission_pods.set(pods as i64);
    }

    /// Counts containers that run in pods whose containers had all been stopped (POD-W9).
    pub fn zombie_containers(&self, containers: usize) {
        self.zombie_containers.inc_by(containers as u64);
    }

    /// Sets the age of the oldest stay in each phase (POD-W10).
    pub fn oldest_phases(&self, ages: &OldestPhases) {
        let OldestPhases { waiting, sync, terminating, terminated } = ages;
        for (gauge, age) in self.oldest_phases.iter().zip([waiting, sync, terminating, terminated]) {
            gauge.set(age.as_secs_f64());
        }
    }
}

impl Split<Gauge> {
    fn set(&self, pods: BySource) {
        self.api.set(pods.api_pods as i64);
        self.r#static.set(pods.static_pods as i64);
    }
}
