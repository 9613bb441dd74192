//! The settings of sandboxes and containers, and the result of a command in a container.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ResourceRequirements;

use podwright_model::ids::{ContainerName, SandboxId};
use podwright_model::pod::{ContainerKind, PodObject};

/// New resources of a running container.
#[derive(Clone, Debug)]
pub struct ContainerUpdate {
    /// The pod, with its allocated resources.
    pub pod: Arc<PodObject>,
    /// The container's list in the pod's spec.
    pub kind: ContainerKind,
    /// The container's name in the pod.
    pub name: ContainerName,
    /// The requests and limits to apply. One of CPU and memory may still be that of an earlier allocation.
    pub resources: ResourceRequirements,
}

/// A request to make an image present.
#[derive(Clone, Copy, Debug)]
pub struct ImageRequest<'a> {
    /// The pod that needs the image.
    pub pod: &'a Arc<PodObject>,
    /// The container that needs the image, for events; `None` for an image of the whole pod.
    pub container: Option<(ContainerKind, &'a str)>,
    /// The image, as the spec names it.
    pub image: &'a str,
    /// The pull policy of the spec.
    pub pull_policy: Option<&'a str>,
}

/// The settings of a new sandbox.
#[derive(Clone, Debug)]
pub struct SandboxConfig {
    /// The pod.
    pub pod: Arc<PodObject>,
    /// The number of sandboxes that the pod had before.
    pub attempt: u32,
}

/// The settings of a new container. `Debug` prints neither the command nor the values of variables, which may be those of Secrets.
#[derive(Clone)]
pub struct ContainerConfig {
    /// The pod.
    pub pod: Arc<PodObject>,
    /// The sandbox for the container.
    pub sandbox: SandboxId,
    /// The container's list in the pod's spec.
    pub kind: ContainerKind,
    /// The container's name in the pod.
    pub name: ContainerName,
    /// How many runs of the container were started before. The log file of the run is `<restart_count>.log`.
    pub restart_count: u32,
    /// The image id that [`ContainerRuntime::ensure_image`](super::ContainerRuntime::ensure_image) returned.
    pub image_id: String,
    /// The hash of the container's definition. The runtime keeps it with the container, so that a restarted agent sees
    /// whether the definition changed.
    pub spec_hash: u64,
    /// The entry point with `$(VAR)` expanded; empty for the image's own.
    pub command: Vec<String>,
    /// The arguments, expanded.
    pub args: Vec<String>,
    /// The environment variables in order, expanded.
    pub env: Vec<(String, String)>,
    /// The mounts, in spec order.
    pub mounts: Vec<Mount>,
    /// The devices of the node for the container.
    pub devices: Vec<Device>,
    /// The names of CDI devices (`VENDOR/CLASS=NAME`), which the runtime resolves.
    pub cdi_devices: Vec<String>,
}

impl fmt::Debug for ContainerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerConfig")
            .field("pod", self.pod.full_name())
            .field("sandbox", &self.sandbox)
            .field("kind", &self.kind)
            .field("name", &self.name)
            .field("restart_count", &self.restart_count)
            .finish_non_exhaustive()
    }
}

/// A device of the node, as a container gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The device's path on the node.
    pub host_path: String,
    /// The device's path in the container.
    pub container_path: String,
    /// The permissions in the container: a combination of `r`, `w` and `m` (mknod).
    pub permissions: String,
}

/// A volume, as a container gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The volume's name in the pod.
    pub volume: String,
    /// The path on the host, including `sub_path`.
    pub host_path: PathBuf,
    /// The part of `host_path` inside the volume, relative and without `..`; empty for the whole volume. The runtime
    /// creates the missing directories.
    pub sub_path: PathBuf,
    /// The path in the container.
    pub container_path: String,
    /// Whether the mount is read-only.
    pub read_only: bool,
    /// The image whose files are mounted, for an image volume. Then `host_path` is empty.
    pub image: Option<VolumeImage>,
}

/// The image of an image volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeImage {
    /// The image id that [`ContainerRuntime::ensure_image`](super::ContainerRuntime::ensure_image) returned.
    pub id: String,
    /// The image as the spec names it.
    pub reference: String,
}

/// The result of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    /// The exit code; 128 plus the signal if a signal ended the command.
    pub exit_code: i32,
    /// The beginning of the output on both streams, at most 10 KiB (the limit of a probe event's message). The standard error
    /// follows the standard output, unless the runtime mixes the streams in the order in which the command wrote to them.
    pub output: Vec<u8>,
    /// The index in `output` at which the standard error begins. The length of `output` if the runtime mixes the streams.
    pub stderr_from: usize,
}

impl ExecOutput {
    /// The part of the output that is known to be standard error.
    pub fn stderr(&self) -> &[u8] {
        self.output.get(self.stderr_from..).unwrap_or_default()
    }
}
