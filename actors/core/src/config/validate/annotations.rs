//! Validates the annotations that select seccomp and AppArmor profiles, and the size of all annotations.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec, SecurityContext, Toleration};

use super::report::Report;
use super::scheduling;

/// The largest size of all annotations together, in bytes (upstream `TotalAnnotationSizeLimitB`, Kubernetes 1.36).
const MAX_TOTAL: usize = 256 << 10;
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const APPARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
const SECCOMP_OF_POD: &str = "seccomp.security.alpha.kubernetes.io/pod";
const SECCOMP: &str = "container.seccomp.security.alpha.kubernetes.io/";

pub(super) fn check(pod: &Pod, report: &mut Report) {
    let Some(annotations) = &pod.metadata.annotations else { return };
    let total: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if total > MAX_TOTAL {
        let message = format!("have {total} bytes together");
        report.add("metadata.annotations", message, format!("use at most {MAX_TOTAL} bytes"));
    }
    if let Some(cost) = annotations.get(DELETION_COST) {
        let path = format!("metadata.annotations[{DELETION_COST}]");
        if cost.parse::<i32>().map_or(true, |number| number.to_string() != *cost) {
            report.add(path, format!("{cost:?} is not a 32-bit number"), "use a whole number such as 10");
        }
    }
    if let Some(text) = annotations.get(TOLERATIONS).filter(|text| !text.is_empty()) {
        let path = format!("metadata.annotations[{TOLERATIONS}]");
        match serde_json::from_str::<Vec<Toleration>>(text) {
            Ok(tolerations) => {
                for (i, toleration) in tolerations.iter().enumerate() {
                    scheduling::toleration(&format!("{path}[{i}]"), toleration, report);
                }
            }
            Err(error) => report.add(path, format!("is no list of tolerations: {error}"), "use spec.tolerations"),
        }
    }
    let Some(spec) = &pod.spec else { return };
    for (key, value) in annotations {
        let path = || format!("metadata.annotations[{key}]");
        if let Some(name) = key.strip_prefix(APPARMOR) {
            if !contexts(spec).any(|(_, container, _)| container == name) {
                report.add(path(), format!("{name:?} is not a container of the pod"), "name one of its containers");
            }
            if !["", "runtime/default", "unconfined"].contains(&value.as_str()) && !value.starts_with("localhost/") {
                let remedy = "use one of runtime/default, unconfined, localhost/PROFILE";
                report.add(path(), format!("{value:?} is not an AppArmor profile"), remedy);
            }
        }
        if key == SECCOMP_OF_POD || key.starts_with(SECCOMP) {
            let named = ["runtime/default", "docker/default", "unconfined"].contains(&value.as_str());
            match value.strip_prefix("localhost/") {
                Some(profile) => report.relative_path(path(), profile, "the directory of the profiles"),
                None if named => {}
                None => {
                    let remedy = "use one of runtime/default, unconfined, localhost/PROFILE";
                    report.add(path(), format!("{value:?} is not a seccomp profile"), remedy);
                }
            }
        }
    }
    if spec.os.as_ref().is_none_or(|os| os.name != "windows") {
        matching_fields(spec, annotations, report);
    }
}

/// An annotation and a field for the same profile must have the same value, because older runtimes read only the annotation.
fn matching_fields(spec: &PodSpec, annotations: &BTreeMap<String, String>, report: &mut Report) {
    let of_pod = spec.security_context.as_ref();
    if let Some(profile) = of_pod.and_then(|context| context.seccomp_profile.as_ref()) {
        let annotation = annotations.get(SECCOMP_OF_POD);
        let path = "spec.securityContext.seccompProfile";
        same(path, annotation, &profile.type_, profile.localhost_profile.as_deref(), report);
    }
    for (path, name, own) in contexts(spec) {
        if let Some(profile) = own.and_then(|own| own.seccomp_profile.as_ref()) {
            let annotation = annotations.get(&format!("{SECCOMP}{name}"));
            let path = format!("{path}.securityContext.seccompProfile");
            same(&path, annotation, &profile.type_, profile.localhost_profile.as_deref(), report);
        }
        let own = own.and_then(|own| own.app_armor_profile.as_ref());
        if let Some(profile) = own.or(of_pod.and_then(|context| context.app_armor_profile.as_ref())) {
            let annotation = annotations.get(&format!("{APPARMOR}{name}"));
            let path = format!("{path}.securityContext.appArmorProfile");
            same(&path, annotation, &profile.type_, profile.localhost_profile.as_deref(), report);
        }
    }
}

fn same(path: &str, annotation: Option<&String>, kind: &str, localhost: Option<&str>, report: &mut Report) {
    let Some(annotation) = annotation else { return };
    let matches = match kind {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => ["runtime/default", "docker/default"].contains(&annotation.as_str()),
        "Localhost" => annotation.strip_prefix("localhost/").is_some_and(|name| Some(name) == localhost),
        // The type has a problem of its own.
        _ => true,
    };
    if !matches {
        let message = format!("differs from the annotation, which is {annotation:?}");
        report.add(path, message, "remove the annotation, or make both the same");
    }
}

type ContainerContext<'a> = (String, &'a str, Option<&'a SecurityContext>);

/// The path, the name and the security context of each container.
fn contexts(spec: &PodSpec) -> impl Iterator<Item = ContainerContext<'_>> {
    let path = |list: &str, i: usize| format!("spec.{list}[{i}]");
    let init = spec.init_containers.iter().flatten().enumerate();
    let init = init.map(move |(i, one)| (path("initContainers", i), &*one.name, one.security_context.as_ref()));
    let regular = spec.containers.iter().enumerate();
    let regular = regular.map(move |(i, one)| (path("containers", i), &*one.name, one.security_context.as_ref()));
    let debug = spec.ephemeral_containers.iter().flatten().enumerate();
    let debug = debug.map(move |(i, one)| (path("ephemeralContainers", i), &*one.name, one.security_context.as_ref()));
    init.chain(regular).chain(debug)
}
