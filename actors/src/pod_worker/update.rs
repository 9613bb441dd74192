//! What others ask of a pod worker.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use serde::{Deserialize, Serialize};

use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::ports::{RunningPod, StatusFn};
use crate::time::{Grace, Time};

/// Why a pod is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UpdateKind {
    /// The pod is new to its source.
    Create,
    /// Its source changed it.
    Update,
    /// A re-check.
    Sync,
    /// It must have no running containers.
    Kill,
}

/// One update of one pod. A kill without a spec can only be made by [`Update::kill_runtime`], and nothing else can be
/// made without a spec.
#[derive(Debug)]
pub struct Update {
    pub(crate) kind: UpdateKind,
    pub(crate) target: Target,
    pub(crate) start_time: Option<Time>,
    pub(crate) options: Option<Box<KillOptions>>,
}

/// Whom an update is about.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A pod of which the spec is known.
    Config(Config),
    /// A pod that only the runtime knows.
    Runtime(Arc<RunningPod>),
}

/// A spec, and its mirror if it is a static pod that has one.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) pod: Arc<PodObject>,
    pub(crate) mirror: Option<Arc<PodObject>>,
}

impl Update {
    fn config(kind: UpdateKind, pod: Arc<PodObject>) -> Self {
        Update { kind, target: Target::Config(Config { pod, mirror: None }), start_time: None, options: None }
    }

    /// The pod is new to its source.
    pub fn create(pod: Arc<PodObject>) -> Self {
        Update::config(UpdateKind::Create, pod)
    }

    /// The pod's source changed it.
    pub fn changed(pod: Arc<PodObject>) -> Self {
        Update::config(UpdateKind::Update, pod)
    }

    /// The pod should be looked at again.
    pub fn sync(pod: Arc<PodObject>) -> Self {
        Update::config(UpdateKind::Sync, pod)
    }

    /// The pod must have no running containers.
    pub fn kill(pod: Arc<PodObject>) -> Self {
        Update::config(UpdateKind::Kill, pod)
    }

    /// A pod that only the runtime knows must have no running containers.
    pub fn kill_runtime(running: RunningPod) -> Self {
        Update { kind: UpdateKind::Kill, target: Target::Runtime(Arc::new(running)), start_time: None, options: None }
    }

    /// The API copy of a static pod. Remembered when later updates lack it.
    #[must_use]
    pub fn with_mirror(mut self, mirror: Option<Arc<PodObject>>) -> Self {
        if let Target::Config(config) = &mut self.target {
            config.mirror = mirror;
        }
        self
    }

    /// When the change behind this update began to be handled; feeds `kubelet_pod_worker_duration_seconds` only.
    #[must_use]
    pub fn with_start_time(mut self, start_time: Time) -> Self {
        self.start_time = Some(start_time);
        self
    }

    /// How to stop the pod. On an update that asks for no stop, only the notifier means something: it completes at once
    /// unless the pod is already stopping.
    #[must_use]
    pub fn with_options(mut self, options: KillOptions) -> Self {
        self.options = Some(Box::new(options));
        self
    }

    /// Which pod this is about.
    pub fn uid(&self) -> &PodUid {
        match &self.target {
            Target::Config(config) => config.pod.uid(),
            Target::Runtime(running) => &running.uid,
        }
    }

    /// Whether the pod's phase is terminal in its source.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(&self.target, Target::Config(config) if config.pod.phase().is_terminal())
    }

    /// Why.
    pub fn kind(&self) -> UpdateKind {
        self.kind
    }
}

/// How to stop a pod.
#[derive(Default)]
pub struct KillOptions {
    /// Completed as soon as no container of the pod can run.
    pub completed: Option<Notifier>,
    /// The pod is stopped for want of resources: its content may be reclaimed early.
    pub evict: bool,
    /// Edits the pod's status; of several, the last one is used.
    pub status_fn: Option<StatusFn>,
    /// Grace to use; an already shorter one stays.
    pub grace: Option<Grace>,
}

impl fmt::Debug for KillOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KillOptions").field("evict", &self.evict).field("grace", &self.grace).finish_non_exhaustive()
    }
}

/// A [`StatusFn`] that has a `Debug` form.
#[derive(Clone)]
pub(crate) struct StatusEditor(pub(crate) StatusFn);

impl StatusEditor {
    /// An editor that leaves the status as it is. A replay has it in place of the recorded one.
    pub(crate) fn without_edits() -> Self {
        StatusEditor(Arc::new(|_| {}))
    }
}

impl fmt::Debug for StatusEditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusFn")
    }
}

/// Tells one waiter that no container of a pod can run any more.
#[derive(Debug)]
pub struct Notifier(oneshot::Sender<()>);

impl Notifier {
    /// A notifier and the future it completes.
    pub fn new() -> (Notifier, Completed) {
        let (sender, receiver) = oneshot::channel();
        (Notifier(sender), Completed(receiver))
    }

    /// Tells the waiter; one that went away is no matter.
    pub fn complete(self) {
        let _gone = self.0.send(());
    }
}

/// Resolves once no container of the pod can run: `true`, or `false` when the engine shut down first.
///
/// Cancel safe: dropping it leaves the stop request in force.
#[derive(Debug)]
pub struct Completed(oneshot::Receiver<()>);

impl Future for Completed {
    type Output = bool;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        Pin::new(&mut self.0).poll(cx).map(|told| told.is_ok())
    }
}
