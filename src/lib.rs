//! A pod lifecycle engine for node agents. One worker for each pod UID sets the pod up, stops it and cleans up after it,
//! through hooks that the embedder implements.
//!
//! ```
//! use std::sync::Arc;
//! use podwright::{
//!     Engine, Grace, HookContext, PodObject, PodSyncer, RunningPod, SyncError, SyncOutcome, SyncPod, TerminatingPod,
//!     Update,
//! };
//!
//! struct MyNode;
//!
//! impl PodSyncer for MyNode {
//!     async fn sync_pod(&self, _: &HookContext, work: &SyncPod) -> Result<SyncOutcome, SyncError> {
//!         println!("{} should run", work.pod.full_name());
//!         Ok(SyncOutcome::Continue { check_at: None })
//!     }
//!     async fn sync_terminating_pod(&self, _: &HookContext, work: &TerminatingPod) -> Result<(), SyncError> {
//!         println!("{} must stop within {}", work.pod.full_name(), work.grace);
//!         Ok(())
//!     }
//!     async fn sync_terminating_runtime_pod(&self, _: &HookContext, _: &RunningPod, _: Grace) -> Result<(), SyncError> {
//!         Ok(())
//!     }
//!     async fn sync_terminated_pod(&self, _: &HookContext, _: &Arc<PodObject>) -> Result<(), SyncError> {
//!         Ok(())
//!     }
//! }
//!
//! let engine = Engine::start(MyNode)?;
//! let pod = serde_json::from_str(
//!     r#"{"metadata":{"name":"web","namespace":"default","uid":"1"},"spec":{"containers":[{"name":"a"}]}}"#,
//! )?;
//! let pod = PodObject::new(pod)?;
//! engine.update_pod(Update::create(pod.clone()));
//! assert!(engine.could_have_running_containers(pod.uid()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Parts
//!
//! - [`Engine`]: the records and workers of pods, over the hooks of a [`PodSyncer`].
//! - [`Node`]: a node agent over a [`ContainerRuntime`](ports::ContainerRuntime): the engine, housekeeping, containers, probes
//!   and statuses.
//! - [`ports`]: the traits that an embedder of the engine or the node implements.
//! - [`explain`]: why a pod is in its state, and what it waits for.
//! - [`metrics`]: counters and histograms with the names of the kubelet.
//! - [`adapters`]: implementations of the ports, each behind a cargo feature: `process` (pods as process groups), `cri`
//!   (pods as containers of containerd or CRI-O), `simulated` (pods in memory), `kube` (pods of an API server and the writes
//!   of their statuses), `agent` (manifests from files and URLs, network calls of probes, and the binary `podwright`).
//!
//! The feature `engine` is the engine, the node and the ports; each adapter includes it. The feature `dra-driver` is a library for the
//! authors of DRA drivers, without the engine.
//!
//! # What always holds
//!
//! - Crates depend on each other in one direction only: `metrics` knows no pod, `actors` opens no socket and no file,
//!   and an adapter of a node uses ports and shared helpers but no other adapter.
//! - [`Engine::update_pod`] and all queries of the engine may be called from any thread and never wait. Updates are not
//!   queued, and no lock is shared by all pods.
//! - The hooks of one UID never overlap. Updates that arrive before the worker takes them are merged. The last call gets the
//!   newest update. A stop request is never lost, and a grace period never grows. A hook that fails or panics is called again
//!   after a backoff.
//! - A pod moves in one direction: waiting, sync, terminating, terminated, finished. Its record in the engine alone decides
//!   whether its containers may be started.
//! - A static pod does not start before every earlier UID of the same full name has finished.
//! - What a pod waits for is a value that can be read at any time ([`Engine::snapshot`]).
//!
//! # Why hooks need not be `Send` and ports must be
//!
//! The future of a hook runs on the arbiter of its pod's worker and is never moved to another thread, so the futures of
//! [`PodSyncer`] need not be `Send`. Port objects are shared by all parts of a node and used from all its threads, so the
//! traits in [`ports`] are `Send + Sync` and their futures are `Send`.
//!
//! # What is deliberately absent
//!
//! - A wait for an API server while a pod starts or stops: statuses are kept, and a task of its own writes them.
//! - State that is stored twice: only a pod's record remembers the pod's state, and a lost worker is rebuilt from it.
//! - Global state: metrics, clocks and settings are arguments, so two engines can live in one process.
//! - A clock in the decisions: each event carries its time, so the same steps can be run again.

#[cfg(feature = "engine")]
pub mod adapters;
/// The parts of the binary `podwright`. They are in the library so that the fuzz targets can call them, and are not part of
/// the API.
#[cfg(feature = "agent")]
#[doc(hidden)]
pub mod agent;
#[cfg(feature = "engine")]
#[doc(hidden)]
pub mod testing;

#[cfg(feature = "dra-driver")]
pub use podwright_dra_driver as dra_driver;
#[cfg(any(feature = "dra", feature = "dra-driver"))]
pub use podwright_slices as slices;

#[cfg(feature = "engine")]
pub use podwright_metrics as metrics;

#[cfg(any(feature = "dra-driver", feature = "kube"))]
pub use podwright_kube_api::KubeError;

#[cfg(feature = "engine")]
pub use podwright_actors::explain;
/// The ports: traits for what the engine and the node need from outside, and the values that they exchange.
///
/// An embedder can implement only [`PodSyncer`] and run its own pods. Or it implements [`ContainerRuntime`](ports::ContainerRuntime) and
/// uses the syncer that is built on it.
#[cfg(feature = "engine")]
pub mod ports {
    pub use podwright_ports::{
        ApiError, ApiFuture, ApiObjects, AppliedSettings, BadVolume, CgroupError, CgroupLimits, Checkpoint,
        CheckpointError, CheckpointWriter, ClaimApi, ClaimDrivers, ClaimRef, Clock, Confidential, ContainerConfig,
        ContainerProcess, ContainerProcesses, ContainerRuntime, ContainerState, ContainerStatus, ContainerUpdate,
        CredentialProviders, Device, DeviceHealth, DeviceHealthSink, DeviceReport, DiskMeter, DiskUsage, DriverError,
        DriverFuture, ErrorSource, EventAnnotations, EventRecorder, EventType, ExecOutput, FailureCause,
        FileSystemSpace, Freshness, GrpcHealth, GrpcTarget, HttpTarget, ImageError, ImageNeed, ImageRequest,
        ImageStore, LeaseApi, LinuxUser, Mount, NamedImage, NamedRuntimeClasses, NetworkClient, NetworkError,
        NoCheckpoint, NoCredentialProviders, NoPullSecrets, NoRuntimeView, NodeApi, NodeMeter, NodeStopped,
        ObjectError, ObjectFuture, ObjectKind, Observed, OpenCheckpoint, PodApi, PodCgroups, PodDiskUsage, PodEvent,
        PodRuntimeStatus, PodStorage, PreparedDevice, ProcessUsage, ProvidedCredential, ProvidedCredentials,
        PullSecret, PullSecretError, PullSecretFormat, PullSecrets, ResourceError, ResourceFuture, ResourcePhase,
        ResourceSpace, ResourceWait, RuntimeCapabilities, RuntimeClassError, RuntimeClasses, RuntimeError,
        RuntimeFuture, RuntimeHandler, RuntimeName, RuntimePod, RuntimePodContainer, RuntimePodSandbox, RuntimeView,
        SOURCE_CHANNEL_DEPTH, SandboxConfig, SandboxState, SandboxStatus, ServiceAccountFacts, ServiceAccountIdentity,
        ServiceAccounts, ServiceAddress, ServiceAddressPort, Severity, SourceInbox, SourceKind, SourceProblem,
        SourceSet, SourceUpdate, StatusFn, StorageError, StoredImage, SyncRetry, SystemClock, TcpTarget, TokenNeed,
        TokioClock, TrustBundleNeed, Unready, Unused, UsedSpace, VolumeFile, VolumeFiles, VolumeImage, VolumeMounts,
        VolumesSetUp, WallClock, WritableLayer, address,
    };
}
#[cfg(feature = "engine")]
pub use podwright_actors::container_manager::ContainersConfig;
#[cfg(feature = "engine")]
pub use podwright_actors::desired::{DesiredPods, MissingSource};
#[cfg(feature = "engine")]
pub use podwright_actors::eviction::{
    EvictionGracePeriods, EvictionPolicy, EvictionThresholds, MinimumReclaim, MissingGracePeriod, NodePressure,
    ParseThresholdsError, Pressure,
};
#[cfg(feature = "engine")]
pub use podwright_actors::housekeeping::PassError;
#[cfg(feature = "engine")]
pub use podwright_actors::image_gc::ImageGcPolicy;
#[cfg(feature = "engine")]
pub use podwright_actors::node::{Node, NodeBuilder, NodeHandle, NodePorts, ShutdownReport, StartNodeError};
#[cfg(feature = "engine")]
pub use podwright_actors::shutdown::ShutdownConfig;
#[cfg(feature = "engine")]
pub use podwright_actors::statuses::Statuses;
#[cfg(feature = "engine")]
pub use podwright_actors::{NodeRegistration, Registration};
#[cfg(feature = "engine")]
pub use podwright_core::admission::{
    AdmissionHandler, Admitted, AppArmor, InvalidSysctlPattern, NoRootPods, NodeCapacity, NodePredicates, Rejection,
    Shortage, SysctlAllowlist,
};
#[cfg(feature = "engine")]
pub use podwright_core::containers::env::Allocatable;
#[cfg(feature = "engine")]
pub use podwright_core::pod_worker::{
    Cause, Failure, Hook, KillOptions, KnownPod, Lifecycle, Notifier, Transition, Update, UpdateKind, Wait, WaitFor,
};
#[cfg(feature = "engine")]
pub use podwright_engine::recorder::Recorder;
#[cfg(feature = "engine")]
pub use podwright_engine::{
    Engine, EngineBuilder, EngineConfig, KillPodError, PodSnapshot, RecordSummary, StartEngineError, Threads,
};
#[cfg(feature = "engine")]
pub use podwright_model::ids::{FullName, PodUid};
#[cfg(feature = "engine")]
pub use podwright_model::pod::{InvalidPod, Phase, PodObject};
#[cfg(feature = "engine")]
pub use podwright_model::time::{Grace, Time};
#[cfg(feature = "engine")]
pub use podwright_parts::StoppedPart;
#[cfg(feature = "engine")]
pub use podwright_ports::{
    HookContext, HostIps, PodSyncer, RunningPod, SyncError, SyncKind, SyncOutcome, SyncPod, TerminatingPod,
};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
