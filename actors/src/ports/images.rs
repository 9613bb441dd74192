//! The images that a node keeps, for whoever makes room among them.

use crate::ids::ImageId;

use super::RuntimeFuture;

/// Lists and removes images. A runtime that has none has no such thing.
pub trait ImageStore: Send + Sync + 'static {
    /// Every image, and whether something needs it.
    fn images(&self) -> RuntimeFuture<'_, Vec<StoredImage>>;

    /// How full the file system is on which they are.
    fn disk(&self) -> RuntimeFuture<'_, DiskUsage>;

    /// Removes an image with all its names; one that is gone is removed.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`](super::RuntimeError::Failed) if something has come to need it since it was listed.
    fn remove_image<'a>(&'a self, id: &'a ImageId) -> RuntimeFuture<'a, ()>;
}

/// One image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// Its id.
    pub id: ImageId,
    /// What it takes on disk, in bytes, as far as the runtime tells.
    pub size: u64,
    /// Whether something needs it.
    pub need: ImageNeed,
}

/// Who needs an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageNeed {
    /// Nobody.
    Unused,
    /// A container, whether it runs or has ended, a sandbox, or a start that is under way.
    Used,
    /// The runtime itself: it is never removed.
    Pinned,
}

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// All of it, in bytes.
    pub capacity: u64,
    /// What can be written still, in bytes.
    pub available: u64,
}
