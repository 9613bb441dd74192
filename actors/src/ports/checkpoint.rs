//! Records that outlive the process.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::ErrorSource;

/// Keeps records across crashes of the process and of the machine.
///
/// A record contains no line break. The caller makes one call at a time.
pub trait Checkpoint: Send + Sync + 'static {
    /// Reads all records in the order in which they were written; empty if there are none. The node calls this once,
    /// before any other call. Blocks the thread.
    ///
    /// An implementation sets damaged data aside and logs it. Damage does not keep the node from starting.
    ///
    /// # Errors
    /// [`CheckpointError`] if the records may exist but cannot be read now. The node then does not start, because its
    /// first save would replace them.
    fn load(&self) -> Result<Vec<String>, CheckpointError>;

    /// Replaces all records, atomically. The records survive a power failure once this returns `Ok`.
    ///
    /// # Errors
    /// [`CheckpointError`] if nothing was replaced.
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>>;

    /// Appends records to those of the last [`save`](Checkpoint::save). The cost does not depend on the number of
    /// existing records. The records survive a power failure once this returns `Ok`.
    ///
    /// # Errors
    /// [`CheckpointError`] if writing failed. Some of the records may have been written; the next call is a
    /// [`save`](Checkpoint::save). The same holds after a crash.
    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>>;
}

/// Records cannot be read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{path}", path = .path.display())]
#[non_exhaustive]
pub struct CheckpointError {
    /// The path of the file.
    pub path: PathBuf,
    /// Why the records cannot be read or written.
    pub source: ErrorSource,
}

impl CheckpointError {
    /// The records at `path` cannot be read or written because of `source`.
    pub fn new(path: impl Into<PathBuf>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        CheckpointError { path: path.into(), source: source.into().into() }
    }
}

/// A checkpoint that keeps nothing, for nodes whose state need not survive a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoCheckpoint;

impl Checkpoint for NoCheckpoint {
    fn load(&self) -> Result<Vec<String>, CheckpointError> {
        Ok(Vec::new())
    }

    fn save(&self, _: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async { Ok(()) }.boxed()
    }

    fn append(&self, _: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async { Ok(()) }.boxed()
    }
}
