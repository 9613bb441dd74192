//! The images on the node, for image garbage collection.

use podwright_model::ids::ImageId;

use super::{FileSystemSpace, RuntimeFuture};

/// Lists and removes images. Only runtimes that store images have an image store.
pub trait ImageStore: Send + Sync + 'static {
    /// Lists every image and whether it is in use.
    ///
    /// # Errors
    /// [`RuntimeError`](super::RuntimeError) if the runtime does not answer.
    fn images(&self) -> RuntimeFuture<'_, Vec<StoredImage>>;

    /// The usage of the file system that holds the images.
    ///
    /// # Errors
    /// [`RuntimeError`](super::RuntimeError) if the file system cannot be measured.
    fn disk(&self) -> RuntimeFuture<'_, DiskUsage>;

    /// The file system that holds the images and the writable layers of containers (upstream `imagefs`). `None`, the default, if it
    /// is not known.
    ///
    /// # Errors
    /// [`RuntimeError`](super::RuntimeError) if the file system cannot be measured.
    fn file_system(&self) -> RuntimeFuture<'_, Option<FileSystemSpace>> {
        Box::pin(async { Ok(None) })
    }

    /// Lists the names and sizes of all images, for the status of the node. By default none.
    ///
    /// # Errors
    /// [`RuntimeError`](super::RuntimeError) if the runtime does not answer.
    fn named_images(&self) -> RuntimeFuture<'_, Vec<NamedImage>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// Removes an image with all its names. An image that does not exist is no error.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`](super::RuntimeError::Failed) if the image is in use since it was listed.
    fn remove_image<'a>(&'a self, id: &'a ImageId) -> RuntimeFuture<'a, ()>;
}

/// An image on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// The image's id.
    pub id: ImageId,
    /// The image's size on disk in bytes, or 0 if the runtime does not report it.
    pub size: u64,
    /// Whether the image is in use.
    pub need: ImageNeed,
}

/// The names and the size of an image on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedImage {
    /// The names with a digest, then those with a tag.
    pub names: Vec<String>,
    /// The image's size on disk in bytes, or 0 if the runtime does not report it.
    pub size: u64,
}

/// Whether an image is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageNeed {
    /// Nothing uses the image.
    Unused,
    /// A container (running or exited), a sandbox or a container start that is under way uses the image.
    Used,
    /// The runtime itself needs the image. It is never removed.
    Pinned,
}

/// The usage of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskUsage {
    /// The size of the file system in bytes.
    pub capacity: u64,
    /// The free space in bytes.
    pub available: u64,
}

impl DiskUsage {
    /// The used part in percent, rounded up; 0 for a file system without capacity.
    pub fn used_percent(&self) -> u8 {
        let (capacity, available) = (u128::from(self.capacity), u128::from(self.available.min(self.capacity)));
        if capacity == 0 {
            return 0;
        }
        u8::try_from(100 - available * 100 / capacity).unwrap_or(100)
    }
}
