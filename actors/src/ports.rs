//! The ports: traits for what the engine and the node need from outside.
//!
//! An embedder can implement only [`PodSyncer`] and run its own pods. Or it implements [`ContainerRuntime`] and uses
//! the syncer that is built on it.
//!
//! The crate `podwright-ports` has the traits. The updates of pod sources are here, because they are messages of actix.

mod source;

pub use podwright_ports::{
    ApiError, ApiFuture, ApiObjects, AppliedSettings, BadVolume, CallTokens, CgroupError, CgroupLimits, Checkpoint,
    CheckpointError, CheckpointWriter, ClaimApi, ClaimDrivers, ClaimRef, Clock, Confidential, ContainerConfig,
    ContainerProcess, ContainerProcesses, ContainerRuntime, ContainerState, ContainerStatus, ContainerUpdate, Device,
    DeviceHealth, DeviceHealthSink, DeviceReport, DiskMeter, DiskUsage, DriverError, DriverFuture, ErrorSource,
    EventAnnotations, EventRecorder, EventType, ExecOutput, FailureCause, FileSystemSpace, Freshness, GrpcHealth,
    GrpcTarget, HookContext, HostIps, HttpTarget, ImageError, ImageNeed, ImageRequest, ImageStore, LeaseApi, LinuxUser,
    Mount, NamedImage, NamedRuntimeClasses, NetworkClient, NetworkError, NoCheckpoint, NoPullSecrets, NoRuntimeView,
    NodeApi, NodeMeter, ObjectError, ObjectFuture, ObjectKind, Observed, OpenCheckpoint, PodApi, PodCgroups,
    PodDiskUsage, PodEvent, PodRuntimeStatus, PodStorage, PodSyncer, PreparedDevice, ProcessUsage, PullSecret,
    PullSecretError, PullSecretFormat, PullSecrets, ResourceError, ResourceFuture, ResourcePhase, ResourceSpace,
    ResourceWait, RunningPod, RuntimeCapabilities, RuntimeClassError, RuntimeClasses, RuntimeError, RuntimeFuture,
    RuntimeHandler, RuntimeName, RuntimePod, RuntimePodContainer, RuntimePodSandbox, RuntimeView, SandboxConfig,
    SandboxState, SandboxStatus, ServiceAddress, ServiceAddressPort, SourceKind, StatusFn, StorageError, StoredImage,
    SyncError, SyncKind, SyncOutcome, SyncPod, SyncRetry, SystemClock, TcpTarget, TerminatingPod, TokenNeed,
    TokioClock, TrustBundleNeed, Unready, Unused, UsedSpace, VolumeFile, VolumeFiles, VolumeImage, VolumeMounts,
    VolumesSetUp, WallClock, WritableLayer, address, within,
};
pub use source::{SOURCE_CHANNEL_DEPTH, Severity, SourceProblem, SourceSet, SourceUpdate};
