//! A pod's directory on the node and the pod's volumes.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;

use super::{ErrorSource, is_same};

/// The host path of each volume of a pod, by volume name.
pub type VolumeMounts = BTreeMap<String, PathBuf>;

/// A file that the node writes into a volume.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumeFile {
    /// The path in the volume.
    pub path: String,
    /// The content.
    pub content: Vec<u8>,
    /// The mode.
    pub mode: u32,
    /// The user that owns the file; `None` for the user of the agent.
    pub owner: Option<u32>,
}

/// Prints no content, because the file may be of a secret.
impl fmt::Debug for VolumeFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeFile").field("path", &self.path).field("mode", &self.mode).finish_non_exhaustive()
    }
}

/// The content of the volumes that are made of API objects, by volume name: the files, or why there are none now.
pub type VolumeFiles = BTreeMap<String, Result<Vec<VolumeFile>, ErrorSource>>;

/// The volumes of a pod after [`PodStorage::set_up_with`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumesSetUp {
    /// The host path of each volume.
    pub mounts: VolumeMounts,
    /// Why volumes still have the content of an earlier call.
    pub outdated: Vec<StorageError>,
}

/// Returns whether a pod's directory or cgroup is no longer needed. Answers at once.
pub type Unused = Box<dyn FnOnce() -> bool + Send>;

/// Makes and removes a pod's directory and volumes. Every call is idempotent and cancel safe.
pub trait PodStorage: Send + Sync + 'static {
    /// Makes the pod's directories, which other users cannot list, and its volumes. Updates volumes whose content depends
    /// on the pod object.
    ///
    /// # Errors
    /// [`StorageError`] for the first volume or directory that failed.
    fn set_up<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<VolumeMounts, StorageError>>;

    /// Like [`set_up`](PodStorage::set_up), for a pod with volumes that are made of API objects. Each set of files replaces the
    /// earlier files of its volume at once. A volume that an earlier call filled keeps its files if there are none now.
    ///
    /// # Errors
    /// [`StorageError`] for the first volume or directory that failed. [`StorageError::Volume`] with the source of `files` for a volume
    /// that no call has filled.
    fn set_up_with<'a>(
        &'a self,
        pod: &'a Arc<PodObject>,
        files: VolumeFiles,
    ) -> BoxFuture<'a, Result<VolumesSetUp, StorageError>> {
        let failed = files.into_iter().find_map(|(volume, files)| Some((volume, files.err()?)));
        Box::pin(async move {
            match failed {
                Some((volume, source)) => Err(StorageError::Volume { volume, source }),
                None => Ok(VolumesSetUp { mounts: self.set_up(pod).await?, outdated: Vec::new() }),
            }
        })
    }

    /// Unmounts the pod's volumes.
    ///
    /// # Errors
    /// [`StorageError`] for the first volume that failed.
    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), StorageError>>;

    /// Unmounts the pod's remaining volumes and removes the pod's logs and directory. `unused` is called after other
    /// operations on the pod have ended; if it returns `false`, nothing is removed, because the pod is desired again.
    ///
    /// # Errors
    /// [`StorageError`] for the first volume or directory that failed.
    fn remove_pod<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), StorageError>>;

    /// Lists every pod that has a directory here. Directories that other programs manage are not listed.
    ///
    /// # Errors
    /// [`StorageError`] if the directories cannot be read.
    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodUid>, StorageError>>;

    /// The path that an operation on the pod is working on now, if known. It names the cause of an operation that
    /// hangs.
    fn under_way(&self, uid: &PodUid) -> Option<PathBuf> {
        let _ = uid;
        None
    }

    /// Reads a file of a volume. `volume` is the volume's path on the node, and `path` is relative to it. A link in the volume leads
    /// to a file in the volume.
    ///
    /// # Errors
    /// [`StorageError::Io`] if there is no regular file of a reasonable size, or if it cannot be read.
    fn read_volume_file<'a>(&'a self, volume: &'a Path, path: &'a str) -> BoxFuture<'a, Result<Vec<u8>, StorageError>> {
        let error = std::io::Error::from(std::io::ErrorKind::Unsupported);
        let unsupported = StorageError::io(volume.join(path), error);
        Box::pin(std::future::ready(Err(unsupported)))
    }

    /// The container's restart count by its log directory; `None` if the directory has no logs to count.
    fn restarts_by_log<'a>(&'a self, pod: &'a PodObject, container: &'a str) -> BoxFuture<'a, Option<u32>>;
}

/// Waits for an operation on a pod for at most `limit`, because a file system that hangs blocks its callers. The
/// operation continues after the limit.
///
/// # Errors
/// The error of the operation, or [`StorageError::Slow`] after the limit.
pub async fn within<T>(
    limit: Duration,
    storage: &dyn PodStorage,
    uid: &PodUid,
    call: BoxFuture<'_, Result<T, StorageError>>,
) -> Result<T, StorageError> {
    let slow = |_| Err(StorageError::Slow { path: storage.under_way(uid), after: limit });
    tokio::time::timeout(limit, call).await.unwrap_or_else(slow)
}

/// A volume or directory operation failed.
// The node has an event for each variant. A new variant without one must not compile.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StorageError {
    /// This kind of volume is not supported.
    #[error("volume {volume:?}: {kind} volumes are not supported: {remedy}")]
    Unsupported {
        /// The volume's name.
        volume: String,
        /// The kind, as the field of the spec is named.
        kind: String,
        /// What to use instead.
        remedy: String,
    },
    /// The volume cannot be used as the spec requires.
    #[error("volume {volume:?}")]
    Volume {
        /// The volume's name.
        volume: String,
        /// Why not.
        source: ErrorSource,
    },
    /// The volume cannot be unmounted while it is in use.
    #[error("volume {volume:?}")]
    Busy {
        /// The volume's name.
        volume: String,
        /// What is still mounted, and which process uses it.
        source: ErrorSource,
    },
    /// The file system does not answer.
    #[error(
        "{path} is not done after {} s: check whether the file system there answers",
        .after.as_secs(), path = .path.as_deref().unwrap_or(Path::new("a directory")).display()
    )]
    Slow {
        /// The path, if known.
        path: Option<PathBuf>,
        /// How long the caller waited.
        after: Duration,
    },
    /// The file system reported an error.
    #[error("{path}", path = .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error of the file system.
        source: ErrorSource,
    },
}

impl StorageError {
    /// A [`StorageError::Volume`] with this source.
    pub fn volume(volume: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        StorageError::Volume { volume: volume.into(), source: source.into().into() }
    }

    /// A [`StorageError::Busy`] with this source.
    pub fn busy(volume: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        StorageError::Busy { volume: volume.into(), source: source.into().into() }
    }

    /// A [`StorageError::Io`] with this source.
    pub fn io(path: impl Into<PathBuf>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        StorageError::Io { path: path.into(), source: source.into().into() }
    }
}

/// Two errors are equal if they have the same variant and the same text, sources included.
impl PartialEq for StorageError {
    fn eq(&self, other: &Self) -> bool {
        is_same(self, other)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io;

    use super::*;
    use crate::RuntimeError;

    #[test]
    fn source_of_a_port_error_can_be_downcast() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let errors: [Box<dyn Error>; 2] =
            [Box::new(StorageError::io("/pods", full())), Box::new(RuntimeError::failed(full()))];
        for error in errors {
            let source = error.source().unwrap().downcast_ref::<io::Error>();
            assert_eq!(source.map(io::Error::kind), Some(io::ErrorKind::StorageFull), "{error}");
        }
    }
}
