//! The ports: traits for what the engine and the node need from outside.
//!
//! An embedder can implement only [`PodSyncer`] and run its own pods. Or it implements [`ContainerRuntime`] and uses
//! the syncer that is built on it.

use std::error::Error;
use std::mem::discriminant;

use crate::text::error_chain;

mod api_objects;
mod cgroups;
mod checkpoint;
mod claims;
mod disk;
mod events;
mod images;
mod network;
mod node_api;
mod node_meter;
mod pod_api;
mod pull_secrets;
mod resources;
mod runtime;
mod runtime_class;
mod source;
mod storage;
mod syncer;
mod view;

pub use api_objects::{
    ApiObjects, ObjectError, ObjectFuture, ObjectKind, ServiceAddress, ServiceAddressPort, TokenNeed, TrustBundleNeed,
};
pub use cgroups::{CgroupError, CgroupLimits, PodCgroups};
pub use checkpoint::{Checkpoint, CheckpointError, CheckpointWriter, NoCheckpoint, OpenCheckpoint};
pub use claims::{ClaimDrivers, DeviceHealth, DeviceHealthSink, DeviceReport, DriverError, DriverFuture};
pub use disk::{DiskMeter, FileSystemSpace, PodDiskUsage, UsedSpace, WritableLayer};
pub use events::{EventAnnotations, EventRecorder, EventType, PodEvent};
pub use images::{DiskUsage, ImageNeed, ImageStore, NamedImage, StoredImage};
pub use network::{GrpcHealth, GrpcTarget, HttpTarget, NetworkClient, NetworkError, TcpTarget, address};
pub use node_api::{Freshness, NodeApi};
pub use node_meter::{ContainerProcesses, NodeMeter, ProcessUsage, ResourceSpace};
pub use pod_api::PodApi;
pub use podwright_ports::{
    ApiError, ApiFuture, ClaimApi, ClaimRef, Clock, ErrorSource, LeaseApi, PreparedDevice, SystemClock, TokioClock,
    WallClock,
};
pub use pull_secrets::{Confidential, NoPullSecrets, PullSecret, PullSecretError, PullSecretFormat, PullSecrets};
pub use resources::{ResourceError, ResourceFuture, ResourcePhase, ResourceWait};
pub use runtime::{
    AppliedSettings, ContainerConfig, ContainerProcess, ContainerRuntime, ContainerState, ContainerStatus,
    ContainerUpdate, Device, ExecOutput, ImageError, ImageRequest, LinuxUser, Mount, PodRuntimeStatus,
    RuntimeCapabilities, RuntimeError, RuntimeFuture, RuntimeHandler, RuntimeName, RuntimePod, RuntimePodContainer,
    RuntimePodSandbox, SandboxConfig, SandboxState, SandboxStatus, Unready, VolumeImage,
};
pub use runtime_class::{NamedRuntimeClasses, RuntimeClassError, RuntimeClasses};
pub use source::{SOURCE_CHANNEL_DEPTH, Severity, SourceKind, SourceProblem, SourceSet, SourceUpdate};
pub(crate) use storage::within;
pub use storage::{PodStorage, StorageError, Unused, VolumeFile, VolumeFiles, VolumeMounts, VolumesSetUp};
pub(crate) use syncer::CallTokens;
pub use syncer::{
    BadVolume, FailureCause, HookContext, PodSyncer, RunningPod, StatusFn, SyncError, SyncKind, SyncOutcome, SyncPod,
    SyncRetry, TerminatingPod,
};
pub use view::{NoRuntimeView, Observed, RuntimeView};

/// Whether two errors have the same variant and the same text, sources included.
fn is_same<E: Error>(one: &E, other: &E) -> bool {
    discriminant(one) == discriminant(other) && error_chain(one).to_string() == error_chain(other).to_string()
}
