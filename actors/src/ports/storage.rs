//! A pod's directory on the node and the volumes in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::ids::PodUid;
use crate::pod::PodObject;

/// Where each volume of a pod is on the host, by volume name.
pub type VolumeMounts = BTreeMap<String, PathBuf>;

/// Says whether nobody needs a pod's directory. Answers at once.
pub type Unused = Box<dyn FnOnce() -> bool + Send>;

/// Makes and removes a pod's directory and volumes. Every call is idempotent and cancel safe.
pub trait PodStorage: Send + Sync + 'static {
    /// Makes the pod's directories (mode 0750) and volumes, and refreshes those whose content follows the pod object.
    fn set_up<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<VolumeMounts, StorageError>>;

    /// Takes the pod's volumes down.
    fn tear_down<'a>(&'a self, uid: &'a PodUid) -> BoxFuture<'a, Result<(), StorageError>>;

    /// Takes down what volumes are left and removes the pod's logs and its directory, if `unused` says so once nothing else is being
    /// done for the pod: one that came back in the meantime keeps what it has.
    fn remove_pod<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), StorageError>>;

    /// Every pod that has a directory here. What others have for theirs is not looked at.
    fn pods(&self) -> BoxFuture<'_, Result<Vec<PodUid>, StorageError>>;

    /// What is being worked on for a pod right now, if that can be told: what a call waits for that does not end.
    fn under_way(&self, uid: &PodUid) -> Option<PathBuf> {
        let _ = uid;
        None
    }

    /// How often the container was started, as its log directory tells; `None` if it tells nothing.
    fn restarts_by_log<'a>(&'a self, pod: &'a PodObject, container: &'a str) -> BoxFuture<'a, Option<u32>>;
}

/// Waits for a call for a pod, but no longer than `limit`: a file system that hangs, hangs for all who ask it. What the call began
/// goes on.
pub(crate) async fn within<T>(
    limit: Duration,
    storage: &dyn PodStorage,
    uid: &PodUid,
    call: BoxFuture<'_, Result<T, StorageError>>,
) -> Result<T, StorageError> {
    let slow = |_| Err(StorageError::Slow { path: storage.under_way(uid), after: limit });
    tokio::time::timeout(limit, call).await.unwrap_or_else(slow)
}

/// A volume or directory could not be handled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageError {
    /// This kind of volume does not exist here.
    #[error("volume {volume:?}: {kind} volumes are not supported: {remedy}")]
    Unsupported {
        /// The volume's name.
        volume: String,
        /// The kind, as the field of the spec is named.
        kind: String,
        /// What to do instead.
        remedy: String,
    },
    /// The volume cannot be used as the spec asks.
    #[error("volume {volume:?}: {reason}")]
    Volume {
        /// The volume's name.
        volume: String,
        /// Why not.
        reason: String,
    },
    /// The volume cannot be taken down while somebody uses it.
    #[error("volume {volume:?}: {reason}")]
    Busy {
        /// The volume's name.
        volume: String,
        /// What stays mounted, and who holds it.
        reason: String,
    },
    /// The file system does not answer.
    #[error(
        "{path} is not done after {} s: see whether the file system there answers",
        .after.as_secs(), path = .path.as_deref().unwrap_or(Path::new("a directory")).display()
    )]
    Slow {
        /// Where, if that is known.
        path: Option<PathBuf>,
        /// How long it was waited for.
        after: Duration,
    },
    /// The file system refused.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What it said.
        error: String,
    },
}
