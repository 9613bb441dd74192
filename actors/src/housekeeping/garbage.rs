//! Dead containers, ended sandboxes, and directories that nobody needs any more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use podwright_metrics::Metrics;

use super::plan::{is_directory_unused, running};
use crate::desired::Desired;
use crate::engine::Engine;
use crate::ids::{ContainerId, PodUid, SandboxId};
use crate::ports::{ContainerRuntime, ContainerState, PodCgroups, PodStorage, RuntimePod, SandboxState};

/// How many dead runs of each container are kept for their logs and last state (upstream
/// `MaxPerPodContainerCount`).
const KEEP_DEAD_RUNS: usize = 1;

/// What of one pod can be removed from the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Garbage {
    pub(super) containers: Vec<ContainerId>,
    pub(super) sandboxes: Vec<SandboxId>,
}

/// Dead runs beyond the newest of each container, and ended sandboxes in which nothing is left, except the newest. The
/// newest dead run of a container holds its last state and its crash backoff. If the pod's content may go, nothing that is
/// dead is kept, and nothing that was made and will not be started, or of which the runtime does not know whether it runs.
pub(super) fn garbage(pod: &RuntimePod, content_may_go: bool) -> Garbage {
    let mut garbage = Garbage::default();
    let is_dead = |state| match state {
        ContainerState::Exited => true,
        // What may run is stopped by whoever removes it.
        ContainerState::Created | ContainerState::Unknown => content_may_go,
        ContainerState::Running => false,
    };
    let mut dead: Vec<_> = pod.containers.iter().filter(|c| is_dead(c.state)).collect();
    dead.sort_by_key(|container| std::cmp::Reverse(container.created_at));
    let mut kept: HashMap<&str, usize> = HashMap::new();
    for container in dead {
        let runs = kept.entry(container.name.as_str()).or_default();
        if content_may_go || *runs >= KEEP_DEAD_RUNS {
            garbage.containers.push(container.id.clone());
        } else {
            *runs += 1;
        }
    }
    let going: HashSet<&ContainerId> = garbage.containers.iter().collect();
    let in_use: HashSet<&SandboxId> =
        pod.containers.iter().filter(|c| !going.contains(&c.id)).map(|c| &c.sandbox).collect();
    let newest = pod.sandboxes.iter().max_by_key(|sandbox| sandbox.created_at).map(|sandbox| &sandbox.id);
    let ended = pod.sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::NotReady);
    garbage.sandboxes = ended
        .filter(|sandbox| !in_use.contains(&sandbox.id) && (content_may_go || newest != Some(&sandbox.id)))
        .map(|sandbox| sandbox.id.clone())
        .collect();
    garbage
}

/// Whether there is anything that could be garbage. Nearly every pod of every sweep has nothing, so this is asked first.
fn has_ended_parts(pod: &RuntimePod) -> bool {
    let may_go = |state| match state {
        ContainerState::Created | ContainerState::Exited | ContainerState::Unknown => true,
        ContainerState::Running => false,
    };
    pod.containers.iter().any(|container| may_go(container.state))
        || pod.sandboxes.iter().any(|sandbox| sandbox.state == SandboxState::NotReady)
}

/// One sweep, in the background of a pass.
pub(super) struct Sweep {
    pub(super) engine: Engine,
    pub(super) desired: Arc<Desired>,
    pub(super) runtime: Arc<dyn ContainerRuntime>,
    pub(super) storage: Arc<dyn PodStorage>,
    pub(super) cgroups: Option<Arc<dyn PodCgroups>>,
    pub(super) metrics: Metrics,
}

impl Sweep {
    pub(super) async fn run(&self, listed: Vec<RuntimePod>) {
        for pod in &listed {
            self.collect(pod).await;
        }
        if let Some(left) = self.remove_cgroups(&listed).await {
            self.remove_directories(&listed, &left).await;
        }
    }

    async fn collect(&self, pod: &RuntimePod) {
        if !has_ended_parts(pod) {
            return;
        }
        // A pod that is wanted and has no record was rejected, or is about to be started: what it left may count yet.
        let decided = self.engine.is_pod_known(&pod.uid) || !self.is_wanted(&pod.uid);
        let content_may_go = decided && self.engine.should_pod_content_be_removed(&pod.uid);
        let garbage = garbage(pod, content_may_go);
        for container in &garbage.containers {
            // The newest log of a pod that goes on is kept by the container that is kept.
            if let Err(error) = self.runtime.remove_container(container, false).await {
                tracing::debug!(pod.uid = %pod.uid, %container, %error, "dead container was not removed");
            }
        }
        for sandbox in &garbage.sandboxes {
            if let Err(error) = self.runtime.remove_sandbox(sandbox).await {
                tracing::debug!(pod.uid = %pod.uid, %sandbox, %error, "ended sandbox was not removed");
            }
        }
    }

    /// Removes the directories of pods that nobody wants, knows or runs (K7).
    async fn remove_directories(&self, listed: &[RuntimePod], kept: &HashSet<PodUid>) {
        let pods = match self.storage.pods().await {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(%error, "cannot list pod directories");
                return;
            }
        };
        // Whether it runs is asked last: hardly ever is there anything to ask it of.
        let unused = |uid: &PodUid, runs| is_directory_unused(self.is_wanted(uid), self.engine.is_pod_known(uid), runs);
        let unused_unless_running: Vec<PodUid> = pods.into_iter().filter(|uid| unused(uid, false)).collect();
        let runs = if unused_unless_running.is_empty() { HashSet::default() } else { running(listed) };
        let (mut found, mut failed) = (0, 0);
        for uid in unused_unless_running {
            if kept.contains(&uid) || !unused(&uid, runs.contains(&uid)) {
                continue;
            }
            found += 1;
            // A pod with a UID of its own may come back right now, so the last word is asked when nothing else is under way.
            let (engine, desired, asked) = (self.engine.clone(), self.desired.clone(), uid.clone());
            let unused = move || !engine.is_pod_known(&asked) && desired.pod(&asked).is_none();
            if let Err(error) = self.storage.remove_pod(&uid, Box::new(unused)).await {
                failed += 1;
                tracing::warn!(pod.uid = %uid, %error, "pod directory was not removed");
            }
        }
        self.metrics.housekeeping.cleaned_volumes(found, failed);
    }

    /// Removes the cgroups of pods that nobody wants, knows or runs (K1, K14). One that came back while others were removed
    /// keeps its own (W37).
    ///
    /// Gives those that could not be removed; `None` if they cannot be told. What is left of such a pod stays, so that the next
    /// pass knows of it.
    async fn remove_cgroups(&self, listed: &[RuntimePod]) -> Option<HashSet<PodUid>> {
        let mut left = HashSet::new();
        let Some(cgroups) = &self.cgroups else { return Some(left) };
        let pods = match cgroups.pods().await {
            Ok(pods) => pods,
            Err(error) => {
                tracing::warn!(%error, "cannot list the cgroups of pods");
                return None;
            }
        };
        let runs = if pods.is_empty() { HashSet::default() } else { running(listed) };
        for uid in pods {
            if is_directory_unused(self.is_wanted(&uid), self.engine.is_pod_known(&uid), runs.contains(&uid))
                && let Err(error) = cgroups.remove(&uid).await
            {
                tracing::warn!(pod.uid = %uid, %error, "cgroup of a pod was not removed");
                left.insert(uid);
            }
        }
        Some(left)
    }

    fn is_wanted(&self, uid: &PodUid) -> bool {
        self.desired.lock().pods.pod(uid).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::FullName;
    use crate::ports::{RuntimePodContainer, RuntimePodSandbox};
    use crate::time::Time;

    fn pod() -> RuntimePod {
        let container = |id: &str, name: &str, sandbox: &str, state, at| RuntimePodContainer {
            id: id.into(),
            sandbox: sandbox.into(),
            name: name.into(),
            state,
            created_at: Time::from_secs(at),
        };
        let sandbox = |id: &str, state, at| RuntimePodSandbox { id: id.into(), state, created_at: Time::from_secs(at) };
        RuntimePod {
            uid: "u".into(),
            full_name: FullName::new("ns", "p"),
            sandboxes: vec![sandbox("s1", SandboxState::NotReady, 1), sandbox("s2", SandboxState::Ready, 5)],
            containers: vec![
                container("a1", "a", "s1", ContainerState::Exited, 2),
                container("a2", "a", "s2", ContainerState::Exited, 6),
                container("a3", "a", "s2", ContainerState::Running, 7),
                container("b1", "b", "s2", ContainerState::Exited, 8),
            ],
        }
    }

    #[test]
    fn the_newest_dead_run_of_each_container_is_kept() {
        let expected = Garbage { containers: vec!["a1".into()], sandboxes: vec!["s1".into()] };
        assert_eq!(garbage(&pod(), false), expected);
    }

    #[test]
    fn nothing_dead_is_kept_of_a_pod_whose_content_may_go() {
        let going = garbage(&pod(), true);
        assert_eq!(going.containers, ["b1".into(), "a2".into(), "a1".into()]);
        // The sandbox in which a container runs stays.
        assert_eq!(going.sandboxes, ["s1".into()]);
    }

    #[test]
    fn the_newest_sandbox_stays_for_its_attempt_number() {
        let mut ended = pod();
        ended.containers.clear();
        ended.sandboxes[1].state = SandboxState::NotReady;
        assert_eq!(garbage(&ended, false).sandboxes, ["s1".into()]);
        assert_eq!(garbage(&ended, true).sandboxes, ["s1".into(), "s2".into()]);
    }
}
