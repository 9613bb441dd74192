//! The cgroups of pods.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;

use super::ErrorSource;
use super::storage::Unused;

/// Makes and removes the cgroup of each pod. The cgroups of the pod's containers are inside it. Every call is
/// idempotent and cancel safe.
///
/// On a node that must not make cgroups, or where another program makes them, [`exists`](PodCgroups::exists) is true
/// for every pod and nothing is removed.
pub trait PodCgroups: Send + Sync + 'static {
    /// Whether the pod's cgroup exists. An implementation may answer `false` only where [`make`](PodCgroups::make) can
    /// make the cgroup: the caller stops the pod's containers if it is missing.
    ///
    /// # Errors
    /// [`CgroupError`] if the cgroup cannot be inspected.
    fn exists<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<bool, CgroupError>>;

    /// Makes the pod's cgroup, with the limits of the pod's spec.
    ///
    /// # Errors
    /// [`CgroupError`] if the kernel refuses, or the limits cannot be computed.
    fn make<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<(), CgroupError>>;

    /// Sets limits of the pod's cgroup while containers run in it. By default nothing is set.
    ///
    /// # Errors
    /// [`CgroupError`] if the kernel refuses, for example a memory limit below what is used.
    fn resize<'a>(&'a self, pod: &'a Arc<PodObject>, limits: CgroupLimits) -> BoxFuture<'a, Result<(), CgroupError>> {
        let _ = (pod, limits);
        Box::pin(std::future::ready(Ok(())))
    }

    /// Removes the cgroup of a pod, of any QoS class, and kills the processes that still run in it. `unused` is called
    /// right before the removal; if it returns `false`, the cgroup stays. A cgroup that does not exist is no error.
    ///
    /// # Errors
    /// [`CgroupError`] if the kernel refuses.
    fn remove<'a>(&'a self, uid: &'a PodUid, unused: Unused) -> BoxFuture<'a, Result<(), CgroupError>>;
}

/// The limits to set in a pod's cgroup. A limit that is `None` does not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    /// The CPU request in thousandths of a CPU. It decides the CPU shares.
    pub cpu_request: Option<i64>,
    /// The CPU limit in thousandths of a CPU.
    pub cpu_limit: Option<i64>,
    /// The memory limit in bytes.
    pub memory_limit: Option<i64>,
}

/// A pod's cgroup cannot be inspected, made or removed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// The kernel refused.
    #[error("cgroup {path}", path = .path.display())]
    Io {
        /// The path of the cgroup.
        path: PathBuf,
        /// The error of the kernel.
        source: ErrorSource,
    },
    /// The settings of the cgroup are not known: the runtime, which decides the cgroup driver, does not answer, or the
    /// pod's spec cannot be read.
    #[error("cannot determine the pod's cgroup")]
    Unknown(#[source] ErrorSource),
}

impl CgroupError {
    /// A [`CgroupError::Io`] with this source.
    pub fn io(path: impl Into<PathBuf>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        CgroupError::Io { path: path.into(), source: source.into().into() }
    }

    /// A [`CgroupError::Unknown`] with this source.
    pub fn unknown(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        CgroupError::Unknown(source.into().into())
    }
}
