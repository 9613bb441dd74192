//! Keeping a few records over the end of the process.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

/// Keeps records over crashes of the process and of the machine.
///
/// A record has no line break. One call is made at a time.
pub trait Checkpoint: Send + Sync + 'static {
    /// The records that are kept, in their order; none if none are. Called once, before all else. Blocks.
    ///
    /// What is damaged is put aside and told of, and does not keep the node from starting.
    ///
    /// # Errors
    /// [`CheckpointError`] if what may be there cannot be read now: it must not be replaced by what is known without it.
    fn load(&self) -> Result<Vec<String>, CheckpointError>;

    /// Replaces all records, wholly or not at all. Once it succeeded they outlive a loss of power.
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>>;

    /// Adds records behind those that [`save`](Checkpoint::save) left, at a cost that does not depend on how many these
    /// are. Once it succeeded they outlive a loss of power. If it did not, or there was a crash, some may be there and
    /// others not; the next call is one of `save` then.
    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>>;
}

/// Records could not be written, or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {error}", path = .path.display())]
pub struct CheckpointError {
    /// Which file.
    pub path: PathBuf,
    /// What the system said.
    pub error: String,
}

/// For nodes whose host outlives no crash: nothing is kept.
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
