//! The ports: traits for what the engine and the node need from outside.
//!
//! An embedder can implement only [`PodSyncer`] and run its own pods. Or it implements [`ContainerRuntime`] and uses
//! the syncer that is built on it.

mod cgroups;
mod checkpoint;
mod clock;
mod events;
mod images;
mod network;
mod pull_secrets;
mod runtime;
mod runtime_class;
mod source;
mod storage;
mod syncer;
mod view;

pub use cgroups::{CgroupError, PodCgroups};
pub use checkpoint::{Checkpoint, CheckpointError, NoCheckpoint};
pub use clock::{Clock, SystemClock, TokioClock};
pub use events::{EventRecorder, EventType, PodEvent};
pub use images::{DiskUsage, ImageNeed, ImageStore, StoredImage};
pub use network::{GrpcTarget, HttpTarget, NetworkClient, NetworkError, TcpTarget};
pub use pull_secrets::{Confidential, NoPullSecrets, PullSecret, PullSecretError, PullSecretFormat, PullSecrets};
pub use runtime::{
    ContainerConfig, ContainerRuntime, ContainerState, ContainerStatus, Device, ExecOutput, ImageError, Mount,
    PodRuntimeStatus, RuntimeError, RuntimeFuture, RuntimeName, RuntimePod, RuntimePodContainer, RuntimePodSandbox,
    SandboxConfig, SandboxState, SandboxStatus, Unready,
};
pub use runtime_class::{NamedRuntimeClasses, RuntimeClassError, RuntimeClasses};
pub use source::{SOURCE_CHANNEL_DEPTH, SourceKind, SourceProblem, SourceSet, SourceUpdate};
pub(crate) use storage::within;
pub use storage::{PodStorage, StorageError, Unused, VolumeMounts};
pub(crate) use syncer::CallTokens;
pub use syncer::{
    BadVolume, FailureCause, HookContext, PodSyncer, RunningPod, StatusFn, SyncError, SyncKind, SyncOutcome, SyncPod,
    SyncRetry, TerminatingPod,
};
pub use view::{NoRuntimeView, Observed, RuntimeView};
