//! The ports: traits for what the engine, a node, a DRA driver and the controllers need from outside, with their values and errors.
//!
//! ```
//! use std::future::ready;
//! use std::sync::Arc;
//!
//! use k8s_openapi::api::resource::v1::ResourceClaim;
//! use podwright_model::ids::ClaimName;
//! use podwright_ports::{ApiError, ApiFuture, ClaimApi};
//!
//! /// An API server without claims.
//! struct NoClaims;
//!
//! impl ClaimApi for NoClaims {
//!     fn claim<'a>(&'a self, _: &'a ClaimName) -> ApiFuture<'a, Arc<ResourceClaim>> {
//!         Box::pin(ready(Err(ApiError::NotFound)))
//!     }
//! }
//! ```
//!
//! # Parts
//!
//! - Of the engine: [`PodSyncer`], its hooks, and [`RuntimeView`], what the runtime was seen to run.
//! - Of a node, below it: [`ContainerRuntime`], [`ImageStore`], [`PodStorage`], [`PodCgroups`], [`NodeMeter`], [`DiskMeter`],
//!   [`NetworkClient`] and [`Checkpoint`].
//! - Of a node, for what decides on its pods: [`SourceInbox`] takes the [`SourceUpdate`]s of the pod sources.
//! - Of a node, in a cluster: [`PodApi`], [`NodeApi`], [`ApiObjects`], [`EventRecorder`], [`PullSecrets`], [`CredentialProviders`],
//!   [`ServiceAccounts`], [`RuntimeClasses`] and [`ResourcePhase`].
//! - Of dynamic resource allocation: [`ClaimApi`] reads ResourceClaims, which [`ClaimRef`] and [`PreparedDevice`] name in the calls to
//!   [`ClaimDrivers`].
//! - Of the controllers: [`LeaseApi`] reads and writes the lease by which their replicas elect a leader.
//! - Of all: [`ApiError`], why an API server did not perform a call; [`Clock`], which reads the time; and [`ErrorSource`], the error
//!   of a port's implementation.
//!
//! # Arrows
//!
//! The crate uses `podwright-model`. The ports that only the controllers need are in `podwright-controllers`.

use std::error::Error;
use std::mem::discriminant;

use podwright_model::text::error_chain;

mod api_error;
mod api_objects;
mod cgroups;
mod checkpoint;
mod claim_drivers;
mod claims;
mod clock;
mod disk;
mod error_source;
mod events;
mod host_ips;
mod image_credentials;
mod images;
mod lease_api;
mod network;
mod node_api;
mod node_meter;
mod pod_api;
mod pull_secrets;
mod resources;
mod runtime;
mod runtime_class;
mod source;
mod source_kind;
mod storage;
mod syncer;
mod view;

pub use api_error::{ApiError, ApiFuture};
pub use api_objects::{
    ApiObjects, ObjectError, ObjectFuture, ObjectKind, ServiceAddress, ServiceAddressPort, TokenNeed, TrustBundleNeed,
};
pub use cgroups::{CgroupError, CgroupLimits, PodCgroups};
pub use checkpoint::{Checkpoint, CheckpointError, CheckpointWriter, NoCheckpoint, OpenCheckpoint};
pub use claim_drivers::{ClaimDrivers, DeviceHealth, DeviceHealthSink, DeviceReport, DriverError, DriverFuture};
pub use claims::{ClaimApi, ClaimRef, PreparedDevice};
pub use clock::{Clock, SystemClock, TokioClock, WallClock};
pub use disk::{DiskMeter, FileSystemSpace, PodDiskUsage, UsedSpace, WritableLayer};
pub use error_source::ErrorSource;
pub use events::{EventAnnotations, EventRecorder, EventType, PodEvent};
pub use host_ips::HostIps;
pub use image_credentials::{
    CredentialProviders, NoCredentialProviders, ProvidedCredential, ProvidedCredentials, ServiceAccountFacts,
    ServiceAccountIdentity, ServiceAccounts,
};
pub use images::{DiskUsage, ImageNeed, ImageStore, NamedImage, StoredImage};
pub use lease_api::LeaseApi;
pub use network::{GrpcHealth, GrpcTarget, HttpTarget, NetworkClient, NetworkError, TcpTarget, address};
pub use node_api::{Freshness, NodeApi};
pub use node_meter::{ContainerProcesses, NodeMeter, ProcessUsage, ResourceSpace};
pub use pod_api::PodApi;
pub use pull_secrets::{Confidential, NoPullSecrets, PullSecret, PullSecretError, PullSecretFormat, PullSecrets};
pub use resources::{ResourceError, ResourceFuture, ResourcePhase, ResourceWait};
pub use runtime::{
    AppliedSettings, ContainerConfig, ContainerProcess, ContainerRuntime, ContainerState, ContainerStatus,
    ContainerUpdate, Device, ExecOutput, ImageError, ImageRequest, LinuxUser, Mount, PodRuntimeStatus,
    RuntimeCapabilities, RuntimeError, RuntimeFuture, RuntimeHandler, RuntimeName, RuntimePod, RuntimePodContainer,
    RuntimePodSandbox, SandboxConfig, SandboxState, SandboxStatus, Unready, VolumeImage,
};
pub use runtime_class::{NamedRuntimeClasses, RuntimeClassError, RuntimeClasses};
pub use source::{NodeStopped, SOURCE_CHANNEL_DEPTH, Severity, SourceInbox, SourceProblem, SourceSet, SourceUpdate};
pub use source_kind::SourceKind;
pub use storage::{PodStorage, StorageError, Unused, VolumeFile, VolumeFiles, VolumeMounts, VolumesSetUp, within};
pub use syncer::{
    BadVolume, CallTokens, FailureCause, HookContext, PodSyncer, RunningPod, StatusFn, SyncError, SyncKind,
    SyncOutcome, SyncPod, SyncRetry, TerminatingPod,
};
pub use view::{NoRuntimeView, Observed, RuntimeView};

/// Whether two errors have the same variant and the same text, sources included.
fn is_same<E: Error>(one: &E, other: &E) -> bool {
    discriminant(one) == discriminant(other) && error_chain(one).to_string() == error_chain(other).to_string()
}
