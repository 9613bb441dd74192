//! Texts of volumes and of the pod's directories.

use std::path::Path;

use super::format;

/// The event of a volume that cannot be set up. A space precedes the colon
/// (`pkg/volume/util/operationexecutor/operation_generator.go`, `GenerateMountVolumeFunc`).
pub fn volume_not_set_up(volume: &str, error: &str) -> String {
    format!("MountVolume.SetUp failed for volume {} : {error}", format::quoted(volume))
}

/// The event of volumes that are not ready (`kubelet.go`, `SyncPod`).
pub fn volumes_not_ready(error: &str) -> String {
    format!("Unable to attach or mount volumes: {error}")
}

/// The event of a pod whose directories cannot be made; its reason is `Failed` (`kubelet.go`, `SyncPod`).
pub fn directories_not_made(error: &str) -> String {
    format!("error making pod data directories: {error}")
}

/// A hostPath that is not of the type that the volume names. `what` is `directory`, `file`, `socket file`, `character device` or
/// `block device` (`pkg/volume/hostpath/host_path.go`, `checkTypeInternal`).
pub fn host_path_is_not(path: &Path, what: &str) -> String {
    format!("hostPath type check failed: {} is not a {what}", path.display())
}

/// A hostPath with an unknown type (`pkg/volume/hostpath/host_path.go`, `checkTypeInternal`).
pub fn unknown_host_path_type(kind: &str) -> String {
    format!("{kind} is an invalid volume type")
}
