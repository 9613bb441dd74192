//! Makes a client from a kubeconfig.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// The timeout of one attempt to connect. The caller retries a failed attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A kubeconfig gives no client.
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
    /// The credentials or the address of the kubeconfig cannot be used.
    #[error("cannot use the cluster or the user of the kubeconfig {path}", path = .path.display())]
    Client {
        /// The path of the file.
        path: PathBuf,
        /// Why the client cannot be made.
        source: Box<kube::Error>,
    },
}

/// Makes a client from the current context of a kubeconfig. Reads the files that the kubeconfig names. Does not connect: the first
/// call does.
///
/// # Errors
/// [`ConnectError`] if the kubeconfig or one of the files that it names cannot be used.
pub async fn connect(kubeconfig: &Path) -> Result<Client, ConnectError> {
    let faulty = |source| ConnectError::Kubeconfig { path: kubeconfig.to_owned(), source: Box::new(source) };
    let file = Kubeconfig::read_from(kubeconfig).map_err(faulty)?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.map_err(faulty)?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    Client::try_from(config)
        .map_err(|source| ConnectError::Client { path: kubeconfig.to_owned(), source: Box::new(source) })
}
