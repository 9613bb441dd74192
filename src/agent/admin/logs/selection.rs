//! Selects the container and the run whose log a request reads. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use super::LogRefusal;
use crate::actors::pod::PodObject;

/// kubectl's annotation that names the container to use if the request names none.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// The container that the request names, or else the one that the annotation names, or else the only one.
pub(super) fn select_container(pod: &PodObject, requested: Option<&str>) -> Result<String, LogRefusal> {
    let regular: Vec<&str> = pod.containers().iter().map(|it| it.name.as_str()).collect();
    let inits = pod.init_containers().iter().map(|it| it.name.as_str());
    let ephemeral = pod.ephemeral_containers().iter().map(|it| it.name.as_str());
    let others: Vec<&str> = inits.chain(ephemeral).collect();
    let has = |name: &str| regular.contains(&name) || others.contains(&name);
    if let Some(requested) = requested.filter(|name| !name.is_empty()) {
        if has(requested) {
            return Ok(requested.to_owned());
        }
        return Err(LogRefusal::NotFound(format!(
            "pod {} has no container {requested:?}: it has {}",
            pod.full_name(),
            names(&regular, &others)
        )));
    }
    let annotated = pod.metadata().annotations.as_ref().and_then(|all| all.get(DEFAULT_CONTAINER));
    match (annotated.filter(|name| has(name)), &regular[..]) {
        (Some(name), _) => Ok(name.clone()),
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) => Err(LogRefusal::Bad(format!(
            "pod {} has several containers: choose with -c one of {}",
            pod.full_name(),
            names(&regular, &others)
        ))),
    }
}

fn names(regular: &[&str], others: &[&str]) -> String {
    let regular = regular.join(", ");
    if others.is_empty() { regular } else { format!("{regular} (and {})", others.join(", ")) }
}

/// The number of the requested run: the newest one that started, or with `previous` the run before it (upstream
/// `validateContainerLogStatus`, kubelet 1.36). `runs` lists in ascending order the runs that have logs.
pub(super) fn select_run(
    pod: &PodObject,
    status: Option<&PodStatus>,
    container: &str,
    previous: bool,
    runs: &[u32],
) -> Result<u32, LogRefusal> {
    let name = pod.full_name();
    let Some(found) = status.and_then(|status| find(status, container)) else {
        let why = status.map(|status| cause(status.reason.as_deref(), status.message.as_deref())).unwrap_or_default();
        return Err(LogRefusal::Bad(format!("container {container} of pod {name} has not started{why}")));
    };
    let state = found.state.as_ref();
    let has_run_before = found.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
    let waiting = state.and_then(|state| state.waiting.as_ref());
    let waits = state.is_none_or(|state| state.running.is_none() && state.terminated.is_none());
    if waits && !has_run_before {
        let why = waiting.map(|it| cause(it.reason.as_deref(), it.message.as_deref())).unwrap_or_default();
        return Err(LogRefusal::Bad(format!("container {container} of pod {name} is waiting to start{why}")));
    }
    let count = u32::try_from(found.restart_count).unwrap_or(0);
    // The log of a run that has ended may be missing. In that case the newest run with a log is selected.
    let newest = if waits || state.is_some_and(|state| state.terminated.is_some()) {
        runs.iter().rev().find(|run| **run <= count).copied().unwrap_or(count)
    } else {
        count
    };
    if !previous || waits {
        return Ok(newest);
    }
    runs.iter().rev().find(|run| **run < newest).copied().ok_or_else(|| {
        LogRefusal::NotFound(match count {
            0 => format!("container {container} of pod {name} had no run before this one: leave out --previous"),
            _ => format!("the log of the previous run of container {container} of pod {name} was removed"),
        })
    })
}

fn cause(reason: Option<&str>, message: Option<&str>) -> String {
    let texts = [reason, message].into_iter().flatten().filter(|text| !text.is_empty());
    texts.map(|text| format!(": {text}")).collect()
}

/// Whether this run of a container is running.
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
    fn a_log_request_selects_the_named_default_or_only_container() {
        let of = |names: &[&str], annotation: &str, requested: Option<&str>| {
            select_container(&pod(names, annotation), requested)
        };
        for (names, annotation, requested, expected) in [
            (&["a"][..], "", None, "a"),
            (&["a", "b"], "b", None, "b"),
            (&["a", "b"], "b", Some("a"), "a"),
            (&["a", "b"], "", Some("i"), "i"),
            (&["a"], "gone", None, "a"),
        ] {
            assert_eq!(
                of(names, annotation, requested).as_deref(),
                Ok(expected),
                "{names:?} {annotation} {requested:?}"
            );
        }
        let several = of(&["a", "b"], "gone", None);
        assert_eq!(
            several,
            Err(LogRefusal::Bad("pod n/p has several containers: choose with -c one of a, b (and i)".into()))
        );
        let unknown = of(&["a"], "", Some("x"));
        assert_eq!(unknown, Err(LogRefusal::NotFound("pod n/p has no container \"x\": it has a (and i)".into())));
    }

    #[test]
    fn the_run_of_a_log_follows_from_container_state_and_log_files() {
        let ended = json!({"terminated": {"exitCode": 1}});
        let (running, waiting) = (json!({"running": {}}), json!({"waiting": {"reason": "R", "message": "m"}}));
        let run = |state: &serde_json::Value, last: Option<&serde_json::Value>, count: i32, previous, runs: &[u32]| {
            let status = json!({"containerStatuses": [{
                "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": count,
                "state": state, "lastState": last.cloned().unwrap_or(json!({})),
            }]});
            let status: PodStatus = serde_json::from_value(status).unwrap();
            select_run(&pod(&["a"], ""), Some(&status), "a", previous, runs)
        };
        assert_eq!(run(&running, None, 0, false, &[]), Ok(0));
        assert_eq!(run(&running, Some(&ended), 3, false, &[2]), Ok(3), "its log file is created soon");
        assert_eq!(run(&running, Some(&ended), 3, true, &[1, 2, 3]), Ok(2));
        assert_eq!(run(&ended, None, 0, false, &[0]), Ok(0));
        assert_eq!(run(&ended, None, 2, false, &[0, 1]), Ok(1), "the container was lost before it wrote a log");
        // For a container that waits to start again, both requests select its last run.
        assert_eq!(run(&waiting, Some(&ended), 1, false, &[0, 1]), Ok(1));
        assert_eq!(run(&waiting, Some(&ended), 1, true, &[0, 1]), Ok(1));
        let says = |answer: Result<u32, LogRefusal>, text: &str| match answer {
            Err(LogRefusal::Bad(why) | LogRefusal::NotFound(why)) => assert!(why.contains(text), "{why}"),
            Ok(run) => panic!("{run}"),
        };
        says(run(&waiting, None, 0, false, &[]), "container a of pod n/p is waiting to start: R: m");
        says(run(&running, None, 0, true, &[0]), "had no run before this one");
        says(run(&running, Some(&ended), 2, true, &[2]), "was removed");
        let refused = PodStatus { reason: Some("OutOfcpu".into()), ..PodStatus::default() };
        says(select_run(&pod(&["a"], ""), Some(&refused), "a", false, &[]), "has not started: OutOfcpu");
        says(select_run(&pod(&["a"], ""), None, "a", false, &[]), "has not started");
    }
}
