//! Whether everything is finished, for `--until-finished`. Pure.

use crate::actors::pod::Phase;
use crate::actors::pod_worker::Lifecycle;
use crate::actors::ports::SourceProblem;

use crate::actors::explain::PodFacts;

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The pods that succeeded.
    pub(crate) succeeded: usize,
    /// What failed, one line each.
    pub(crate) failed: Vec<String>,
}

/// The verdict, once every source delivered and no pod has anything left to do. What a source could not use counts as
/// failed: a pod may be missing for it.
///
/// Whether they delivered must have been asked before the pods were: a first set that comes in between would be taken for
/// one without pods.
pub(crate) fn verdict(delivered: bool, pods: &[PodFacts], problems: &[SourceProblem]) -> Option<Verdict> {
    if !delivered || !pods.iter().all(is_over) {
        return None;
    }
    let wanted: Vec<&PodFacts> = pods.iter().filter(|pod| pod.desired).collect();
    let (succeeded, failed): (Vec<&PodFacts>, Vec<_>) =
        wanted.into_iter().partition(|pod| pod.phase() == Phase::Succeeded);
    let failed = failed.into_iter().map(tell);
    Some(Verdict {
        succeeded: succeeded.len(),
        failed: failed.chain(problems.iter().map(ToString::to_string)).collect(),
    })
}

/// Over: cleaned up, or never let in.
fn is_over(pod: &PodFacts) -> bool {
    match pod.lifecycle() {
        Some(lifecycle) => lifecycle == Lifecycle::Finished,
        None => !pod.desired || pod.phase().is_terminal(),
    }
}

fn tell(pod: &PodFacts) -> String {
    let status = pod.status.as_deref();
    let text = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let reason = text(status.and_then(|status| status.reason.as_ref()));
    let message = text(status.and_then(|status| status.message.as_ref()));
    let told: Vec<String> = [reason, message].into_iter().flatten().collect();
    let mut line = format!("pod {} failed", pod.full_name);
    if !told.is_empty() {
        line.push_str(&format!(": {}", told.join(": ")));
    }
    let ends = status.into_iter().flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    });
    let codes: Vec<String> = ends
        .filter_map(|have| {
            let end = have.state.as_ref()?.terminated.as_ref()?;
            (end.exit_code != 0).then(|| format!("{} ended with {}", have.name, end.exit_code))
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

    use crate::actors::engine::PodSnapshot;
    use crate::actors::ids::{FullName, PodUid};
    use crate::actors::pod_worker::{Wait, WaitFor};
    use crate::actors::time::Time;
    use k8s_openapi::api::core::v1::PodStatus;

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
    fn it_waits_for_every_pods_cleanup_and_for_the_first_delivery() {
        let done = pod("Succeeded", Some(Lifecycle::Finished));
        let cases = [
            (false, vec![done.clone()], None),
            (true, vec![done.clone()], Some(0)),
            (true, vec![], Some(0)),
            (true, vec![done.clone(), pod("Running", Some(Lifecycle::Sync))], None),
            (true, vec![done.clone(), pod("Succeeded", Some(Lifecycle::Terminating))], None),
            (true, vec![done.clone(), pod("Failed", Some(Lifecycle::Finished))], Some(1)),
            // Delivered, and not yet seen by the engine.
            (true, vec![pod("Pending", None)], None),
            // Rejected.
            (true, vec![pod("Failed", None)], Some(1)),
            // An orphan that still stops.
            (true, vec![done, PodFacts { desired: false, ..pod("Running", Some(Lifecycle::Terminating)) }], None),
        ];
        for (delivered, pods, failed) in cases {
            let got = verdict(delivered, &pods, &[]).map(|verdict| verdict.failed.len());
            assert_eq!(got, failed, "{pods:?}");
        }
    }

    #[test]
    fn a_manifest_that_cannot_be_used_counts_as_failed() {
        let problem = SourceProblem { what: "/m/a.yaml".into(), message: "line 1: broken".into(), pods: vec![] };
        let verdict = verdict(true, &[], &[problem]).unwrap();
        assert_eq!(verdict.failed, ["/m/a.yaml: line 1: broken"]);
    }
}
