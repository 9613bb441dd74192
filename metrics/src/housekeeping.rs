//! What each housekeeping pass finds.

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
    /// Where a pod that the engine holds stands.
    pub enum Lifecycle {
        /// Expected to run, or waiting to be started.
        Sync = "sync",
        /// No container may start; some may still run.
        Terminating = "terminating",
        /// No container runs; cleanup is not finished.
        Terminated = "terminated",
    }
}

/// What the node's sources know about a pod that the engine holds. Each variant carries only what can be known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PodConfig {
    /// A source wants it.
    Desired {
        /// It is a static pod.
        is_static: bool,
    },
    /// No source wants it any longer.
    Orphan {
        /// It was a static pod.
        is_static: bool,
    },
    /// Only the runtime knew it; there never was a spec here.
    RuntimeOnly,
}

/// How many pods the engine holds: one number for each of the 15 combinations that exist.
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

/// A number of pods, split by where they are from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BySource {
    /// From a file or URL.
    pub static_pods: usize,
    /// From the API server.
    pub api_pods: usize,
}

/// How long the pod that has been in each phase longest has been in it; zero where there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OldestPhases {
    /// Not yet allowed to start.
    pub waiting: Duration,
    /// Expected to run.
    pub sync: Duration,
    /// No container may start.
    pub terminating: Duration,
    /// No container runs, cleanup goes on.
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

/// What each housekeeping pass finds. Every series exists, at zero, before the first pass.
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

/// The two series of a family that tells static pods from others.
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
            "Pods that the engine holds, by what config knows of them and by lifecycle",
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
                "Pods that config asks this node to run",
                Family::default(),
            )
            .into(),
            active_pods: kubelet(
                registry,
                "kubelet_active_pods",
                "Pods whose resources count when another one asks for admission",
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
                "Pods that came back under the same UID before the earlier one was done",
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
                "Orphaned pod directories whose volumes the last sweep looked at",
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
                "Pods that admission counts: the active ones and orphans whose containers may still run",
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

    /// Sets what config asks for.
    pub fn desired_pods(&self, pods: BySource) {
        self.desired_pods.set(pods);
    }

    /// Sets what gates admission upstream: desired pods that are neither terminal nor rejected.
    pub fn active_pods(&self, pods: BySource) {
        self.active_pods.set(pods);
    }

    /// Sets the number of mirror pods.
    pub fn mirror_pods(&self, pods: usize) {
        self.mirror_pods.set(pods as i64);
    }

    /// Sets all 15 series.
    pub fn working_pods(&self, pods: &WorkingPods) {
        for (gauge, count) in self.working_pods.iter().flatten().zip(pods.0.iter().flatten()) {
            gauge.set(*count as i64);
        }
    }

    /// A pod is started again under a UID whose earlier pod has just been forgotten.
    pub fn restarted(&self, is_static: bool) {
        let series = if is_static { &self.restarted_pods.r#static } else { &self.restarted_pods.api };
        series.inc();
    }

    /// The runtime shows a pod that the engine does not know.
    pub fn orphaned_runtime_pod(&self) {
        self.orphaned_runtime_pods.inc();
    }

    /// Sets the result of a sweep of orphaned pod directories.
    pub fn cleaned_volumes(&self, directories: usize, failed: usize) {
        self.cleaned_volumes.set(directories as i64);
        self.cleaned_volumes_errors.set(failed as i64);
    }

    /// Sets what admission really counts: active pods and orphans still terminating (POD-W1).
    pub fn admission_pods(&self, pods: usize) {
        self.admission_pods.set(pods as i64);
    }

    /// Containers run in pods whose containers were all stopped (POD-W9).
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
