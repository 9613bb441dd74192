//! Validates that a static pod does not use API objects.

use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::report::{Problem, Report};
use super::volumes::{kinds, set_fields};
use crate::pod::MIRROR_ANNOTATION;

/// The problems of a manifest as a static pod. It must not refer to API objects, because it must run without an API
/// server (the kubelet's `podutil.HasAPIObjectReference`, 1.36).
pub fn validate_static(pod: &Pod) -> Vec<Problem> {
    let mut report = Report::default();
    if pod.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR_ANNOTATION)) {
        let path = format!("metadata.annotations[{MIRROR_ANNOTATION}]");
        report.add(path, "marks the API server's copy of a static pod", "remove it");
    }
    let Some(spec) = &pod.spec else { return report.problems };
    let mut refuse = |path: String, what: &str, remedy: &str| {
        report.add(path, format!("refers to {what}, which a static pod cannot use"), remedy);
    };
    let named = |name: &Option<String>| name.as_deref().is_some_and(|name| !name.is_empty());
    if named(&spec.service_account_name) {
        refuse("spec.serviceAccountName".into(), "a service account", "remove it");
    } else if named(&spec.service_account) {
        refuse("spec.serviceAccount".into(), "a service account", "remove it");
    }
    let set = |list: Option<usize>| list.is_some_and(|len| len > 0);
    if set(spec.image_pull_secrets.as_ref().map(Vec::len)) {
        let remedy = "remove it and give the node its logins with --registry-config";
        refuse("spec.imagePullSecrets".into(), "secrets", remedy);
    }
    if set(spec.resource_claims.as_ref().map(Vec::len)) {
        refuse("spec.resourceClaims".into(), "resource claims", "remove it or create the pod in the API server");
    }
    if set(spec.scheduling_gates.as_ref().map(Vec::len)) {
        report.add("spec.schedulingGates", "cannot be set, because a static pod is on its node", "remove it");
    }
    if set(spec.ephemeral_containers.as_ref().map(Vec::len)) {
        let path = "spec.ephemeralContainers";
        report.add(path, "cannot be set in a manifest", "add a regular container, or remove it");
    }
    let lists =
        [("initContainers", spec.init_containers.as_deref().unwrap_or_default()), ("containers", &*spec.containers)];
    for (list, containers) in lists {
        for (i, container) in containers.iter().enumerate() {
            environment(&format!("spec.{list}[{i}]"), container, &mut report);
        }
    }
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        self::volume(&format!("spec.volumes[{i}]"), volume, &mut report);
    }
    report.problems
}

fn environment(path: &str, container: &Container, report: &mut Report) {
    let remedy = "give the value itself, or mount a file with hostPath";
    let mut refuse = |path: String, what: &str| {
        report.add(path, format!("refers to a {what}, which a static pod cannot use"), remedy);
    };
    for (i, env) in container.env.iter().flatten().enumerate() {
        let Some(from) = &env.value_from else { continue };
        if from.secret_key_ref.is_some() {
            refuse(format!("{path}.env[{i}].valueFrom.secretKeyRef"), "secret");
        }
        if from.config_map_key_ref.is_some() {
            refuse(format!("{path}.env[{i}].valueFrom.configMapKeyRef"), "config map");
        }
    }
    for (i, from) in container.env_from.iter().flatten().enumerate() {
        if from.secret_ref.is_some() {
            refuse(format!("{path}.envFrom[{i}].secretRef"), "secret");
        }
        if from.config_map_ref.is_some() {
            refuse(format!("{path}.envFrom[{i}].configMapRef"), "config map");
        }
    }
}

fn volume(path: &str, volume: &Volume, report: &mut Report) {
    let message = "refers to an API object, which a static pod cannot use";
    for kind in kinds(volume) {
        if ["secret", "configMap", "persistentVolumeClaim", "ephemeral"].contains(&kind.as_str()) {
            let remedy = "use emptyDir, hostPath or downwardAPI, or image with a container runtime";
            report.add(format!("{path}.{kind}"), message, remedy);
        }
    }
    for (i, part) in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()).enumerate() {
        for source in set_fields(part).iter().filter(|source| *source != "downwardAPI") {
            let remedy = "keep only downwardAPI sources, and mount other files with hostPath";
            report.add(format!("{path}.projected.sources[{i}].{source}"), message, remedy);
        }
    }
}
