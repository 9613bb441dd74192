//! Pod sources. Each update holds the full set of pods that a source desires on this node.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use podwright_model::ids::FullName;
use podwright_model::pod::PodObject;

use super::SourceKind;

/// The capacity of the channel from a source to the engine, in updates (the kubelet's config channel, 1.36).
pub const SOURCE_CHANNEL_DEPTH: usize = 50;

/// Takes the updates of pod sources. A node implements it.
pub trait SourceInbox: Send + Sync + 'static {
    /// Hands an update over. The future ends once the update is accepted, and a source sends its next update only after that.
    ///
    /// A node applies the accepted updates one after another, and none while its runtime is unhealthy. It accepts up to
    /// [`SOURCE_CHANNEL_DEPTH`] updates before it applies them, and a further one once enough earlier ones have been applied. Sending
    /// the same set again changes nothing.
    ///
    /// Not cancel safe: if the future is dropped, the update may or may not be applied. It is never applied in part.
    ///
    /// # Errors
    /// [`NodeStopped`] if the node has stopped. No later call succeeds.
    fn send(&self, update: SourceUpdate) -> BoxFuture<'static, Result<(), NodeStopped>>;
}

/// The node has stopped, so it takes no updates of pod sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has stopped and takes no pods: start a new node, and send the pods of the source to that one")]
pub struct NodeStopped;

/// An update from a pod source.
#[derive(Clone, Debug)]
pub enum SourceUpdate {
    /// The source's full set of pods.
    Set(SourceSet),
    /// The source has no full set of pods yet. Ignored once the source has sent its first set.
    NotYet {
        /// The source.
        source: SourceKind,
        /// Why the source has no set yet.
        problems: Vec<SourceProblem>,
    },
}

impl SourceUpdate {
    /// The source that sent the update.
    pub fn source(&self) -> SourceKind {
        match self {
            SourceUpdate::Set(set) => set.source,
            SourceUpdate::NotYet { source, .. } => *source,
        }
    }
}

impl From<SourceSet> for SourceUpdate {
    fn from(set: SourceSet) -> Self {
        SourceUpdate::Set(set)
    }
}

/// All pods that a source desires now. Pods of an earlier set that this one lacks are stopped.
#[derive(Clone, Debug)]
pub struct SourceSet {
    /// The source.
    pub source: SourceKind,
    /// The source's pods, in the source's order. A source sends the same `Arc` for an unchanged pod.
    pub pods: Vec<Arc<PodObject>>,
    /// The files or URLs that cannot be read or used now, whose last good pods remain in `pods`, and the warnings about
    /// those that are used.
    pub problems: Vec<SourceProblem>,
}

/// What a [`SourceProblem`] means for the pods of the file or URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The file or URL cannot be used. Its last good pods are kept.
    Fault,
    /// The file or URL is used, and its pods run. Published as an event `UnknownField` of the pods.
    Warning,
}

/// A file, directory or URL that a source cannot use, or that it uses with a warning.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[error("{what}: {message}")]
pub struct SourceProblem {
    /// The path or URL.
    pub what: String,
    /// What is wrong, where in the file, and the remedy.
    pub message: String,
    /// The pods of this path or URL that keep their last good version. For a warning, the pods that it is about.
    pub pods: Vec<FullName>,
    /// Whether the pods run as written.
    pub severity: Severity,
}
