//! emptyDir volumes in memory.

use std::ffi::CString;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_core::config::pod_resources::pod_bounds;
use podwright_model::pod::PodObject;
use podwright_model::quantity::Amount;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::fs_group::{FsGroup, volume_mode};
use crate::mounts;

/// The file system that keeps its files in memory.
pub(super) const TMPFS: &str = "tmpfs";

/// The bit of a directory's mode that lets only the owner of a file, and the owner of the directory, delete the file.
const STICKY: u32 = 0o1000;

/// The size limit of a volume in memory, in bytes: the smallest of the volume's `sizeLimit`, the pod's memory limit and the
/// node's allocatable memory (upstream `calculateEmptyDirMemorySize`, kubelet 1.36). `None` means the kernel's default,
/// which is half of the machine's memory.
///
/// # Errors
/// The reason, if `sizeLimit` is not a quantity of 0 or more. Without this check, the volume would have no limit of its own.
pub(super) fn limit(
    source: &EmptyDirVolumeSource,
    pod: &PodObject,
    allocatable: Option<&Quantity>,
) -> Result<Option<u64>, String> {
    let of_volume = match &source.size_limit {
        None => None,
        Some(quantity) => match Amount::of(quantity) {
            Ok(amount) if !amount.is_negative() => Some(amount),
            _ => return Err(format!("emptyDir.sizeLimit is {:?}: use a quantity of 0 or more", quantity.0)),
        },
    };
    let of_pod = pod_bounds(pod.spec()).memory_limit;
    let limits = [of_volume, of_pod, allocatable.and_then(|quantity| Amount::of(quantity).ok())];
    let bytes = limits
        .into_iter()
        .flatten()
        .filter_map(|limit| u64::try_from(limit.units()).ok())
        .filter(|bytes| *bytes > 0)
        .min();
    Ok(bytes)
}

/// Mounts volumes in memory. Clones share the flag that mounting was refused.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Volumes are plain directories, because nothing uses them.
    are_unused: bool,
    /// Volumes are plain directories, because this process may not mount.
    refused: Arc<AtomicBool>,
}

impl Memory {
    /// Volumes in plain directories, which no container uses.
    pub(super) fn directories() -> Self {
        Memory { are_unused: true, refused: Arc::default() }
    }

    /// Whether no container uses the volumes, so that nothing has to be mounted.
    pub(super) fn are_unused(&self) -> bool {
        self.are_unused
    }

    /// Mounts a tmpfs at a directory, unless a file system is mounted there or the directory has content. In both cases the
    /// volume is kept as it is: an earlier agent mounted the tmpfs, or that agent could not mount and a container used the
    /// directory. The mount sets the volume's mode and group, so no container sees the volume with another mode or group.
    ///
    /// The mode has the sticky bit, as the kernel gives it to every tmpfs: a user of the pod cannot delete the files of another
    /// one. The directories that the agent creates for a `subPath` inherit it.
    ///
    /// # Errors
    /// The system's error. It is no error if this process may not mount: the volume is then the plain directory.
    pub(super) fn set_up(&self, path: &Path, limit: Option<u64>, group: Option<FsGroup>) -> io::Result<()> {
        let is_used = || io::Result::Ok(mounts::exactly_at(path)?.is_some() || has_content(fs::read_dir(path))?);
        if self.are_unused || self.refused.load(Ordering::Relaxed) || is_used()? {
            return Ok(());
        }
        let size = limit.map(|bytes| format!("size={bytes}"));
        let owner = group.map(|group| format!("gid={}", group.id()));
        let mode = format!("mode={:o}", volume_mode(group) | STICKY);
        let mount = |options: &[&str]| {
            let of_volume = [Some(mode.as_str()), owner.as_deref(), size.as_deref()];
            let options = options.iter().copied().chain(of_volume.into_iter().flatten()).collect::<Vec<_>>().join(",");
            mount(TMPFS, path, TMPFS, MountFlags::empty(), Some(&*CString::new(options).map_err(|_| Errno::INVAL)?))
        };
        // The content must not be swapped to disk. Kernels before 6.4 do not know this option.
        let mounted = match mount(&["noswap"]) {
            Err(Errno::INVAL) => mount(&[]),
            mounted => mounted,
        };
        match mounted {
            Err(Errno::PERM | Errno::ACCESS) => {
                if !self.refused.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        "this process may not mount: volumes with medium Memory are directories on disk without a size limit"
                    );
                }
                Ok(())
            }
            mounted => Ok(mounted?),
        }
    }
}

/// Whether a directory has content. A directory that cannot be read counts as used: a container changed its mode.
fn has_content(list: io::Result<fs::ReadDir>) -> io::Result<bool> {
    match list {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(true),
        list => Ok(list?.next().is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_directory_counts_as_used() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!has_content(fs::read_dir(dir.path())).unwrap());
        assert!(has_content(Err(ErrorKind::PermissionDenied.into())).unwrap());
        assert!(has_content(Err(ErrorKind::NotADirectory.into())).is_err());
    }
}
