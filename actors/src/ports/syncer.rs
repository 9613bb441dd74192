//! The four hooks that the host of the engine supplies.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, OnceLock};

use k8s_openapi::api::core::v1::PodStatus;
use tokio_util::sync::CancellationToken;

use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::ports::StorageError;
use crate::time::{Grace, Time};

/// Brings one pod to where it should be. The engine calls the hooks of one UID strictly one after another, and those of
/// different UIDs in parallel.
///
/// Each hook is reentrant: after an error it is called again, and a hook may be skipped when the node restarted in
/// between. A hook should end soon once [`HookContext::cancelled`] resolves; one that reports success although it was
/// cancelled counts as success. A hook that panics counts as failed.
///
/// The futures run on the engine's arbiter threads and need not be `Send`; blocking in one stalls the pods of that
/// thread.
pub trait PodSyncer: Send + Sync + 'static {
    /// Sets the pod up and keeps it running.
    fn sync_pod(&self, cx: &HookContext, work: &SyncPod) -> impl Future<Output = Result<SyncOutcome, SyncError>>;

    /// Stops every container of the pod; `Ok` promises that none runs and, from now on, none can.
    fn sync_terminating_pod(
        &self,
        cx: &HookContext,
        work: &TerminatingPod,
    ) -> impl Future<Output = Result<(), SyncError>>;

    /// Stops what runs under a UID of which no spec is known.
    fn sync_terminating_runtime_pod(
        &self,
        cx: &HookContext,
        running: &RunningPod,
    ) -> impl Future<Output = Result<(), SyncError>>;

    /// Cleans up after a pod whose containers have stopped.
    fn sync_terminated_pod(
        &self,
        cx: &HookContext,
        pod: &Arc<PodObject>,
    ) -> impl Future<Output = Result<(), SyncError>>;
}

/// What every hook call gets.
#[derive(Clone)]
pub struct HookContext {
    /// The UID the call is for.
    pub uid: PodUid,
    token: OnceLock<CancellationToken>,
    call: Option<(Arc<dyn CallTokens>, u32)>,
}

/// Where the token of a running call comes from: most calls end without asking for theirs, so it is made when it is asked
/// for.
pub(crate) trait CallTokens: Send + Sync {
    /// The token of that call; one that has fired if the call is over.
    fn token(&self, call: u32) -> CancellationToken;

    /// Whether that token has fired, or would have.
    fn has_fired(&self, call: u32) -> bool;
}

impl HookContext {
    /// A context whose call is cancelled by that token: for hooks that are called by somebody else than the engine.
    pub fn new(uid: PodUid, token: CancellationToken) -> Self {
        HookContext { uid, token: OnceLock::from(token), call: None }
    }

    pub(crate) fn of_call(uid: PodUid, calls: Arc<dyn CallTokens>, call: u32) -> Self {
        HookContext { uid, token: OnceLock::new(), call: Some((calls, call)) }
    }

    /// Fires when the call should end early: termination was requested, or the grace period became shorter.
    pub fn cancel(&self) -> &CancellationToken {
        self.token.get_or_init(|| match &self.call {
            Some((calls, call)) => calls.token(*call),
            None => CancellationToken::new(),
        })
    }

    /// Whether the call should end early.
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

/// Why setup is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SyncKind {
    /// The pod is new.
    Create,
    /// Its source changed it.
    Update,
    /// A re-check.
    Sync,
}

/// Arguments of [`PodSyncer::sync_pod`].
#[derive(Clone, Debug)]
pub struct SyncPod {
    /// Why.
    pub kind: SyncKind,
    /// The pod.
    pub pod: Arc<PodObject>,
    /// The API copy of a static pod, if known.
    pub mirror: Option<Arc<PodObject>>,
}

/// What setup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOutcome {
    /// The pod runs, or will; setup is called again after the resync interval, or at `check_at` if that is sooner.
    Continue {
        /// When something falls due (an active deadline).
        check_at: Option<Time>,
    },
    /// The pod ended by itself: no container runs or may start again.
    Terminal,
}

/// Arguments of [`PodSyncer::sync_terminating_pod`].
#[derive(Clone)]
pub struct TerminatingPod {
    /// The pod.
    pub pod: Arc<PodObject>,
    /// The decided grace.
    pub grace: Grace,
    /// Whether somebody asked for this grace. If not, it is what the pod's own fields say (natural completion, orphan),
    /// and finer rules of a container may replace it.
    pub forced: bool,
    /// Edits the status of a pod that is killed.
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

/// Edits a pod's status when it is killed: reason, message, phase, a condition.
pub type StatusFn = Arc<dyn Fn(&mut PodStatus) + Send + Sync>;

/// A pod that only the runtime knows: no spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningPod {
    /// The UID on its containers.
    pub uid: PodUid,
    /// The names on its containers.
    pub full_name: FullName,
}

/// A hook failed. It will be called again.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The pod needs a network that is not there yet.
    #[error("{NETWORK_NOT_READY}: {0}")]
    NetworkNotReady(String),
    /// Something waits out a backoff; the next try makes sense at `until`.
    #[error("{what}")]
    BackOff {
        /// What waits, for people.
        what: String,
        /// When it may be tried again.
        until: Time,
    },
    /// The hook ended early because it was asked to.
    #[error("cancelled")]
    Cancelled,
    /// A container could not be started, for a reason that its status shows.
    #[error(transparent)]
    NotStarted(Box<dyn std::error::Error + Send + Sync>),
    /// A volume or a directory could not be handled.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Anything else.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// Several at once.
    #[error("{}", join(.0))]
    Many(Vec<SyncError>),
}

fn join(errors: &[SyncError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// How the error of a pod begins that waits for a network; hooks of others may say so in their own errors (upstream
/// `NetworkNotReadyErrorMsg`, kubelet 1.36).
pub const NETWORK_NOT_READY: &str = "network is not ready";

/// When a failed hook should be called again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncRetry {
    /// Soon: the network is expected any moment.
    NetworkNotReady,
    /// At the earliest of the backoffs that wait.
    At(Time),
    /// After the usual error backoff.
    Backoff,
}

/// What a hook failed with, as far as more is known of it than what it said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blame {
    /// Nothing more.
    Nothing,
    /// Nothing but containers that wait out a backoff or could not be started, which their statuses tell.
    Containers,
    /// A volume.
    Volume(Arc<BadVolume>),
}

/// A volume that is not as the pod needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadVolume {
    /// Its name in the pod.
    pub volume: String,
    /// Why.
    pub reason: String,
}

impl SyncError {
    /// What is to blame.
    pub fn blame(&self) -> Blame {
        match self {
            SyncError::BackOff { .. } | SyncError::NotStarted(_) => Blame::Containers,
            SyncError::Storage(error) => match error {
                StorageError::Volume { volume, reason } | StorageError::Busy { volume, reason } => {
                    Blame::Volume(Arc::new(BadVolume { volume: volume.clone(), reason: reason.clone() }))
                }
                StorageError::Unsupported { volume, kind, remedy } => {
                    let reason = format!("{kind} volumes are not supported: {remedy}");
                    Blame::Volume(Arc::new(BadVolume { volume: volume.clone(), reason }))
                }
                StorageError::Slow { path: Some(path), .. } => {
                    Blame::Volume(Arc::new(BadVolume { volume: path.display().to_string(), reason: error.to_string() }))
                }
                // A directory of the pod's own; the error says which.
                StorageError::Io { .. } | StorageError::Slow { path: None, .. } => Blame::Nothing,
            },
            SyncError::NetworkNotReady(_) | SyncError::Cancelled | SyncError::Failed(_) => Blame::Nothing,
            SyncError::Many(errors) => match errors.iter().all(|error| error.blame() == Blame::Containers) {
                true => Blame::Containers,
                false => Blame::Nothing,
            },
        }
    }

    /// Wraps any error.
    pub fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        SyncError::Failed(error.into())
    }

    /// When to call again. A network that is not ready wins over a backoff, a backoff over other errors (upstream
    /// `completeWork`, kubelet 1.36).
    pub fn retry(&self) -> SyncRetry {
        match self {
            SyncError::NetworkNotReady(_) => SyncRetry::NetworkNotReady,
            SyncError::BackOff { until, .. } => SyncRetry::At(*until),
            SyncError::Cancelled => SyncRetry::Backoff,
            SyncError::Failed(error) | SyncError::NotStarted(error)
                if error.to_string().contains(NETWORK_NOT_READY) =>
            {
                SyncRetry::NetworkNotReady
            }
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
