//! What can fail.

use std::io;
use std::path::PathBuf;

use crate::slices::{SliceError, WrongPool};

/// A driver cannot be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The name of the driver cannot be used.
    #[error("the driver name {0:?} is not a DNS subdomain of at most 63 characters")]
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
    #[error("the folder {path} of the driver cannot be used: create it before the start", path = .path.display())]
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
    /// The driver has no client of the API server.
    #[error("the driver has no client of the API server: call client()")]
    NoClient,
    /// The driver does not know its node.
    #[error("the driver does not know its node: call node_name()")]
    NoNode,
    /// The driver has been stopped.
    #[error("the driver has been stopped")]
    Stopped,
    /// The driver offers another pool than its only one.
    #[error(transparent)]
    WrongPool(#[from] WrongPool),
}

/// A failure in the background.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A socket of the driver serves no longer. The driver cannot go on.
    #[error("the socket {path} of the driver serves no longer", path = .path.display())]
    Server {
        /// The path of the socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The devices that the driver offers are not published as they are. [`SliceError::is_recoverable`] says whether the library
    /// tries again.
    #[error("the devices of the driver are not published")]
    Publish(#[source] SliceError),
}

impl Failure {
    /// Whether the driver cannot go on. Otherwise the library tries again by itself, or the next call of the author corrects the
    /// cause.
    pub fn is_fatal(&self) -> bool {
        match self {
            Failure::Server { .. } => true,
            Failure::Publish(_) => false,
        }
    }
}
