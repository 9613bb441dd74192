//! The four hooks that an embedder implements.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use k8s_openapi::api::core::v1::PodStatus;
use tokio_util::sync::CancellationToken;

use crate::StorageError;
use podwright_model::ids::{FullName, PodUid};
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_model::texts::{format, pods::NETWORK_NOT_READY};
use podwright_model::time::{Grace, Time};

/// Sets up, stops and cleans up pods. The engine calls the hooks of one UID strictly one after another, and the hooks
/// of different UIDs in parallel.
///
/// A hook must be reentrant: the engine calls it again after an error, and the engine may skip a hook if the node
/// restarted. A hook should return soon after [`HookContext::cancelled`] resolves. A cancelled hook that returns `Ok`
/// counts as successful. A hook that panics counts as failed.
///
/// The futures run on the engine's arbiter threads and need not be `Send`. A hook that blocks its thread stalls the
/// other pods of that thread.
pub trait PodSyncer: Send + Sync + 'static {
    /// Sets up the pod and keeps it running.
    ///
    /// # Errors
    /// [`SyncError`]; [`SyncError::retry`] determines when the engine calls the hook again.
    fn sync_pod(&self, cx: &HookContext, work: &SyncPod) -> impl Future<Output = Result<SyncOutcome, SyncError>>;

    /// Stops every container of the pod. `Ok` promises that no container runs and that none will start.
    ///
    /// # Errors
    /// [`SyncError`]; the engine calls the hook again after a backoff.
    fn sync_terminating_pod(
        &self,
        cx: &HookContext,
        work: &TerminatingPod,
    ) -> impl Future<Output = Result<(), SyncError>>;

    /// Stops the containers of a UID whose spec is unknown, within this grace period.
    ///
    /// # Errors
    /// [`SyncError`]; the engine calls the hook again after a backoff.
    fn sync_terminating_runtime_pod(
        &self,
        cx: &HookContext,
        running: &RunningPod,
        grace: Grace,
    ) -> impl Future<Output = Result<(), SyncError>>;

    /// Cleans up after a pod whose containers have stopped.
    ///
    /// # Errors
    /// [`SyncError`]; the engine calls the hook again after a backoff.
    fn sync_terminated_pod(
        &self,
        cx: &HookContext,
        pod: &Arc<PodObject>,
    ) -> impl Future<Output = Result<(), SyncError>>;
}

/// The context of a hook call.
#[derive(Clone)]
pub struct HookContext {
    /// The UID of the pod.
    pub uid: PodUid,
    token: OnceLock<CancellationToken>,
    call: Option<(Arc<dyn CallTokens>, u32)>,
}

/// Creates the cancellation token of a running call on demand, because most calls end without using theirs.
pub trait CallTokens: Send + Sync {
    /// The token of a call. It has fired already if the call has ended.
    fn token(&self, call: u32) -> CancellationToken;

    /// Whether the call's token has fired, or would have fired if it existed.
    fn has_fired(&self, call: u32) -> bool;
}

impl HookContext {
    /// A context for a call that the engine does not make; `token` cancels it.
    pub fn new(uid: PodUid, token: CancellationToken) -> Self {
        HookContext { uid, token: OnceLock::from(token), call: None }
    }

    /// The context of a running call, whose token an engine creates on demand.
    #[inline]
    pub fn of_call(uid: PodUid, calls: Arc<dyn CallTokens>, call: u32) -> Self {
        HookContext { uid, token: OnceLock::new(), call: Some((calls, call)) }
    }

    /// The token that fires when the call should end early: termination was requested, or the grace period became
    /// shorter.
    #[inline]
    pub fn cancel(&self) -> &CancellationToken {
        self.token.get_or_init(|| match &self.call {
            Some((calls, call)) => calls.token(*call),
            None => CancellationToken::new(),
        })
    }

    /// Whether the call should end early.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        match (self.token.get(), &self.call) {
            (Some(token), _) => token.is_cancelled(),
            (None, Some((calls, call))) => calls.has_fired(*call),
            (None, None) => false,
        }
    }

    /// Resolves when the call should end early.
    pub async fn cancelled(&self) {
        self.cancel().cancelled().await;
    }
}

impl fmt::Debug for HookContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookContext").field("uid", &self.uid).finish_non_exhaustive()
    }
}

/// Why [`PodSyncer::sync_pod`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncKind {
    /// The pod is new.
    Create,
    /// The pod's source changed the pod.
    Update,
    /// A periodic or requested resync.
    Sync,
}

/// The arguments of [`PodSyncer::sync_pod`].
#[derive(Clone, Debug)]
pub struct SyncPod {
    /// Why the hook is called.
    pub kind: SyncKind,
    /// The pod.
    pub pod: Arc<PodObject>,
    /// The mirror pod of a static pod, if known.
    pub mirror: Option<Arc<PodObject>>,
}

/// The result of a successful [`PodSyncer::sync_pod`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOutcome {
    /// The pod runs or will run. The engine calls the hook again after the resync interval, or at `check_at` if that is
    /// sooner.
    Continue {
        /// When the hook must be called at the latest, for example at the pod's active deadline.
        check_at: Option<Time>,
    },
    /// The pod has ended by itself: no container runs or may start again.
    Terminal,
}

/// The arguments of [`PodSyncer::sync_terminating_pod`].
#[derive(Clone)]
pub struct TerminatingPod {
    /// The pod.
    pub pod: Arc<PodObject>,
    /// The grace period.
    pub grace: Grace,
    /// Whether the termination request named this grace period. If not, it comes from the pod's own fields (natural
    /// completion, orphan), and a container's own rules may replace it.
    pub forced: bool,
    /// Edits the pod's status.
    pub status_fn: Option<StatusFn>,
}

impl fmt::Debug for TerminatingPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TerminatingPod")
            .field("pod", self.pod.full_name())
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

/// Edits the status of a pod that is killed: its reason, message, phase or a condition.
pub type StatusFn = Arc<dyn Fn(&mut PodStatus) + Send + Sync>;

/// A runtime-only pod: it has containers and no known spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPod {
    /// The UID that the containers carry.
    pub uid: PodUid,
    /// The pod name and namespace that the containers carry.
    pub full_name: FullName,
}

/// A hook failed. The engine calls it again.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The pod's network is not ready. The engine calls the hook again soon. Embedders return this variant for the same
    /// condition.
    #[error("{NETWORK_NOT_READY}: {0}")]
    NetworkNotReady(String),
    /// Something waits out a backoff. A call before `until` would be useless.
    #[error("{what}")]
    BackOff {
        /// What waits, for people.
        what: String,
        /// When the backoff ends.
        until: Time,
    },
    /// The hook ended early because its call was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// A container could not be started. The container's status shows the reason.
    #[error(transparent)]
    NotStarted(Box<dyn std::error::Error + Send + Sync>),
    /// A volume or directory operation failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Any other error.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// Several errors.
    #[error("{}", join(.0))]
    Many(Vec<SyncError>),
}

fn join(errors: &[SyncError]) -> String {
    format::aggregate(&errors.iter().map(|error| error_chain(error).to_string()).collect::<Vec<_>>())
}

/// When the engine calls a failed hook again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncRetry {
    /// Soon, because the network is expected to become ready.
    NetworkNotReady,
    /// At this time: the earliest end of the backoffs.
    At(Time),
    /// After the error backoff.
    Backoff,
}

/// The known cause of a hook's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// The cause is not known beyond the error's text.
    Unknown,
    /// Only containers that wait out a backoff or could not be started. Their statuses show the reasons.
    Containers,
    /// The pod's network is not ready, for this reason.
    Network(String),
    /// A volume.
    Volume(Arc<BadVolume>),
}

/// A volume that cannot be used as the pod needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadVolume {
    /// The volume's name in the pod.
    pub volume: String,
    /// Why not.
    pub reason: String,
}

impl SyncError {
    /// The cause of the failure, if known.
    pub fn failure_cause(&self) -> FailureCause {
        match self {
            SyncError::BackOff { .. } | SyncError::NotStarted(_) => FailureCause::Containers,
            SyncError::Storage(error) => match error {
                StorageError::Volume { volume, source } | StorageError::Busy { volume, source } => {
                    let reason = error_chain(&**source).to_string();
                    FailureCause::Volume(Arc::new(BadVolume { volume: volume.clone(), reason }))
                }
                StorageError::Unsupported { volume, kind, remedy } => {
                    let reason = format!("{kind} volumes are not supported: {remedy}");
                    FailureCause::Volume(Arc::new(BadVolume { volume: volume.clone(), reason }))
                }
                StorageError::Slow { path: Some(path), .. } => FailureCause::Volume(Arc::new(BadVolume {
                    volume: path.display().to_string(),
                    reason: error.to_string(),
                })),
                // An I/O error of the pod's own directory; its text names the path.
                StorageError::Io { .. } | StorageError::Slow { path: None, .. } => FailureCause::Unknown,
            },
            SyncError::NetworkNotReady(reason) => FailureCause::Network(reason.clone()),
            SyncError::Many(errors) if errors.iter().all(|error| error.failure_cause() == FailureCause::Containers) => {
                FailureCause::Containers
            }
            SyncError::Cancelled | SyncError::Failed(_) | SyncError::Many(_) => FailureCause::Unknown,
        }
    }

    /// Wraps any error as [`SyncError::Failed`].
    pub fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        SyncError::Failed(error.into())
    }

    /// When to call the hook again. A network that is not ready takes precedence over a backoff, and a backoff over
    /// other errors (the kubelet's `completeWork`, 1.36).
    pub fn retry(&self) -> SyncRetry {
        match self {
            SyncError::NetworkNotReady(_) => SyncRetry::NetworkNotReady,
            SyncError::BackOff { until, .. } => SyncRetry::At(*until),
            SyncError::Cancelled => SyncRetry::Backoff,
            SyncError::Failed(_) | SyncError::NotStarted(_) | SyncError::Storage(_) => SyncRetry::Backoff,
            SyncError::Many(errors) => {
                let mut best = SyncRetry::Backoff;
                for retry in errors.iter().map(SyncError::retry) {
                    best = match (best, retry) {
                        (SyncRetry::NetworkNotReady, _) | (_, SyncRetry::NetworkNotReady) => SyncRetry::NetworkNotReady,
                        (SyncRetry::At(a), SyncRetry::At(b)) => SyncRetry::At(a.min(b)),
                        (SyncRetry::At(a), SyncRetry::Backoff) | (SyncRetry::Backoff, SyncRetry::At(a)) => {
                            SyncRetry::At(a)
                        }
                        (SyncRetry::Backoff, SyncRetry::Backoff) => SyncRetry::Backoff,
                    };
                }
                best
            }
        }
    }
}
