//! Decides which containers and sandboxes of a pod can be removed from the runtime. Pure.

use std::cmp::Reverse;
use std::collections::HashSet;

use crate::ids::{ContainerId, SandboxId};
use crate::ports::{ContainerState, RuntimePod, RuntimePodContainer, SandboxState};

/// Which dead containers of a pod are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// The newest dead run of each container. The last state, the crash backoff and a log come from it, and the worker may not
    /// have acted on its exit yet. The number, 1, is upstream's `MaxPerPodContainerCount` (kubelet 1.36).
    Newest,
    /// No dead run.
    Nothing,
}

/// The containers and sandboxes of one pod that can be removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Garbage {
    /// The runs in the order of their removal: the newest run of each container comes last.
    pub(super) containers: Vec<ContainerId>,
    /// The ended sandboxes that hold no container after those removals.
    pub(super) sandboxes: Vec<SandboxId>,
}

/// The garbage of a pod.
///
/// An exited run is kept until its exit was `read`, because only the runtime knows the exit code (POD-W11). A run in an unknown
/// state is removed once a newer run of its container exists. A run that was created and never started is removed once a newer
/// one has started. An earlier removal would cause a sync that skips the backoff of the next start.
pub(super) fn garbage(pod: &RuntimePod, keep: Keep, read: impl Fn(&ContainerId) -> bool) -> Garbage {
    let mut runs: Vec<&RuntimePodContainer> = pod.containers.iter().collect();
    runs.sort_by_key(|run| Reverse((run.attempt, run.created_at)));
    let (mut names, mut started, mut exited) = (HashSet::new(), HashSet::new(), HashSet::new());
    let mut containers = Vec::new();
    for run in runs {
        let is_newest = names.insert(&run.name);
        let is_garbage = match (run.state, keep) {
            (ContainerState::Running, _) => false,
            (ContainerState::Exited, Keep::Newest) => !exited.insert(&run.name) && read(&run.id),
            (ContainerState::Created, Keep::Newest) => started.contains(&run.name),
            (ContainerState::Unknown, Keep::Newest) => !is_newest,
            (ContainerState::Exited | ContainerState::Created | ContainerState::Unknown, Keep::Nothing) => true,
        };
        if matches!(run.state, ContainerState::Running | ContainerState::Exited) {
            started.insert(&run.name);
        }
        if is_garbage {
            containers.push(run.id.clone());
        }
    }
    containers.reverse();
    let sandboxes = sandboxes(pod, keep, &containers);
    Garbage { containers, sandboxes }
}

/// The ended sandboxes that no kept container uses. The newest sandbox is kept, because the attempt of the next one follows
/// from it.
fn sandboxes(pod: &RuntimePod, keep: Keep, removed: &[ContainerId]) -> Vec<SandboxId> {
    let ended = || pod.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::NotReady);
    if ended().next().is_none() {
        return vec![];
    }
    let removed: HashSet<&ContainerId> = removed.iter().collect();
    let in_use: HashSet<&SandboxId> =
        pod.containers.iter().filter(|run| !removed.contains(&run.id)).map(|run| &run.sandbox).collect();
    let newest =
        pod.sandboxes.iter().max_by_key(|sandbox| (sandbox.attempt, sandbox.created_at)).map(|sandbox| &sandbox.id);
    let is_garbage = |id| !in_use.contains(id) && (keep == Keep::Nothing || newest != Some(id));
    ended().map(|sandbox| &sandbox.id).filter(|id| is_garbage(id)).cloned().collect()
}

/// Whether a pod has anything that could be garbage. Checked first, because nearly every pod has nothing.
pub(super) fn may_have_garbage(pod: &RuntimePod) -> bool {
    pod.containers.iter().any(|run| run.state != ContainerState::Running)
        || pod.sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::NotReady)
}

#[cfg(test)]
mod tests {
    use ContainerState::{Created, Exited, Running, Unknown};

    use super::*;
    use crate::ids::FullName;
    use crate::ports::RuntimePodSandbox;
    use crate::time::Time;

    /// A pod with runs `(id, container, sandbox, state)` and sandboxes `(id, ready)`. The attempts grow, while the creation
    /// times go back, as on a machine whose clock was set back.
    fn pod(sandboxes: &[(&str, bool)], runs: &[(&str, &str, &str, ContainerState)]) -> RuntimePod {
        let sandbox = |(at, (id, ready)): (usize, &(&str, bool))| RuntimePodSandbox {
            id: (*id).into(),
            state: if *ready { SandboxState::Ready } else { SandboxState::NotReady },
            attempt: at as u32,
            created_at: Time::from_secs(1000 - at as u64),
        };
        let run = |(at, (id, name, sandbox, state)): (usize, &(&str, &str, &str, ContainerState))| {
            let (id, sandbox, name) = ((*id).into(), (*sandbox).into(), (*name).into());
            let (attempt, created_at) = (at as u32, Time::from_secs(1000 - at as u64));
            RuntimePodContainer { id, sandbox, name, state: *state, attempt, created_at }
        };
        RuntimePod {
            uid: "u".into(),
            full_name: FullName::new("ns", "p"),
            is_static: false,
            grace: None,
            sandboxes: sandboxes.iter().enumerate().map(sandbox).collect(),
            containers: runs.iter().enumerate().map(run).collect(),
        }
    }

    /// The garbage of a pod in one line: runs, then sandboxes.
    fn removed(pod: &RuntimePod, keep: Keep, unread: &str) -> String {
        let garbage = garbage(pod, keep, |id| id.as_str() != unread);
        let runs = garbage.containers.iter().map(ToString::to_string);
        runs.chain(garbage.sandboxes.iter().map(ToString::to_string)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_running_pod_keeps_the_newest_dead_run_of_each_container() {
        for (runs, expected) in [
            (&[("a1", "a", "s2", Exited)][..], ""),
            (&[("a1", "a", "s2", Exited), ("a2", "a", "s2", Exited), ("b1", "b", "s2", Exited)], "a1"),
            (&[("a1", "a", "s2", Exited), ("a2", "a", "s2", Exited), ("a3", "a", "s2", Running)], "a1"),
            // A created run is not dead, and does not replace the newest dead run.
            (&[("a1", "a", "s2", Exited), ("a2", "a", "s2", Created)], ""),
            (&[("a1", "a", "s2", Exited), ("a2", "a", "s2", Created), ("a3", "a", "s2", Running)], "a2"),
            (&[("a1", "a", "s2", Created), ("a2", "a", "s2", Created)], ""),
            (&[("a1", "a", "s2", Created), ("a2", "a", "s2", Exited)], "a1"),
            (&[("a1", "a", "s2", Unknown)], ""),
            (&[("a1", "a", "s2", Unknown), ("a2", "a", "s2", Running)], "a1"),
        ] {
            assert_eq!(removed(&pod(&[("s2", true)], runs), Keep::Newest, ""), expected, "{runs:?}");
        }
    }

    #[test]
    fn a_dead_run_is_kept_until_its_exit_was_read() {
        let pod = pod(&[("s", true)], &[("a1", "a", "s", Exited), ("a2", "a", "s", Exited), ("a3", "a", "s", Running)]);
        assert_eq!(removed(&pod, Keep::Newest, "a1"), "");
        assert_eq!(removed(&pod, Keep::Newest, ""), "a1");
    }

    #[test]
    fn a_terminated_pod_keeps_no_dead_container() {
        let runs = [
            ("a1", "a", "s1", Exited),
            ("a2", "a", "s2", Exited),
            ("b1", "b", "s2", Created),
            ("c1", "c", "s2", Unknown),
            ("d1", "d", "s2", Running),
        ];
        assert_eq!(removed(&pod(&[("s1", false), ("s2", true)], &runs), Keep::Nothing, "a1"), "a1 a2 b1 c1 s1");
    }

    #[test]
    fn an_ended_sandbox_is_removed_once_it_is_empty_and_replaced() {
        let sandboxes = [("s1", false), ("s2", false), ("s3", false)];
        let runs = [("a1", "a", "s1", Exited), ("a2", "a", "s2", Exited)];
        assert_eq!(removed(&pod(&sandboxes, &runs), Keep::Newest, ""), "a1 s1");
        assert_eq!(removed(&pod(&sandboxes, &runs), Keep::Newest, "a1"), "", "a kept run uses the sandbox");
        assert_eq!(removed(&pod(&sandboxes, &runs), Keep::Nothing, ""), "a1 a2 s1 s2 s3");
        assert_eq!(
            removed(&pod(&[("s1", true)], &[]), Keep::Nothing, ""),
            "",
            "a ready sandbox is stopped by a worker"
        );
    }
}
