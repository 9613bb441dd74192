//! Updates: the requests to a pod worker.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_channel::oneshot;
use serde::{Deserialize, Serialize};

use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::ports::{RunningPod, StatusFn};
use crate::time::{Grace, Time};

/// The reason of an update.
// A recording has the index of the variant: another order of variants is another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum UpdateKind {
    /// The pod is new to its source.
    Create,
    /// The pod changed in its source.
    Update,
    /// The pod is to be synced again without a change.
    Sync,
    /// The pod must have no running containers.
    Kill,
}

/// An update of one pod. Only [`Update::kill_runtime`] makes an update without a spec.
#[derive(Debug)]
pub struct Update {
    /// The reason.
    pub kind: UpdateKind,
    /// The pod.
    pub target: Target,
    /// When the agent began to handle the change.
    pub start_time: Option<Time>,
    /// The options of a stop.
    pub options: Option<Box<KillOptions>>,
}

/// The pod of an update.
#[derive(Clone, Debug)]
pub enum Target {
    /// A pod with a spec.
    Config(Config),
    /// A runtime-only pod.
    Runtime(Arc<RunningPod>),
}

/// A pod with its mirror pod. Only a static pod has one.
#[derive(Clone, Debug)]
pub struct Config {
    /// The pod.
    pub pod: Arc<PodObject>,
    /// Its mirror pod, if a source has sent one.
    pub mirror: Option<Arc<PodObject>>,
}

impl Update {
    fn config(kind: UpdateKind, pod: Arc<PodObject>) -> Self {
        Update { kind, target: Target::Config(Config { pod, mirror: None }), start_time: None, options: None }
    }

    /// The pod is new to its source.
    pub fn create(pod: Arc<PodObject>) -> Self {
        Update::config(UpdateKind::Create, pod)
    }

    /// The pod changed in its source.
    pub fn changed(pod: Arc<PodObject>) -> Self {
        Update::config(UpdateKind::Update, pod)
    }

    /// The pod is to be synced again without a change.
    pub fn sync(pod: Arc<PodObject>) -> Self {
        Update::config(UpdateKind::Sync, pod)
    }

    /// The pod must have no running containers.
    pub fn kill(pod: Arc<PodObject>) -> Self {
        Update::config(UpdateKind::Kill, pod)
    }

    /// A runtime-only pod must have no running containers.
    pub fn kill_runtime(running: RunningPod) -> Self {
        Update { kind: UpdateKind::Kill, target: Target::Runtime(Arc::new(running)), start_time: None, options: None }
    }

    /// Adds the mirror pod of a static pod. The record keeps it if later updates have none.
    #[must_use]
    pub fn with_mirror(mut self, mirror: Option<Arc<PodObject>>) -> Self {
        if let Target::Config(config) = &mut self.target {
            config.mirror = mirror;
        }
        self
    }

    /// Adds the time at which the agent began to handle the change. Only `kubelet_pod_worker_duration_seconds` uses it.
    #[must_use]
    pub fn with_start_time(mut self, start_time: Time) -> Self {
        self.start_time = Some(start_time);
        self
    }

    /// Adds the options of a stop. On an update that requests no stop, only the notifier has an effect: it completes at once
    /// unless the pod is stopping already.
    #[must_use]
    pub fn with_options(mut self, options: KillOptions) -> Self {
        self.options = Some(Box::new(options));
        self
    }

    /// The pod's UID.
    pub fn uid(&self) -> &PodUid {
        match &self.target {
            Target::Config(config) => config.pod.uid(),
            Target::Runtime(running) => &running.uid,
        }
    }

    /// Whether the pod's phase is terminal in its source.
    pub fn is_ended(&self) -> bool {
        matches!(&self.target, Target::Config(config) if config.pod.phase().is_terminal())
    }

    /// The reason of the update.
    pub fn kind(&self) -> UpdateKind {
        self.kind
    }
}

/// The options of a stop. By default the pod's own grace period applies.
#[derive(Default)]
#[must_use]
pub struct KillOptions {
    /// Notified once no container of the pod can run.
    pub completed: Option<Notifier>,
    /// Whether the node lacks resources.
    pub evict: bool,
    /// Edits the pod's status.
    pub status_fn: Option<StatusFn>,
    /// The grace period, unless a shorter one was decided before.
    pub grace: Option<Grace>,
}

impl KillOptions {
    /// Completes the notifier as soon as no container of the pod can run.
    pub fn completed(mut self, notifier: Notifier) -> Self {
        self.completed = Some(notifier);
        self
    }

    /// The pod is stopped because the node lacks resources. Its directories may be removed before it is deleted.
    pub fn evict(mut self) -> Self {
        self.evict = true;
        self
    }

    /// Edits the pod's status. If several updates have an editor, the last one is used.
    pub fn status(mut self, edit: StatusFn) -> Self {
        self.status_fn = Some(edit);
        self
    }

    /// The grace period. A shorter one that was decided before stays.
    pub fn grace(mut self, grace: Grace) -> Self {
        self.grace = Some(grace);
        self
    }
}

impl fmt::Debug for KillOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KillOptions").field("evict", &self.evict).field("grace", &self.grace).finish_non_exhaustive()
    }
}

/// A [`StatusFn`] that has a `Debug` form.
#[derive(Clone)]
pub struct StatusEditor(pub StatusFn);

impl StatusEditor {
    /// An editor that leaves the status as it is. A replay has it in place of the recorded one.
    pub fn without_edits() -> Self {
        StatusEditor(Arc::new(|_| {}))
    }
}

impl fmt::Debug for StatusEditor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StatusFn")
    }
}

/// Notifies one waiter that no container of a pod can run any more.
#[derive(Debug)]
pub struct Notifier(oneshot::Sender<()>);

impl Notifier {
    /// A notifier and the future that it completes.
    pub fn new() -> (Notifier, Completed) {
        let (sender, receiver) = oneshot::channel();
        (Notifier(sender), Completed(receiver))
    }

    /// Notifies the waiter. Nothing happens if the waiter was dropped.
    pub fn complete(self) {
        let _dropped = self.0.send(());
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
        Pin::new(&mut self.0).poll(cx).map(|notified| notified.is_ok())
    }
}
