//! Selects the run whose log a request reads. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

/// Why a container has no log to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoRun {
    /// The status of the pod does not list the container. The reason and the message are those of the pod.
    NotListed {
        /// The reason of the pod's status.
        reason: Option<String>,
        /// The message of the pod's status.
        message: Option<String>,
    },
    /// The container waits for its first start.
    Waiting {
        /// The reason of the container's state.
        reason: Option<String>,
        /// The message of the container's state.
        message: Option<String>,
    },
    /// The container had no run before this one.
    First,
    /// The log of the run before this one was removed.
    PreviousRemoved,
}

/// The number of the requested run: the newest one that started, or with `previous` the run before it (upstream
/// `validateContainerLogStatus`, kubelet 1.36). `runs` lists in ascending order the runs that have logs.
///
/// # Errors
/// [`NoRun`] if there is no such run.
pub(super) fn select_run(
    status: Option<&PodStatus>,
    container: &str,
    previous: bool,
    runs: &[u32],
) -> Result<u32, NoRun> {
    let Some(found) = status.and_then(|status| find(status, container)) else {
        let of_pod = |of: fn(&PodStatus) -> &Option<String>| status.and_then(|status| of(status).clone());
        return Err(NoRun::NotListed { reason: of_pod(|it| &it.reason), message: of_pod(|it| &it.message) });
    };
    let state = found.state.as_ref();
    let has_run_before = found.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
    let waits = state.is_none_or(|state| state.running.is_none() && state.terminated.is_none());
    if waits && !has_run_before {
        let waiting = state.and_then(|state| state.waiting.clone()).unwrap_or_default();
        return Err(NoRun::Waiting { reason: waiting.reason, message: waiting.message });
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
    let before = runs.iter().rev().find(|run| **run < newest).copied();
    before.ok_or(if count == 0 { NoRun::First } else { NoRun::PreviousRemoved })
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
    use serde_json::json;

    use super::*;

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
            select_run(Some(&status), "a", previous, runs)
        };
        assert_eq!(run(&running, None, 0, false, &[]), Ok(0));
        assert_eq!(run(&running, Some(&ended), 3, false, &[2]), Ok(3), "its log file is created soon");
        assert_eq!(run(&running, Some(&ended), 3, true, &[1, 2, 3]), Ok(2));
        assert_eq!(run(&ended, None, 0, false, &[0]), Ok(0));
        assert_eq!(run(&ended, None, 2, false, &[0, 1]), Ok(1), "the container was lost before it wrote a log");
        // For a container that waits to start again, both requests select its last run.
        assert_eq!(run(&waiting, Some(&ended), 1, false, &[0, 1]), Ok(1));
        assert_eq!(run(&waiting, Some(&ended), 1, true, &[0, 1]), Ok(1));
        let why = |reason: &str, message: Option<&str>| (Some(reason.to_owned()), message.map(str::to_owned));
        let (reason, message) = why("R", Some("m"));
        assert_eq!(run(&waiting, None, 0, false, &[]), Err(NoRun::Waiting { reason, message }));
        assert_eq!(run(&running, None, 0, true, &[0]), Err(NoRun::First));
        assert_eq!(run(&running, Some(&ended), 2, true, &[2]), Err(NoRun::PreviousRemoved));
        let refused = PodStatus { reason: Some("OutOfcpu".into()), ..PodStatus::default() };
        let (reason, message) = why("OutOfcpu", None);
        assert_eq!(select_run(Some(&refused), "a", false, &[]), Err(NoRun::NotListed { reason, message }));
        assert_eq!(select_run(None, "a", false, &[]), Err(NoRun::NotListed { reason: None, message: None }));
    }
}
