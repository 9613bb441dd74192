//! The ports: traits for what the engine and the node need from outside.
//!
//! An embedder can implement only [`PodSyncer`] and run its own pods. Or it implements [`ContainerRuntime`] and uses
//! the syncer that is built on it.
//!
//! The crate `podwright-ports` has them.

pub use podwright_ports::{
    ApiError, ApiFuture, ApiObjects, AppliedSettings, BadVolume, CallTokens, CgroupError, CgroupLimits, Checkpoint,
    CheckpointError, CheckpointWriter, ClaimApi, ClaimDrivers, ClaimRef, Clock, Confidential, ContainerConfig,
    ContainerProcess, ContainerProcesses, ContainerRuntime, ContainerState, ContainerStatus, ContainerUpdate, Device,
    DeviceHealth, DeviceHealthSink, DeviceReport, DiskMeter, DiskUsage, DriverError, DriverFuture, ErrorSource,
    EventAnnotations, EventRecorder, EventType, ExecOutput, FailureCause, FileSystemSpace, Freshness, GrpcHealth,
    GrpcTarget, HookContext, HostIps, HttpTarget, ImageError, ImageNeed, ImageRequest, ImageStore, LeaseApi, LinuxUser,
    Mount, NamedImage, NamedRuntimeClasses, NetworkClient, NetworkError, NoCheckpoint, NoPullSecrets, NoRuntimeView,
    NodeApi, NodeMeter, NodeStopped, ObjectError, ObjectFuture, ObjectKind, Observed, OpenCheckpoint, PodApi,
    PodCgroups, PodDiskUsage, PodEvent, PodRuntimeStatus, PodStorage, PodSyncer, PreparedDevice, ProcessUsage,
    PullSecret, PullSecretError, PullSecretFormat, PullSecrets, ResourceError, ResourceFuture, ResourcePhase,
    ResourceSpace, ResourceWait, RunningPod, RuntimeCapabilities, RuntimeClassError, RuntimeClasses, RuntimeError,
    RuntimeFuture, RuntimeHandler, RuntimeName, RuntimePod, RuntimePodContainer, RuntimePodSandbox, RuntimeView,
    SOURCE_CHANNEL_DEPTH, SandboxConfig, SandboxState, SandboxStatus, ServiceAddress, ServiceAddressPort, Severity,
    SourceInbox, SourceKind, SourceProblem, SourceSet, SourceUpdate, StatusFn, StorageError, StoredImage, SyncError,
    SyncKind, SyncOutcome, SyncPod, SyncRetry, SystemClock, TcpTarget, TerminatingPod, TokenNeed, TokioClock,
    TrustBundleNeed, Unready, Unused, UsedSpace, VolumeFile, VolumeFiles, VolumeImage, VolumeMounts, VolumesSetUp,
    WallClock, WritableLayer, address, within,
};
