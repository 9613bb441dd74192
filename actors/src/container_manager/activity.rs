//! What the hooks of each pod are doing now, so that a pod that takes long can say where it stands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;

use super::governor::{StartKind, Ticket};
use crate::ids::{ContainerName, PodUid};
use crate::ports::Clock;
use crate::time::Time;

/// One thing that a hook does for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// What.
    pub task: Task,
    /// For which container, if for one.
    pub container: Option<ContainerName>,
    /// Since when.
    pub since: Time,
    /// When it ends at the latest, if it has a limit.
    pub until: Option<Time>,
}

/// What a hook can be doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Asks the runtime what runs of the pod.
    ReadStatus,
    /// Makes directories and volumes.
    SetUpVolumes,
    /// Removes volumes.
    TakeDownVolumes,
    /// Makes the pod's cgroup, or sees that it is there.
    MakeCgroup,
    /// Removes the pod's cgroup, and what is left in it.
    RemoveCgroup,
    /// Waits until the start governor lets it start.
    AwaitTurn(StartKind, Ticket),
    /// Makes a sandbox.
    RunSandbox,
    /// Has the image made present.
    PullImage(String),
    /// Makes and starts a container.
    StartContainer,
    /// Runs a post-start hook.
    PostStart,
    /// Runs a pre-stop hook.
    PreStop,
    /// Waits for the containers that stop before this one.
    AwaitOthers,
    /// Waits until a container has stopped.
    StopContainer,
    /// Waits until a sandbox has stopped.
    StopSandbox,
}

/// What is being done for each pod.
pub struct Activities {
    clock: Arc<dyn Clock>,
    begun: AtomicU64,
    pods: DashMap<PodUid, Vec<(u64, Activity)>>,
}

impl Activities {
    /// Nothing is being done.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Activities { clock, begun: AtomicU64::new(0), pods: DashMap::new() }
    }

    /// Notes what is being done until the answer is dropped.
    #[must_use]
    pub fn begin(&self, uid: &PodUid, task: Task) -> Doing<'_> {
        self.begin_with(uid, task, None, None)
    }

    /// As [`begin`](Self::begin), for a container or with a time at which it ends.
    #[must_use]
    pub fn begin_with(
        &self,
        uid: &PodUid,
        task: Task,
        container: Option<ContainerName>,
        until: Option<Time>,
    ) -> Doing<'_> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let activity = Activity { task, container, since: self.clock.now(), until };
        self.pods.entry(uid.clone()).or_default().push((number, activity));
        Doing { activities: self, uid: uid.clone(), number }
    }

    /// What is being done for a pod, the longest first.
    pub fn of(&self, uid: &PodUid) -> Vec<Activity> {
        self.pods.get(uid).map(|all| all.iter().map(|(_, activity)| activity.clone()).collect()).unwrap_or_default()
    }
}

/// Something that is being done, until this is dropped.
pub struct Doing<'a> {
    activities: &'a Activities,
    uid: PodUid,
    number: u64,
}

impl Drop for Doing<'_> {
    fn drop(&mut self) {
        let empty = match self.activities.pods.get_mut(&self.uid) {
            Some(mut all) => {
                all.retain(|(number, _)| *number != self.number);
                all.is_empty()
            }
            None => false,
        };
        if empty {
            self.activities.pods.remove_if(&self.uid, |_, all| all.is_empty());
        }
    }
}
