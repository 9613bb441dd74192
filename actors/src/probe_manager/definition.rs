//! The probes in a pod's spec.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerPort, EnvVar, ExecAction, Probe};

use podwright_metrics::{ProbeType, ProbedContainer};

use crate::containers::env::expand;
use crate::ids::{ContainerId, ContainerName, PodUid};
use crate::pod::{PodObject, is_sidecar};
use crate::probes::{ProbeKind, ProbeSettings};
use crate::time::Time;

/// One probe of one container.
#[derive(Debug)]
pub(super) struct ProbeDefinition {
    pub(super) container: ContainerName,
    /// Whether the container is a regular container and no sidecar.
    pub(super) regular: bool,
    pub(super) settings: ProbeSettings,
    pub(super) probe: Probe,
    /// The ports that the probe may name.
    pub(super) ports: Vec<ContainerPort>,
    /// The variables that the command of an exec probe may name.
    pub(super) env: Vec<EnvVar>,
}

impl ProbeDefinition {
    /// Whether both probes are equal. The time at which they were added does not count.
    pub(super) fn is_same(&self, other: &ProbeDefinition) -> bool {
        self.container == other.container
            && self.regular == other.regular
            && self.settings.kind == other.settings.kind
            && self.probe == other.probe
            && self.ports == other.ports
            && self.env == other.env
    }

    /// The command of an exec probe with `$(VAR)` expanded. Only the variables that the spec gives as plain values count, as they
    /// are written there (the kubelet's `ExpandContainerCommandOnlyStatic`, 1.36).
    pub(super) fn command(&self, action: &ExecAction) -> Vec<String> {
        let value = |name: &str| {
            let variable = self.env.iter().rfind(|variable| variable.name == name)?;
            Some(variable.value.as_deref().unwrap_or_default())
        };
        action.command.iter().flatten().map(|text| expand(text, value)).collect()
    }

    /// The labels of the probe in the metrics.
    pub(super) fn labels(&self, pod: &PodObject) -> ProbedContainer {
        let probe = match self.settings.kind {
            ProbeKind::Startup => ProbeType::Startup,
            ProbeKind::Liveness => ProbeType::Liveness,
            ProbeKind::Readiness => ProbeType::Readiness,
        };
        ProbedContainer {
            probe,
            container: self.container.to_string(),
            pod: pod.full_name().name().to_owned(),
            workload: workload(pod),
            namespace: pod.full_name().namespace().to_owned(),
            pod_uid: pod.uid().to_string(),
        }
    }

    /// A fraction of the period that differs between probes and is stable for each probe.
    pub(super) fn jitter(&self, uid: &PodUid) -> Duration {
        let mut hasher = DefaultHasher::new();
        (uid, &self.container, self.settings.kind).hash(&mut hasher);
        let fraction = hasher.finish() as f64 / u64::MAX as f64;
        self.settings.period.mul_f64(fraction)
    }
}

/// The probes of sidecars and regular containers in spec order, each container's startup probe first. Other init
/// containers and ephemeral containers have no probes (core/v1 `Container`).
pub(super) fn definitions(pod: &PodObject, now: Time) -> Vec<ProbeDefinition> {
    let sidecars = pod.init_containers().iter().filter(|container| is_sidecar(container));
    let sidecars = sidecars.map(|container| (container, false));
    let regular = pod.containers().iter().map(|container| (container, true));
    sidecars.chain(regular).flat_map(|(container, regular)| definitions_of(container, regular, now)).collect()
}

fn definitions_of(container: &Container, regular: bool, now: Time) -> impl Iterator<Item = ProbeDefinition> + '_ {
    [
        (ProbeKind::Startup, &container.startup_probe),
        (ProbeKind::Liveness, &container.liveness_probe),
        (ProbeKind::Readiness, &container.readiness_probe),
    ]
    .into_iter()
    .filter_map(move |(kind, probe)| {
        let probe = probe.as_ref()?;
        Some(ProbeDefinition {
            container: container.name.as_str().into(),
            regular,
            settings: ProbeSettings::new(kind, probe, now),
            probe: probe.clone(),
            ports: container.ports.clone().unwrap_or_default(),
            env: probe.exec.as_ref().and_then(|_| container.env.clone()).unwrap_or_default(),
        })
    })
}

/// Whether the pod's own status says that this run has started, which means that an earlier agent saw its startup probe
/// pass.
pub(super) fn passed_startup(pod: &PodObject, id: &ContainerId) -> bool {
    let lists = pod.status().map(|status| [&status.container_statuses, &status.init_container_statuses]);
    lists.into_iter().flatten().flatten().flatten().any(|status| {
        status.started == Some(true)
            && status.container_id.as_deref().and_then(|text| text.split_once("://")).map(|(_, id)| id)
                == Some(id.as_str())
    })
}

/// The name of the workload that created the pod: the pod's name without the part that the API server added to `generateName`, and
/// without the hash of a Deployment's template (`prober/worker.go`, `getPodLabelName`, kubelet 1.36). For a pod without
/// `generateName`, it is the pod's own name.
fn workload(pod: &PodObject) -> String {
    let name = pod.full_name().name();
    if pod.metadata().generate_name.as_deref().unwrap_or_default().is_empty() {
        return name.to_owned();
    }
    let generated = name.rsplit_once('-').map_or("", |(workload, _)| workload);
    match pod.metadata().labels.as_ref().and_then(|labels| labels.get("pod-template-hash")) {
        Some(hash) => generated.replace(&format!("-{hash}"), ""),
        None => generated.to_owned(),
    }
}
