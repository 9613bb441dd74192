//! The cgroups in which pods run.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::ids::PodUid;
use crate::pod::PodObject;

use super::storage::Unused;

/// Makes and removes the cgroup of each pod, below which those of its containers are. Every call is idempotent and cancel safe.
///
/// Where the node may not make cgroups, or another makes them, every pod's is taken to be there, and none is removed.
pub trait PodCgroups: Send + Sync + 'static {
    /// Whether the pod's cgroup is there. That it is missing is said only where it could be made: what runs in the pod is stopped
    /// for it.
    fn exists<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<bool, CgroupError>>;

    /// Makes the pod's cgroup, with the limits that its spec asks for.
    fn make<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<(), CgroupError>>;

    /// Removes the cgroup of a pod, whatever its class was, if `unused` says so right before; that there is none is no error.
    /// What still runs in it is killed.
    fn remove<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), CgroupError>>;
}

/// The cgroup of a pod is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CgroupError {
    /// The kernel refused.
    #[error("cgroup {path}: {error}", path = .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What it said.
        error: String,
    },
    /// How cgroups are kept is the runtime's to say, and it does not answer; or the spec cannot be read.
    #[error("the pod's cgroup cannot be told: {0}")]
    Unknown(String),
}
