//! The disk usage of the simulated pods, in one life of the agent.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_ports::{DiskMeter, FileSystemSpace, PodDiskUsage, StorageError, UsedSpace};

/// The volume of each pod from the API server, and its limit.
pub(super) const VOLUME: (&str, &str) = ("cache", "1Mi");

/// Which pods have written more than their volume's limit.
#[derive(Default)]
pub(super) struct Usage(Mutex<BTreeSet<PodUid>>);

impl Usage {
    /// The pod writes more than its limit, so the agent evicts it.
    pub(super) fn exceed(&self, uid: &PodUid) {
        self.0.lock().insert(uid.clone());
    }
}

impl DiskMeter for Usage {
    fn pod_usage<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<PodDiskUsage, StorageError>> {
        let bytes = if self.0.lock().contains(pod.uid()) { 2 << 20 } else { 1 << 20 };
        let volumes = [(VOLUME.0.to_owned(), UsedSpace::new(bytes, 1))].into();
        async { Ok(PodDiskUsage { volumes, ..PodDiskUsage::default() }) }.boxed()
    }

    fn node_file_system(&self) -> BoxFuture<'_, Result<FileSystemSpace, StorageError>> {
        let space = FileSystemSpace { device: 1, capacity: 100, available: 100, inodes: 100, inodes_free: 100 };
        async move { Ok(space) }.boxed()
    }
}
