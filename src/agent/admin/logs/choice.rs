//! Which container and which of its runs is meant. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::Refusal;
use crate::actors::pod::PodObject;

/// Names the container that is meant unless another one is named (kubectl's annotation).
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The container that is wanted, or the only one, or the one that an annotation names.
pub(super) fn container_of(pod: &PodObject, wanted: Option<&str>) -> Result<String, Refusal> {
    let regular: Vec<&str> = pod.containers().iter().map(|it| it.name.as_str()).collect();
    let inits = pod.init_containers().iter().map(|it| it.name.as_str());
    let ephemeral = pod.ephemeral_containers().iter().map(|it| it.name.as_str());
    let others: Vec<&str> = inits.chain(ephemeral).collect();
    let has = |name: &str| regular.contains(&name) || others.contains(&name);
    if let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) {
        if has(wanted) {
            return Ok(wanted.to_owned());
        }
        return Err(Refusal::NotFound(format!(
            "pod {} has no container {wanted:?}: it has {}",
            pod.full_name(),
            names(&regular, &others)
        )));
    }
    let annotated = pod.metadata().annotations.as_ref().and_then(|all| all.get(DEFAULT_CONTAINER));
    match (annotated.filter(|name| has(name)), &regular[..]) {
        (Some(name), _) => Ok(name.clone()),
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) => Err(Refusal::Bad(format!(
            "pod {} has several containers: say with -c which of {}",
            pod.full_name(),
            names(&regular, &others)
        ))),
    }
}

fn names(regular: &[&str], others: &[&str]) -> String {
    let regular = regular.join(", ");
    if others.is_empty() { regular } else { format!("{regular} (and {})", others.join(", ")) }
}

/// The number of the run that is wanted: the newest that was started, or the one before it (upstream
/// `validateContainerLogStatus`, kubelet 1.36). `runs` are those of which there are logs, in order.
pub(super) fn run_of(
    pod: &PodObject,
    status: Option<&PodStatus>,
    container: &str,
    previous: bool,
    runs: &[u32],
) -> Result<u32, Refusal> {
    let name = pod.full_name();
    let Some(found) = status.and_then(|status| find(status, container)) else {
        let why = status.map(|status| why(status.reason.as_deref(), status.message.as_deref())).unwrap_or_default();
        return Err(Refusal::Bad(format!("container {container} of pod {name} was not started{why}")));
    };
    let state = found.state.as_ref();
    let has_run_before = found.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let waits = state.is_none_or(|state| state.running.is_none() && state.terminated.is_none());
    if waits && !has_run_before {
        let why = waiting.map(|it| why(it.reason.as_deref(), it.message.as_deref())).unwrap_or_default();
        return Err(Refusal::Bad(format!("container {container} of pod {name} waits to start{why}")));
    }
    let count = u32::try_from(found.restart_count).unwrap_or(0);
    // One that waits to be started again counts its runs without the one to come.
    let newest = match waits || state.is_some_and(|state| state.terminated.is_some()) {
        true => runs.iter().rev().find(|run| **run <= count).copied().unwrap_or(count),
        false => count,
    };
    if !previous || waits {
        return Ok(newest);
    }
    runs.iter().rev().find(|run| **run < newest).copied().ok_or_else(|| {
        Refusal::NotFound(match count {
            0 => format!("container {container} of pod {name} had no run before this one: leave --previous out"),
            _ => format!("the log of the run of container {container} of pod {name} before this one was removed"),
        })
    })
}

fn why(reason: Option<&str>, message: Option<&str>) -> String {
    let said = [reason, message].into_iter().flatten().filter(|text| !text.is_empty());
    said.map(|text| format!(": {text}")).collect()
}

/// Whether this run of a container goes on.
pub(super) fn is_running(status: &PodStatus, container: &str, run: u32) -> bool {
    find(status, container).is_some_and(|found| {
        found.state.as_ref().is_some_and(|state| state.running.is_some())
            && u32::try_from(found.restart_count) == Ok(run)
    })
}

fn find<'a>(status: &'a PodStatus, container: &str) -> Option<&'a ContainerStatus> {
    let lists = [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|found| found.name == container)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    fn pod(names: &[&str], annotation: &str) -> Arc<PodObject> {
        let containers: Vec<_> = names.iter().map(|name| json!({"name": name})).collect();
        let pod = json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "annotations": {DEFAULT_CONTAINER: annotation}},
            "spec": {"initContainers": [{"name": "i"}], "containers": containers},
        });
        PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn a_container_is_named_or_the_only_one_or_the_default() {
        let of = |names: &[&str], annotation: &str, wanted: Option<&str>| container_of(&pod(names, annotation), wanted);
        for (names, annotation, wanted, is) in [
            (&["a"][..], "", None, "a"),
            (&["a", "b"], "b", None, "b"),
            (&["a", "b"], "b", Some("a"), "a"),
            (&["a", "b"], "", Some("i"), "i"),
            (&["a"], "gone", None, "a"),
        ] {
            assert_eq!(of(names, annotation, wanted).as_deref(), Ok(is), "{names:?} {annotation} {wanted:?}");
        }
        let several = of(&["a", "b"], "gone", None);
        assert_eq!(
            several,
            Err(Refusal::Bad("pod n/p has several containers: say with -c which of a, b (and i)".into()))
        );
        let unknown = of(&["a"], "", Some("x"));
        assert_eq!(unknown, Err(Refusal::NotFound("pod n/p has no container \"x\": it has a (and i)".into())));
    }

    #[test]
    fn the_run_follows_from_the_state_and_from_the_logs_that_are_there() {
        let ended = json!({"terminated": {"exitCode": 1}});
        let (running, waiting) = (json!({"running": {}}), json!({"waiting": {"reason": "R", "message": "m"}}));
        let run = |state: &serde_json::Value, last: Option<&serde_json::Value>, count: i32, previous, runs: &[u32]| {
            let status = json!({"containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": count,
                "state": state, "lastState": last.cloned().unwrap_or(json!({})),
            }]});
            let status: PodStatus = serde_json::from_value(status).unwrap();
            run_of(&pod(&["a"], ""), Some(&status), "a", previous, runs)
        };
        assert_eq!(run(&running, None, 0, false, &[]), Ok(0));
        assert_eq!(run(&running, Some(&ended), 3, false, &[2]), Ok(3), "its log is there in a moment");
        assert_eq!(run(&running, Some(&ended), 3, true, &[1, 2, 3]), Ok(2));
        assert_eq!(run(&ended, None, 0, false, &[0]), Ok(0));
        assert_eq!(run(&ended, None, 2, false, &[0, 1]), Ok(1), "its container was lost before it logged");
        // What waits to run again shows its last run either way.
        assert_eq!(run(&waiting, Some(&ended), 1, false, &[0, 1]), Ok(1));
        assert_eq!(run(&waiting, Some(&ended), 1, true, &[0, 1]), Ok(1));
        let says = |answer: Result<u32, Refusal>, text: &str| match answer {
            Err(Refusal::Bad(why) | Refusal::NotFound(why)) => assert!(why.contains(text), "{why}"),
            Ok(run) => panic!("{run}"),
        };
        says(run(&waiting, None, 0, false, &[]), "container a of pod n/p waits to start: R: m");
        says(run(&running, None, 0, true, &[0]), "had no run before this one");
        says(run(&running, Some(&ended), 2, true, &[2]), "was removed");
        let refused = PodStatus { reason: Some("OutOfcpu".into()), ..PodStatus::default() };
        says(run_of(&pod(&["a"], ""), Some(&refused), "a", false, &[]), "was not started: OutOfcpu");
        says(run_of(&pod(&["a"], ""), None, "a", false, &[]), "was not started");
    }
}
