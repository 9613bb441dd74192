//! Where pods come from: full sets of what a source wants on this node.

use std::fmt;
use std::sync::Arc;

use crate::ids::FullName;
use crate::pod::PodObject;

/// How many sets a source may have sent before it waits for the engine (upstream's config channel, 1.36).
pub const SOURCE_CHANNEL_DEPTH: usize = 50;

/// A kind of source; the engine keeps one state for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceKind {
    /// Files and directories.
    File,
    /// URLs.
    Http,
    /// The API server.
    Api,
}

impl SourceKind {
    /// The word that [`SOURCE_ANNOTATION`](crate::pod::SOURCE_ANNOTATION) uses.
    pub const fn as_str(self) -> &'static str {
        match self {
            SourceKind::File => "file",
            SourceKind::Http => "http",
            SourceKind::Api => "api",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a source says.
#[derive(Clone, Debug)]
pub enum SourceUpdate {
    /// What it wants.
    Set(SourceSet),
    /// It cannot say yet what it wants. Of no meaning once it has said so.
    NotYet {
        /// Which source.
        source: SourceKind,
        /// Why not.
        problems: Vec<SourceProblem>,
    },
}

impl From<SourceSet> for SourceUpdate {
    fn from(set: SourceSet) -> Self {
        SourceUpdate::Set(set)
    }
}

/// All pods that a source wants now. What an earlier set held and this one lacks is to be stopped.
#[derive(Clone, Debug)]
pub struct SourceSet {
    /// Which source.
    pub source: SourceKind,
    /// Its pods, in its order. A source hands out the same `Arc` for a pod that did not change.
    pub pods: Vec<Arc<PodObject>>,
    /// What the source could not use at present. Pods that a broken place held before are still among `pods`.
    pub problems: Vec<SourceProblem>,
}

/// A place of a source that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[error("{what}: {message}")]
pub struct SourceProblem {
    /// The path or URL.
    pub what: String,
    /// What is wrong there, where exactly, and what to do about it.
    pub message: String,
    /// The pods that come from there and go on by what was last good.
    pub pods: Vec<FullName>,
}
