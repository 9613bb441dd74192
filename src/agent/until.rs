//! Decides for `--until-finished` whether all pods have finished. Pure.

use podwright_core::pod_worker::Lifecycle;
use podwright_model::pod::Phase;
use podwright_ports::{Severity, SourceProblem};

use podwright_actors::explain::PodFacts;

/// How the pods ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodsOutcome {
    /// How many pods succeeded.
    pub(crate) succeeded: usize,
    /// One line for each pod that failed and for each manifest that cannot be used.
    pub(crate) failed: Vec<String>,
}

/// The outcome, once every source has delivered and every pod has finished; otherwise `None`. A manifest that cannot be
/// used counts as failed, because its pods are missing.
///
/// The caller reads `delivered` before it lists the pods. In the other order, a source that delivers in between would look
/// like a source without pods.
pub(crate) fn outcome(delivered: bool, pods: &[PodFacts], problems: &[SourceProblem]) -> Option<PodsOutcome> {
    if !delivered || !pods.iter().all(has_finished) {
        return None;
    }
    let desired: Vec<&PodFacts> = pods.iter().filter(|pod| pod.desired).collect();
    let (succeeded, failed): (Vec<&PodFacts>, Vec<_>) =
        desired.into_iter().partition(|pod| pod.phase() == Phase::Succeeded);
    let failed = failed.into_iter().map(failure);
    let unusable = problems.iter().filter(|problem| problem.severity == Severity::Fault);
    Some(PodsOutcome { succeeded: succeeded.len(), failed: failed.chain(unusable.map(ToString::to_string)).collect() })
}

/// Whether a pod's cleanup is complete, or whether the node rejected the pod.
fn has_finished(pod: &PodFacts) -> bool {
    match pod.lifecycle() {
        Some(lifecycle) => lifecycle == Lifecycle::Finished,
        None => !pod.desired || pod.phase().is_terminal(),
    }
}

/// One line that says why a pod failed.
fn failure(pod: &PodFacts) -> String {
    let status = pod.status.as_deref();
    let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let reason = text(status.and_then(|status| status.reason.as_ref()));
    let message = text(status.and_then(|status| status.message.as_ref()));
    let causes: Vec<String> = [reason, message].into_iter().flatten().collect();
    let mut line = format!("pod {} failed", pod.full_name);
    if !causes.is_empty() {
        line.push_str(&format!(": {}", causes.join(": ")));
    }
    let containers = status.into_iter().flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    });
    let codes: Vec<String> = containers
        .filter_map(|container| {
            let end = container.state.as_ref()?.terminated.as_ref()?;
            (end.exit_code != 0).then(|| format!("{} ended with exit code {}", container.name, end.exit_code))
        })
        .collect();
    if !codes.is_empty() {
        line.push_str(&format!(" ({})", codes.join(", ")));
    }
    line
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::PodStatus;
    use podwright_core::pod_worker::{Wait, WaitFor};
    use podwright_engine::PodSnapshot;
    use podwright_model::ids::{FullName, PodUid};
    use podwright_model::time::Time;

    use super::*;

    fn pod(phase: &str, lifecycle: Option<Lifecycle>) -> PodFacts {
        let uid = PodUid::new("u");
        let name = FullName::new("default", "job");
        let snapshot = lifecycle.map(|lifecycle| PodSnapshot {
            uid: uid.clone(),
            full_name: Some(name.clone()),
            lifecycle,
            is_static: true,
            synced_at: Time::ZERO,
            wait: Wait { what: WaitFor::Resync, since: Time::ZERO, tries: 0, next: None },
            failure: None,
            grace: None,
            deleted: false,
            evicted: false,
            restart_requested: false,
            transitions: vec![],
        });
        PodFacts {
            status: Some(Arc::new(PodStatus { phase: Some(phase.into()), ..PodStatus::default() })),
            snapshot,
            desired: true,
            ..PodFacts::named(uid, name)
        }
    }

    #[test]
    fn until_finished_waits_for_delivery_and_for_every_pods_cleanup() {
        let done = pod("Succeeded", Some(Lifecycle::Finished));
        let cases = [
            (false, vec![done.clone()], None),
            (true, vec![done.clone()], Some(0)),
            (true, vec![], Some(0)),
            (true, vec![done.clone(), pod("Running", Some(Lifecycle::Sync))], None),
            (true, vec![done.clone(), pod("Succeeded", Some(Lifecycle::Terminating))], None),
            (true, vec![done.clone(), pod("Failed", Some(Lifecycle::Finished))], Some(1)),
            // Delivered, but the engine has no record yet.
            (true, vec![pod("Pending", None)], None),
            // Rejected by the node.
            (true, vec![pod("Failed", None)], Some(1)),
            // An orphan that is terminating.
            (true, vec![done, PodFacts { desired: false, ..pod("Running", Some(Lifecycle::Terminating)) }], None),
        ];
        for (delivered, pods, failed) in cases {
            let got = outcome(delivered, &pods, &[]).map(|outcome| outcome.failed.len());
            assert_eq!(got, failed, "{pods:?}");
        }
    }

    #[test]
    fn until_finished_counts_an_unusable_manifest_as_failed() {
        let problem = SourceProblem {
            what: "/m/a.yaml".into(),
            message: "line 1: broken".into(),
            pods: vec![],
            severity: Severity::Fault,
        };
        let warning = SourceProblem { severity: Severity::Warning, ..problem.clone() };
        let outcome = outcome(true, &[], &[problem, warning]).unwrap();
        assert_eq!(outcome.failed, ["/m/a.yaml: line 1: broken"]);
    }
}
