//! Makes a client from a kubeconfig.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Request, Response};
use kube::client::{Body, ClientBuilder, DynBody};
use kube::config::KubeconfigError;
use kube::{Client, Config};
use podwright_host::trusted_file::UntrustedFile;
use podwright_kube_api::KubeError;
use tower::layer::layer_fn;
use tower::{BoxError, Service};

use super::credentials::Credentials;
use super::streaming_lists::StreamingLists;

/// The timeout of one attempt to connect. The caller retries a failed attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may bring nothing. Longer than a watch (290 s, kube-runtime), so it ends only connections to a server that is gone.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Why no client can be made from a kubeconfig.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The kubeconfig cannot be read, or is incomplete.
    #[error("cannot use the kubeconfig {path}: correct the file or --kubeconfig", path = .path.display())]
    Kubeconfig {
        /// The path of the file.
        path: PathBuf,
        /// What is wrong with the file.
        source: Box<KubeconfigError>,
    },
    /// A file that the kubeconfig names cannot be read.
    #[error("cannot read {path}, which the kubeconfig {kubeconfig} names: correct the kubeconfig, or restore the file",
        path = .path.display(), kubeconfig = .kubeconfig.display())]
    File {
        /// The path of the kubeconfig.
        kubeconfig: PathBuf,
        /// The path of the file that the kubeconfig names.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Other users can change the kubeconfig or a file that it names. They could make the agent run a program, or send its requests
    /// elsewhere.
    #[error("the kubeconfig {kubeconfig} is not used", kubeconfig = .kubeconfig.display())]
    Untrusted {
        /// The path of the kubeconfig.
        kubeconfig: PathBuf,
        /// The file that others can change.
        source: UntrustedFile,
    },
    /// The credentials or the address of the kubeconfig cannot be used.
    #[error("cannot use the cluster or the user of the kubeconfig {path}", path = .path.display())]
    Client {
        /// The path of the file.
        path: PathBuf,
        /// Why the client cannot be made.
        source: KubeError,
    },
}

impl ConnectError {
    /// Whether the kubeconfig does not exist.
    pub fn is_missing(&self) -> bool {
        match self {
            ConnectError::Kubeconfig { source, .. } => {
                matches!(&**source, KubeconfigError::ReadConfig(error, _) if error.kind() == io::ErrorKind::NotFound)
            }
            ConnectError::File { .. } | ConnectError::Untrusted { .. } | ConnectError::Client { .. } => false,
        }
    }

    /// Whether the kubeconfig itself is complete, but its credentials cannot be used.
    pub fn concerns_credentials(&self) -> bool {
        matches!(self, ConnectError::File { .. } | ConnectError::Client { .. })
    }
}

/// Makes a client from the current context of a kubeconfig. Reads the files that the kubeconfig names. Does not connect: the first
/// call does.
///
/// # Errors
/// [`ConnectError`] if the kubeconfig or one of the files that it names cannot be used.
pub async fn connect(kubeconfig: &Path) -> Result<Client, ConnectError> {
    Credentials::read(kubeconfig)?.client().await
}

/// Makes a client from the settings of a kubeconfig.
pub(super) fn build(mut config: Config, kubeconfig: &Path) -> Result<Client, ConnectError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Each caller decides whether to repeat a call: a server that answers 504 may have performed it.
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)
        .map_err(|source| ConnectError::Client { path: kubeconfig.to_owned(), source: source.into() })?;
    Ok(builder.with_layer(&layer_fn(StreamingLists)).build())
}

/// Makes a client of a service that answers requests without a connection, such as an API server of a simulation. Must be called in a
/// tokio runtime.
pub fn client_over<S>(service: S) -> Client
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    ClientBuilder::new(service, "default").with_layer(&layer_fn(StreamingLists)).build()
}
