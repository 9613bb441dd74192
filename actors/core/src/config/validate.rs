//! Validates a new pod as an API server would (upstream `ValidatePodCreate`, `pkg/apis/core/validation`, 1.36), except for
//! volumes that this node does not have and for the options of Windows. Each problem names the field, the mistake and the
//! remedy.

mod annotations;
mod container;
mod env;
mod metadata;
mod network;
mod probes;
mod report;
mod resources;
mod scheduling;
mod security;
mod statics;
mod volumes;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

pub use report::Problem;
pub use statics::validate_static;

use report::Report;

/// Every problem of a pod, in the order of the fields. Fields with a default may be unset.
pub fn validate(pod: &Pod) -> Vec<Problem> {
    let mut report = Report::default();
    metadata::check(&pod.metadata, &mut report);
    annotations::check(pod, &mut report);
    match &pod.spec {
        Some(spec) => self::spec(spec, &mut report),
        None => report.add("spec", "is missing", "add a spec with at least one container"),
    }
    report.problems
}

fn spec(spec: &PodSpec, report: &mut Report) {
    report.one_of("spec.restartPolicy", spec.restart_policy.as_deref(), &["Always", "OnFailure", "Never"]);
    report.one_of("spec.preemptionPolicy", spec.preemption_policy.as_deref(), &["PreemptLowerPriority", "Never"]);
    // A negative grace period is valid: the API server stores it as one second.
    if let Some(seconds) = spec.active_deadline_seconds
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        let path = "spec.activeDeadlineSeconds";
        report.add(path, format!("is {seconds}"), format!("use 1 to {} seconds", i32::MAX));
    }
    if let Some(os) = &spec.os {
        report.one_of("spec.os.name", Some(&os.name), &["linux", "windows"]);
    }
    network::check(spec, report);
    scheduling::check(spec, report);
    security::of_pod(spec, report);

    let volumes = volumes::check(spec, report);
    resources::of_pod(spec, report);
    container::check_all(spec, &volumes, report);
}

#[cfg(test)]
mod tests;
