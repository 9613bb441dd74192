//! The file of allocations: one record for each pod, all saved together.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{Resizes, is_recorded};
use crate::ids::PodUid;
use crate::journal::{Journaled, NotStored, Write};
use crate::pod::PodObject;
use crate::ports::CheckpointError;
use crate::resize::{Actual, Actuated, Allocation, Bounds, Step, Superseded};
use crate::text::error_chain;

/// The allocation of one pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AllocationRecord {
    uid: String,
    /// The full name, for readers of the file.
    #[serde(default)]
    pod: String,
    pub(super) allocated: Allocation,
    /// The resources of an earlier allocation that the pod still uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) in_use: Option<InUse>,
}

/// The resources that may differ from the allocated ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct InUse {
    containers: BTreeMap<String, ResourceRequirements>,
    cgroup: Bounds,
    /// The largest pod-level resources of the earlier allocations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pod_level: Option<ResourceRequirements>,
    /// The calls whose results are unknown.
    #[serde(default, skip_serializing_if = "Begun::is_empty")]
    begun: Begun,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Begun {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    containers: BTreeMap<String, Vec<ResourceRequirements>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cgroup: Vec<Bounds>,
}

impl Begun {
    fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.cgroup.is_empty()
    }
}

impl InUse {
    fn of(actuated: &Actuated) -> Self {
        let containers = actuated.containers.iter();
        let begun = containers.clone().filter(|(_, actual)| !actual.begun.is_empty());
        InUse {
            containers: containers.map(|(name, actual)| (name.clone(), actual.known.clone())).collect(),
            cgroup: actuated.cgroup.known,
            pod_level: actuated.pod_level.clone(),
            begun: Begun {
                containers: begun.map(|(name, actual)| (name.clone(), actual.begun.clone())).collect(),
                cgroup: actuated.cgroup.begun.clone(),
            },
        }
    }

    /// The resources in use of a pod with its allocated resources.
    pub(super) fn actuated(self, allocated: Arc<PodObject>) -> Actuated {
        let InUse { containers, cgroup, pod_level, mut begun } = self;
        let containers = containers.into_iter().map(|(name, known)| {
            let begun = begun.containers.remove(&name).unwrap_or_default();
            (name, Actual { known, begun })
        });
        // No call would be made for a container that certainly has what is allocated, so the resize would never be complete.
        let differs = |(name, actual): &(String, Actual<ResourceRequirements>)| actual.may_differ(&allocated, name);
        let containers = containers.filter(differs).collect();
        Actuated { allocated, containers, cgroup: Actual { known: cgroup, begun: begun.cgroup }, pod_level }
    }
}

impl AllocationRecord {
    /// The allocation of a pod.
    pub(super) fn of(pod: &PodObject) -> Self {
        AllocationRecord {
            uid: pod.uid().to_string(),
            pod: pod.full_name().to_string(),
            allocated: Allocation::of(pod),
            in_use: None,
        }
    }

    /// Parses a line of the file. A line that cannot be parsed is logged and left out.
    pub(super) fn parse(line: &str) -> Option<(PodUid, AllocationRecord)> {
        match serde_json::from_str::<AllocationRecord>(line) {
            Ok(record) => Some((PodUid::new(&record.uid), record)),
            Err(error) => {
                tracing::error!(%error, "cannot read the allocation of a pod; the status of the pod gives the allocation");
                None
            }
        }
    }
}

/// The allocation of a resize is not on disk, so that the resize is not applied and no container starts with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotWritten {
    /// The disk does not answer, or cannot be written.
    #[error("the file of allocations cannot be written: free or repair the disk of the agent's root directory")]
    Failed,
    /// Another node of this process has opened the file.
    #[error(
        "another node of this process has opened the file of allocations: stop one of the nodes, or give each its own file"
    )]
    Superseded,
}

/// A call of a resize must not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotBegun {
    /// A newer allocation has replaced the one of the call.
    #[error(transparent)]
    Superseded(#[from] Superseded),
    /// The call is not on disk.
    #[error(transparent)]
    NotWritten(#[from] NotWritten),
}

/// A pod with its resources in use, if they are known.
type PodInUse = (Arc<PodObject>, Option<InUse>);

impl Resizes {
    /// Records that the call of a step begins, in a sync of `pod`, and waits until the record is on disk. Cancel safe.
    ///
    /// # Errors
    /// [`NotBegun`] if the call must not be made.
    pub(crate) async fn begin(&self, pod: &PodObject, step: &Step) -> Result<(), NotBegun> {
        let begin =
            || self.record(pod.uid(), |resize| resize.map_or(Err(Superseded), |resize| resize.begin(pod, step)));
        begin()?;
        self.written().await?;
        // A newer allocation may have come during the write.
        begin()?;
        Ok(())
    }

    /// Records that a container starts with its resources in `pod`, and waits until the record is on disk. Cancel safe.
    ///
    /// # Errors
    /// [`NotBegun`] if the container must not start.
    pub(crate) async fn starts(&self, pod: &PodObject, name: &str) -> Result<(), NotBegun> {
        let starts = || self.record(pod.uid(), |resize| resize.map_or(Ok(false), |resize| resize.starts(pod, name)));
        starts()?;
        if self.state.lock().pods.get(pod.uid()).is_some_and(|resize| resize.unsaved.is_some()) {
            self.written().await?;
            starts()?;
        }
        Ok(())
    }

    /// Waits until every change so far is on disk. Cancel safe.
    ///
    /// # Errors
    /// [`NotWritten`] after 10 s, or if this node may no longer write the file.
    async fn written(&self) -> Result<(), NotWritten> {
        let version = self.state.lock().version;
        self.journal.written(version).await.map_err(|error| match error {
            NotStored::Failed | NotStored::TooLate => NotWritten::Failed,
            NotStored::Superseded => NotWritten::Superseded,
        })
    }

    /// Writes each change. Returns once `stop` is cancelled, or once another node has opened the file. No write begins after that.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        self.journal.run(self, stop).await;
    }

    /// The records of all pods: those of the desired pods, and those of pods that no source has delivered yet.
    pub(super) fn records(&self) -> Vec<Arc<str>> {
        let (pods, loaded) = self.recorded();
        let of_pod = |(pod, in_use): PodInUse| AllocationRecord { in_use, ..AllocationRecord::of(&pod) };
        let encode = |record: AllocationRecord| match serde_json::to_string(&record) {
            Ok(text) => Some(text.into()),
            Err(error) => {
                tracing::error!(pod = record.pod, %error, "cannot encode the allocation of a pod");
                None
            }
        };
        pods.into_iter().map(of_pod).chain(loaded).filter_map(encode).collect()
    }

    /// The desired pods with their resources in use, and the records of the other pods, all of one moment.
    fn recorded(&self) -> (Vec<PodInUse>, Vec<AllocationRecord>) {
        // A pod becomes a desired pod and loses its loaded record under the first lock. Without that lock, a pod could be seen as
        // neither, and would lose its record.
        let desired = self.desired.lock();
        let state = self.state.lock();
        let in_use = |uid: &PodUid| {
            let actuated = state.pods.get(uid)?.actuated.as_ref()?;
            Some(InUse::of(actuated))
        };
        let pods = desired.pods.pods().filter(|pod| is_recorded(pod)).map(|pod| (pod.clone(), in_use(pod.uid())));
        let is_desired = |uid: &PodUid| desired.pods.pod(uid).is_some_and(|pod| is_recorded(pod));
        let loaded = state.loaded.iter().filter(|(uid, _)| !is_desired(uid)).map(|(uid, record)| {
            // The store has the resources in use of a pod that was delivered and is not among the desired pods.
            AllocationRecord { in_use: in_use(uid).or_else(|| record.in_use.clone()), ..record.clone() }
        });
        (pods.collect(), loaded.collect())
    }
}

impl Journaled for Resizes {
    const RECORDS: &'static str = "the allocations of pods";
    const STORE: &'static str = "the store of allocations";

    fn next_write(&self, stored: u64) -> Option<(u64, Write)> {
        let version = self.state.lock().version;
        (version > stored).then(|| (version, Write::Save(self.records())))
    }

    /// Every write is a save.
    fn forget_file(&self) {}

    /// Drops the resizes that are over.
    fn on_stored(&self, version: u64) {
        self.state.lock().pods.retain(|_, resize| {
            resize.saved(version);
            !resize.is_over()
        });
    }

    fn log_failure(&self, error: &CheckpointError) {
        tracing::error!(
            error = %error_chain(error),
            "cannot write the allocations of pods: free or repair the disk; until then no pod is resized, and no container of a \
             resized pod starts"
        );
    }

    fn log_superseded(&self, path: &Path) {
        tracing::error!(path = %path.display(), error = %NotWritten::Superseded, "this node resizes no pods");
    }
}
