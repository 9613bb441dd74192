//! Makes a client from a kubeconfig.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Request, Uri};
use kube::client::{Body, ClientBuilder};
use kube::config::KubeconfigError;
use kube::{Client, Config};
use tower::util::MapRequestLayer;

use super::credentials::Credentials;

/// The timeout of one attempt to connect. The caller retries a failed attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// The credentials or the address of the kubeconfig cannot be used.
    #[error("cannot use the cluster or the user of the kubeconfig {path}", path = .path.display())]
    Client {
        /// The path of the file.
        path: PathBuf,
        /// Why the client cannot be made.
        source: Box<kube::Error>,
    },
}

impl ConnectError {
    /// Whether the kubeconfig does not exist.
    #[cfg(any(test, feature = "agent"))]
    pub(crate) fn is_missing(&self) -> bool {
        match self {
            ConnectError::Kubeconfig { source, .. } => {
                matches!(&**source, KubeconfigError::ReadConfig(error, _) if error.kind() == io::ErrorKind::NotFound)
            }
            ConnectError::File { .. } | ConnectError::Client { .. } => false,
        }
    }

    /// Whether the kubeconfig itself is complete, but its credentials cannot be used.
    #[cfg(any(test, feature = "agent"))]
    pub(crate) fn concerns_credentials(&self) -> bool {
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
    // Each caller decides whether to repeat a call: a server that answers 504 may have performed it.
    config.default_retry = false;
    let builder = ClientBuilder::try_from(config)
        .map_err(|source| ConnectError::Client { path: kubeconfig.to_owned(), source: Box::new(source) })?;
    Ok(builder.with_layer(&MapRequestLayer::new(list_newest)).build())
}

/// Makes a streaming list begin with the newest versions. The watcher of kube requests version 0, and a server may answer that from an
/// old cache: a pod that was deleted would appear again.
fn list_newest(mut request: Request<Body>) -> Request<Body> {
    let query = request.uri().query().unwrap_or_default();
    if !query.split('&').any(|option| option == "sendInitialEvents=true") {
        return request;
    }
    let options =
        query.split('&').map(|option| if option == "resourceVersion=0" { "resourceVersion=" } else { option });
    let path = format!("{}?{}", request.uri().path(), options.collect::<Vec<_>>().join("&"));
    let mut parts = request.uri().clone().into_parts();
    if let Ok(path) = path.parse() {
        parts.path_and_query = Some(path);
    }
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streaming_list_begins_with_the_newest_version() {
        let rewritten = |uri: &str| {
            let request = Request::get(uri).body(Body::empty()).unwrap();
            list_newest(request).uri().to_string()
        };
        let list = "https://host:6443/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersion=";
        assert_eq!(rewritten(&format!("{list}0")), list);
        assert_eq!(rewritten("/api/v1/pods?sendInitialEvents=true&resourceVersion=0&a=b").split('?').count(), 2);
        let watch = "https://host/api/v1/pods?watch=true&resourceVersion=0";
        assert_eq!(rewritten(watch), watch);
    }
}
