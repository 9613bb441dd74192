//! Records that outlive the process.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::ErrorSource;

/// Keeps records across crashes of the process and of the machine. A record contains no line break.
///
/// A node opens the records once, when it starts, and writes them only through the writer of this opening. So nodes that run
/// one after the other can share one `Arc<dyn Checkpoint>`.
pub trait Checkpoint: Send + Sync + 'static {
    /// Reads all records in the order in which they were written, and returns them with a writer. There are no records
    /// before the first write. Blocks the thread, also while an earlier writer of the same records writes. An
    /// implementation limits this time.
    ///
    /// If this succeeds, every earlier writer of the same records in this process is superseded. From then on, each of its
    /// writes ends with [`CheckpointError::Superseded`] and changes nothing. This includes writes that were requested
    /// before this call.
    ///
    /// An implementation sets damaged data aside and logs it. Damage does not keep the node from starting.
    ///
    /// # Errors
    /// [`CheckpointError`] if the records may exist but cannot be read now. The node then does not start, because its
    /// first save would replace them. Earlier writers are not superseded.
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError>;
}

/// The result of [`Checkpoint::open`].
pub struct OpenCheckpoint {
    /// The records, in the order in which they were written.
    pub records: Vec<String>,
    /// Writes the records until the next opening.
    pub writer: Box<dyn CheckpointWriter>,
}

/// Writes the records of one opening of a [`Checkpoint`]. The caller makes one call at a time.
///
/// If a future is dropped, its write may still be performed later, unless the records are opened before that.
pub trait CheckpointWriter: Send + Sync + 'static {
    /// Replaces all records, atomically. The records survive a power failure once this returns `Ok`.
    ///
    /// # Errors
    /// [`CheckpointError`] if nothing was replaced.
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>>;

    /// Appends records to those of the last [`save`](CheckpointWriter::save). The cost does not depend on the number of
    /// existing records. The records survive a power failure once this returns `Ok`.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] if writing failed. Some of the records may have been written; the next call is a
    /// [`save`](CheckpointWriter::save). The same holds after a crash. [`CheckpointError::Superseded`] if none was written.
    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>>;
}

/// Records cannot be read or written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// Reading or writing failed. The caller may try again.
    #[error("{path}", path = .path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// Why the records cannot be read or written.
        source: ErrorSource,
    },
    /// The records were opened again after the writer was made, so the writer may not write any more. A retry is useless.
    #[error("{path}: another node of this process has opened the file since", path = .path.display())]
    Superseded {
        /// The path of the file.
        path: PathBuf,
    },
}

impl CheckpointError {
    /// The records at `path` cannot be read or written because of `source`.
    pub fn new(path: impl Into<PathBuf>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        CheckpointError::Io { path: path.into(), source: source.into().into() }
    }
}

/// A checkpoint that keeps nothing, for nodes whose state need not survive a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoCheckpoint;

impl Checkpoint for NoCheckpoint {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        Ok(OpenCheckpoint { records: Vec::new(), writer: Box::new(NoCheckpoint) })
    }
}

impl CheckpointWriter for NoCheckpoint {
    fn save(&self, _: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async { Ok(()) }.boxed()
    }

    fn append(&self, _: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async { Ok(()) }.boxed()
    }
}
