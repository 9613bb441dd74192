//! emptyDir volumes in memory.

use std::ffi::CString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_actors::config::quantity::Amount;
use podwright_actors::pod::PodObject;
use podwright_actors::status::pod_bounds;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::fs_group::{FsGroup, volume_mode};
use crate::adapters::mounts;

/// The kind of file system that keeps its files in memory.
pub(super) const TMPFS: &str = "tmpfs";

/// How many bytes such a volume may hold: as its spec says, at most what the pod may have of memory, at most what all pods
/// may have (upstream `calculateEmptyDirMemorySize`, kubelet 1.36). `None` leaves it to the kernel: half of the memory.
pub(super) fn limit(source: &EmptyDirVolumeSource, pod: &PodObject, allocatable: Option<&Quantity>) -> Option<u64> {
    let read = |quantity: &Quantity| Amount::of(quantity).ok();
    let of_volume = source.size_limit.as_ref().and_then(read);
    let of_pod = pod_bounds(pod.spec()).memory_limit;
    let limits = [of_volume, of_pod, allocatable.and_then(read)];
    limits.into_iter().flatten().filter_map(|limit| u64::try_from(limit.units()).ok()).filter(|bytes| *bytes > 0).min()
}

/// Where volumes in memory are: clones share what was learned.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// On disk after all, because this process may not mount.
    refused: Arc<AtomicBool>,
}

impl Memory {
    /// In plain directories.
    pub(super) fn directories() -> Self {
        Memory { refused: Arc::new(true.into()) }
    }

    /// Mounts a file system in memory at a directory, unless one is there. One that an earlier agent made is kept with what
    /// is in it; so is a directory with something in it, which an agent made that might not mount. A new one has mode and
    /// group of the volume from the first moment on.
    ///
    /// # Errors
    /// As the system says. That mounting is not allowed is no error: the directory does.
    pub(super) fn set_up(&self, path: &Path, limit: Option<u64>, group: Option<FsGroup>) -> io::Result<()> {
        let is_used = || io::Result::Ok(mounts::right_at(path)?.is_some() || holds_something(fs::read_dir(path))?);
        if self.refused.load(Ordering::Relaxed) || is_used()? {
            return Ok(());
        }
        let size = limit.map(|bytes| format!("size={bytes}"));
        let owner = group.map(|group| format!("gid={}", group.id()));
        let mode = format!("mode={:o}", volume_mode(group));
        let mount = |options: &[&str]| {
            let of_volume = [Some(mode.as_str()), owner.as_deref(), size.as_deref()];
            let options = options.iter().copied().chain(of_volume.into_iter().flatten()).collect::<Vec<_>>().join(",");
            mount(TMPFS, path, TMPFS, MountFlags::empty(), Some(&*CString::new(options).map_err(|_| Errno::INVAL)?))
        };
        // What is to be in memory must not go to disk; kernels before 6.4 have no word for that.
        let mounted = match mount(&["noswap"]) {
            Err(Errno::INVAL) => mount(&[]),
            mounted => mounted,
        };
        match mounted {
            Err(Errno::PERM | Errno::ACCESS) => {
                if !self.refused.swap(true, Ordering::Relaxed) {
                    tracing::warn!("may not mount: volumes of medium Memory are plain directories, without a limit");
                }
                Ok(())
            }
            mounted => Ok(mounted?),
        }
    }
}

/// Whether a directory is in use. One that a container locked is.
fn holds_something(list: io::Result<fs::ReadDir>) -> io::Result<bool> {
    match list {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(true),
        list => Ok(list?.next().is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_read_is_in_use() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!holds_something(fs::read_dir(dir.path())).unwrap());
        assert!(holds_something(Err(ErrorKind::PermissionDenied.into())).unwrap());
        assert!(holds_something(Err(ErrorKind::NotADirectory.into())).is_err());
    }
}
