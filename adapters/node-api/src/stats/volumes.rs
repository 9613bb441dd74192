//! The disk space of the pods' volumes and logs.
//!
//! A pod is measured only while a client asks for the statistics, and its measurement is kept for one to two minutes. One pod is measured
//! at a time, so that many pods with many files do not take the disk from their containers. A request waits a few seconds at most, and
//! gets the previous measurement of a pod that takes longer; the measurement continues.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::fields::{FsStats, PodStats, VolumeStats};
use podwright_host::storage::{FileStorage, PodSpace, VolumeSpace};
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_ports::{FileSystemSpace, UsedSpace};

/// How long a measurement is kept at least (`volumeStatsAggPeriod`, kubelet 1.36). Up to as much again is added, at random, so that
/// pods that started together are not measured together.
const PERIOD: Duration = Duration::from_secs(60);
/// How long a request waits for measurements.
const WAIT: Duration = Duration::from_secs(5);

/// Measures pods, and keeps their measurements. Dropping it ends a measurement that runs.
pub(crate) struct VolumeMeter {
    storage: FileStorage,
    pods: Arc<Mutex<HashMap<PodUid, PodMeasurement>>>,
    pass: Mutex<Option<MeasuringPass>>,
}

/// The last measurement of a pod.
struct PodMeasurement {
    /// `None` if no measurement of the pod has succeeded.
    space: Option<Arc<MeasuredSpace>>,
    /// When the pod is measured again.
    due: Instant,
}

/// The space of a pod, and the time of its measurement.
#[derive(Debug)]
pub(super) struct MeasuredSpace {
    pub(super) at: Timestamp,
    pub(super) space: PodSpace,
}

/// A task that measures several pods, one after another.
struct MeasuringPass {
    done: CancellationToken,
    _task: JoinSet<()>,
}

impl VolumeMeter {
    pub(crate) fn new(storage: FileStorage) -> Self {
        VolumeMeter { storage, pods: Arc::default(), pass: Mutex::default() }
    }

    /// The measurements of these pods. Those of other pods are forgotten. A pod without a measurement is absent.
    pub(super) async fn measure(&self, pods: &[Arc<PodObject>]) -> HashMap<PodUid, Arc<MeasuredSpace>> {
        let uids: HashSet<&PodUid> = pods.iter().map(|pod| pod.uid()).collect();
        self.pods.lock().retain(|uid, _| uids.contains(uid));
        let deadline = Instant::now() + WAIT;
        while let Some(done) = self.running_pass(pods) {
            if timeout_at(deadline, done.cancelled()).await.is_err() {
                break;
            }
        }
        let known = self.pods.lock();
        known.iter().filter_map(|(uid, pod)| Some((uid.clone(), pod.space.clone()?))).collect()
    }

    /// The end of the pass that runs. Starts one if a pod is due. `None` if no pod is due.
    fn running_pass(&self, pods: &[Arc<PodObject>]) -> Option<CancellationToken> {
        let mut pass = self.pass.lock();
        if let Some(running) = pass.as_ref().filter(|pass| !pass.done.is_cancelled()) {
            return Some(running.done.clone());
        }
        let due: Vec<_> = {
            let known = self.pods.lock();
            let is_due = |pod: &&Arc<PodObject>| known.get(pod.uid()).is_none_or(|pod| pod.due <= Instant::now());
            pods.iter().filter(is_due).cloned().collect()
        };
        if due.is_empty() {
            return None;
        }
        let done = CancellationToken::new();
        let mut task = JoinSet::new();
        task.spawn(measure(self.storage.clone(), due, self.pods.clone(), done.clone()));
        *pass = Some(MeasuringPass { done: done.clone(), _task: task });
        Some(done)
    }
}

/// Measures pods one after another, and cancels `done` at the end. A pod whose measurement fails keeps the previous one.
async fn measure(
    storage: FileStorage,
    pods: Vec<Arc<PodObject>>,
    known: Arc<Mutex<HashMap<PodUid, PodMeasurement>>>,
    done: CancellationToken,
) {
    let _done = done.drop_guard();
    for pod in pods {
        let measured = storage.pod_space(&pod).await;
        if let Err(error) = &measured {
            let error = error_chain(error).to_string();
            tracing::warn!(error, pod = %pod.full_name(), "cannot measure the volumes of a pod for /stats/summary");
        }
        let mut known = known.lock();
        let previous = known.remove(pod.uid()).and_then(|pod| pod.space);
        let space = measured.ok().map(|space| Arc::new(MeasuredSpace { at: Timestamp::now(), space }));
        let due = Instant::now() + PERIOD + PERIOD.mul_f64(fastrand::f64());
        known.insert(pod.uid().clone(), PodMeasurement { space: space.or(previous), due });
    }
}

/// Adds the space of a pod's volumes and logs to its statistics. Like a kubelet, it reports the file system of the volume or of the node
/// beside the used space.
pub(super) fn add(pod: &mut PodStats, measured: &MeasuredSpace, node: Option<&FsStats>) {
    let time = measured.at.to_string();
    let on_node = |used: UsedSpace| FsStats {
        time: time.clone(),
        used_bytes: Some(used.bytes),
        inodes_used: Some(used.inodes),
        ..node.cloned().unwrap_or_default()
    };
    pod.volumes = measured.space.volumes.iter().map(|volume| of_volume(volume, time.clone())).collect();
    for container in &mut pod.containers {
        container.logs = measured.space.logs.get(&container.name).map(|used| on_node(*used));
    }
    let layers = pod.containers.iter().filter_map(|container| container.rootfs.as_ref());
    let layers = layers.map(|layer| UsedSpace::new(layer.used_bytes.unwrap_or(0), layer.inodes_used.unwrap_or(0)));
    let logs = measured.space.logs.values().copied();
    let volumes = measured.space.volumes.iter().filter(|volume| volume.is_local_storage).map(|volume| volume.used);
    pod.ephemeral_storage = Some(on_node(layers.chain(logs).chain(volumes).sum()));
}

fn of_volume(volume: &VolumeSpace, time: String) -> VolumeStats {
    let VolumeSpace { name, used, file_system, .. } = volume;
    let space =
        FsStats { time, used_bytes: Some(used.bytes), inodes_used: Some(used.inodes), ..of_file_system(file_system) };
    VolumeStats { name: name.clone(), space }
}

/// The size of a file system and what is left of it.
pub(super) fn of_file_system(space: &FileSystemSpace) -> FsStats {
    FsStats {
        available_bytes: Some(space.available),
        capacity_bytes: Some(space.capacity),
        inodes_free: Some(space.inodes_free),
        inodes: Some(space.inodes),
        ..FsStats::default()
    }
}

#[cfg(test)]
mod tests;
