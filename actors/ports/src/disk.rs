//! The disk space that pods use and that the node has left.

use std::collections::BTreeMap;
use std::ops::Add;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use podwright_model::pod::PodObject;

use super::StorageError;

/// Measures the disk space of pods and of the node. Calls may take long for pods with many files, and never block the
/// calling thread. Dropping a call's future ends the measurement soon.
pub trait DiskMeter: Send + Sync + 'static {
    /// The space that the pod's emptyDirs and logs use. A volume or a log that does not exist uses nothing.
    ///
    /// # Errors
    /// [`StorageError`] if a volume or a log directory cannot be read.
    fn pod_usage<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<PodDiskUsage, StorageError>>;

    /// The file system of the pods' directories (upstream `nodefs`).
    ///
    /// # Errors
    /// [`StorageError`] if the file system cannot be measured.
    fn node_file_system(&self) -> BoxFuture<'_, Result<FileSystemSpace, StorageError>>;
}

/// The space that files use on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedSpace {
    /// The allocated bytes. A hole in a file uses none, and a file with several hard links counts once.
    pub bytes: u64,
    /// The number of files, directories, links and devices.
    pub inodes: u64,
}

impl UsedSpace {
    /// The space of so many allocated bytes and inodes.
    pub const fn new(bytes: u64, inodes: u64) -> Self {
        UsedSpace { bytes, inodes }
    }
}

impl Add for UsedSpace {
    type Output = UsedSpace;

    fn add(self, other: UsedSpace) -> UsedSpace {
        UsedSpace::new(self.bytes.saturating_add(other.bytes), self.inodes.saturating_add(other.inodes))
    }
}

impl std::iter::Sum for UsedSpace {
    fn sum<I: Iterator<Item = UsedSpace>>(spaces: I) -> Self {
        spaces.fold(UsedSpace::default(), Add::add)
    }
}

/// The space that the volumes and the logs of a pod use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDiskUsage {
    /// The emptyDirs by volume name, those with medium `Memory` included.
    pub volumes: BTreeMap<String, UsedSpace>,
    /// The logs of all runs of each container, by container name.
    pub logs: BTreeMap<String, UsedSpace>,
}

/// The space that the writable layer of one container uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritableLayer {
    /// The container's name.
    pub container: String,
    /// The space.
    pub used: UsedSpace,
}

/// The size of a file system and what is left of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystemSpace {
    /// The number of the device that holds the file system. Two paths with the same number share their space.
    pub device: u64,
    /// The size in bytes.
    pub capacity: u64,
    /// The bytes that processes without privileges can still use.
    pub available: u64,
    /// The number of inodes; 0 for a file system without a fixed number.
    pub inodes: u64,
    /// The number of free inodes.
    pub inodes_free: u64,
}
