//! What the engine needs from outside, each a small trait named for the need.
//!
//! An embedder may bring just a [`PodSyncer`]; or implement [`ContainerRuntime`] and take the syncer that is built on it.

mod checkpoint;
mod clock;
mod events;
mod network;
mod runtime;
mod source;
mod storage;
mod syncer;
mod view;

pub use checkpoint::{Checkpoint, CheckpointError, NoCheckpoint};
pub use clock::{Clock, TokioClock};
pub use events::{EventRecorder, EventType, PodEvent};
pub use network::{GrpcTarget, HttpTarget, NetworkClient, NetworkError, TcpTarget};
pub use runtime::{
    ContainerConfig, ContainerRuntime, ContainerState, ContainerStatus, ExecOutput, ImageError, Mount,
    PodRuntimeStatus, RuntimeError, RuntimeFuture, RuntimeName, RuntimePod, RuntimePodContainer, RuntimePodSandbox,
    RuntimeVersion, SandboxConfig, SandboxState, SandboxStatus,
};
pub use source::{SOURCE_CHANNEL_DEPTH, SourceKind, SourceProblem, SourceSet};
pub use storage::{PodStorage, StorageError, Unused, VolumeMounts};
pub(crate) use syncer::CallTokens;
pub use syncer::{
    HookContext, PodSyncer, RunningPod, StatusFn, SyncError, SyncKind, SyncOutcome, SyncPod, SyncRetry, TerminatingPod,
};
pub use view::{NoRuntimeView, Observed, RuntimeView};
