//! Validates the fields of a pod on which the node depends, as an API server would (`pkg/apis/core/validation`, 1.36).
//! Each problem names the field, the mistake and the remedy.

mod container;
mod names;
mod probes;
mod report;
mod resources;
mod statics;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodSpec};

pub use report::Problem;
pub use statics::validate_static;

use report::Report;

/// Every problem of a pod, in the order of the fields. Fields with a default may be unset.
pub fn validate(pod: &Pod) -> Vec<Problem> {
    let mut report = Report::default();
    metadata(pod, &mut report);
    match &pod.spec {
        Some(spec) => self::spec(spec, &mut report),
        None => report.add("spec", "is missing", "add a spec with at least one container"),
    }
    report.problems
}

fn metadata(pod: &Pod, report: &mut Report) {
    let meta = &pod.metadata;
    match meta.name.as_deref() {
        None | Some("") => report.add("metadata.name", "is missing", "give the pod a name"),
        Some(name) if !names::is_subdomain(name) => report.add(
            "metadata.name",
            format!("{name:?} is not a valid name"),
            "use at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at each end",
        ),
        Some(_) => {}
    }
    if let Some(namespace) = meta.namespace.as_deref()
        && !namespace.is_empty()
    {
        report.label("metadata.namespace", namespace);
    }
    if let Some(uid) = meta.uid.as_deref()
        && !uid.is_empty()
        && !names::is_uid(uid)
    {
        // The UID becomes the name of a directory.
        report.add(
            "metadata.uid",
            format!("{uid:?} cannot be a UID"),
            "use at most 128 letters, digits, '-', '_' and '.', or remove it and one is generated",
        );
    }
    keys("metadata.labels", meta.labels.as_ref(), report);
    keys("metadata.annotations", meta.annotations.as_ref(), report);
    for (key, value) in meta.labels.iter().flatten().filter(|(_, value)| !names::is_label_value(value)) {
        report.add(
            format!("metadata.labels[{key}]"),
            format!("{value:?} is not a valid label value"),
            "use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at each end",
        );
    }
}

fn keys(path: &str, map: Option<&BTreeMap<String, String>>, report: &mut Report) {
    for key in map.into_iter().flatten().map(|(key, _)| key).filter(|key| !names::is_qualified(key)) {
        report.add(
            format!("{path}[{key}]"),
            "is not a valid key",
            "use a name of at most 63 letters, digits, '-', '_' and '.', optionally behind a DNS domain and a slash",
        );
    }
}

fn spec(spec: &PodSpec, report: &mut Report) {
    report.one_of("spec.restartPolicy", spec.restart_policy.as_deref(), &["Always", "OnFailure", "Never"]);
    let dns = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
    report.one_of("spec.dnsPolicy", spec.dns_policy.as_deref(), &dns);
    report.one_of("spec.preemptionPolicy", spec.preemption_policy.as_deref(), &["PreemptLowerPriority", "Never"]);
    report.at_least("spec.terminationGracePeriodSeconds", spec.termination_grace_period_seconds, 0);
    report.at_least("spec.activeDeadlineSeconds", spec.active_deadline_seconds, 1);
    if let Some(hostname) = spec.hostname.as_deref()
        && !hostname.is_empty()
    {
        report.label("spec.hostname", hostname);
    }
    if let Some(os) = &spec.os {
        report.one_of("spec.os.name", Some(&os.name), &["linux", "windows"]);
    }
    for (i, toleration) in spec.tolerations.iter().flatten().enumerate() {
        let path = format!("spec.tolerations[{i}]");
        report.one_of(format!("{path}.operator"), toleration.operator.as_deref(), &["Exists", "Equal", "Lt", "Gt"]);
        let effects = ["", "NoSchedule", "PreferNoSchedule", "NoExecute"];
        report.one_of(format!("{path}.effect"), toleration.effect.as_deref(), &effects);
    }

    let volumes = volumes::check(spec, report);
    if let Some(resources) = &spec.resources {
        self::resources::check("spec.resources", resources, &BTreeSet::new(), report);
    }
    container::check_all(spec, &volumes, report);
}

#[cfg(test)]
mod tests;
