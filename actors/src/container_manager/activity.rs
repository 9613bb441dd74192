//! The current activities of each pod's hooks, which explain why a pod takes long.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;

use super::governor::{StartKind, Ticket};
use crate::ids::{ContainerName, PodUid};
use crate::ports::Clock;
use crate::time::Time;

/// An activity of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Activity {
    /// What the hook does.
    pub task: Task,
    /// The container that the activity is for, if it is for one.
    pub container: Option<ContainerName>,
    /// When the activity began.
    pub since: Time,
    /// When the activity ends at the latest, if it has a limit.
    pub until: Option<Time>,
}

/// What a hook does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Reads the pod's status from the runtime.
    ReadStatus,
    /// Makes the pod's directories and volumes.
    SetUpVolumes,
    /// Unmounts the pod's volumes.
    TakeDownVolumes,
    /// Makes the pod's cgroup, or checks that it exists.
    MakeCgroup,
    /// Removes the pod's cgroup and kills the processes in it.
    RemoveCgroup,
    /// Waits for the start governor.
    AwaitTurn(StartKind, Ticket),
    /// Prepares the resources of the pod.
    PrepareResources,
    /// Releases the resources of the pod.
    ReleaseResources,
    /// Creates and starts a sandbox.
    RunSandbox,
    /// Looks up or pulls an image.
    PullImage(String),
    /// Creates and starts a container.
    StartContainer,
    /// Changes the resources of running containers.
    Resize,
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

/// The current activities of each pod.
pub struct Activities {
    clock: Arc<dyn Clock>,
    begun: AtomicU64,
    pods: DashMap<PodUid, Vec<(u64, Activity)>>,
}

impl Activities {
    /// No activities.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Activities { clock, begun: AtomicU64::new(0), pods: DashMap::new() }
    }

    /// Records an activity until the returned guard is dropped.
    #[must_use]
    pub fn begin(&self, uid: &PodUid, task: Task) -> ActivityGuard<'_> {
        self.begin_with(uid, task, None, None)
    }

    /// Like [`begin`](Self::begin), for a container or with a time limit.
    #[must_use]
    pub fn begin_with(
        &self,
        uid: &PodUid,
        task: Task,
        container: Option<ContainerName>,
        until: Option<Time>,
    ) -> ActivityGuard<'_> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let activity = Activity { task, container, since: self.clock.now(), until };
        self.pods.entry(uid.clone()).or_default().push((number, activity));
        ActivityGuard { activities: self, uid: uid.clone(), number }
    }

    /// The activities for a pod, the oldest first.
    pub fn of(&self, uid: &PodUid) -> Vec<Activity> {
        self.pods.get(uid).map(|all| all.iter().map(|(_, activity)| activity.clone()).collect()).unwrap_or_default()
    }
}

/// Ends its activity when dropped.
pub struct ActivityGuard<'a> {
    activities: &'a Activities,
    uid: PodUid,
    number: u64,
}

impl Drop for ActivityGuard<'_> {
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
