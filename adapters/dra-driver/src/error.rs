//! Errors of the start, of publishing and of background work.

use std::io;
use std::path::PathBuf;

use podwright_slices::{SliceError, WrongPool};

/// A driver cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name of the driver cannot be used.
    #[error("the driver name {0:?} is not a DNS subdomain of at most 63 characters, like gpu.example.com")]
    Name(String),
    /// The driver has no access to the API server.
    #[error("the driver has no client of the API server: call client() or without_api()")]
    NoClient,
    /// A registration socket has a fixed name, although each instance of a rolling update needs its own.
    #[error(
        "a rolling update chooses the name of the registration socket: remove registrar_file() or rolling_update()"
    )]
    RegistrarFile,
    /// The driver would serve nothing.
    #[error("the driver serves nothing: enable a version of the service, or implement health()")]
    NoService,
    /// The folder of the driver does not exist.
    #[error("the directory {path} of the driver cannot be used: create it before the driver starts", path = .path.display())]
    DataDir {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// None of the versions of the metadata is known.
    #[error("no version of device metadata in {0:?} is known: add v1alpha1 to metadata_versions()")]
    MetadataVersions(Vec<String>),
    /// A socket cannot be created.
    #[error("cannot listen on {path}", path = .path.display())]
    Listen {
        /// The path of the socket.
        path: PathBuf,
        /// The system's or the custom listener's error.
        source: io::Error,
    },
}

/// Devices cannot be published. Nothing changes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The driver has no API client.
    #[error("the driver has no client of the API server: call client()")]
    NoClient,
    /// The driver does not know its node.
    #[error("the driver does not know its node: call node_name()")]
    NoNode,
    /// The driver has been stopped.
    #[error("the driver has been stopped")]
    Stopped,
    /// The driver offers a pool other than its single pool.
    #[error(transparent)]
    WrongPool(#[from] WrongPool),
}

/// A failure of background work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The driver no longer serves one of its sockets, so the node cannot call it. Restart the driver.
    #[error("the driver no longer serves its socket {path}: restart it", path = .path.display())]
    Server {
        /// The path of the socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The published ResourceSlices differ from the devices that the driver offers. [`SliceError::is_recoverable`] says whether the
    /// library tries again.
    #[error("the ResourceSlices of the driver differ from its devices")]
    Publish(#[source] SliceError),
}

impl Failure {
    /// Whether the driver cannot go on. If it can, the library tries again by itself, or the next
    /// [`publish`](super::RunningDriver::publish) removes the cause.
    pub fn is_fatal(&self) -> bool {
        match self {
            Failure::Server { .. } => true,
            Failure::Publish(_) => false,
        }
    }
}
