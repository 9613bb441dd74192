//! The credentials of the agent at the API server.
//!
//! The kubeconfig and the files that it names are compared with their earlier content every two seconds. New credentials replace the
//! old ones without a restart. With a bootstrap kubeconfig, the agent requests its certificate and renews it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use tokio::time::sleep;

use super::blocking::blocking;
use super::directory::Directory;
use super::issue::{IssueError, issue};
use super::pair::validity_of;
use super::renewal::Renewal;
use super::request::Template;
use super::schedule::{CredentialSource, FoundKubeconfig, Requester, credential_source};
use crate::adapters::kube::{ConnectError, Connection, Credentials, KubeSigningRequests};
use podwright_host::record::{self, Durability};
use podwright_metrics::CertificateMetrics;
use podwright_model::text::error_chain;

/// How often the files are compared with the credentials in use.
const INTERVAL: Duration = Duration::from_secs(2);

/// The files of the agent's credentials.
#[derive(Clone, Debug)]
pub(crate) struct ClientSettings {
    /// The name of the node.
    pub(crate) node: String,
    /// The directory for the certificate and its key.
    pub(crate) directory: PathBuf,
    /// The kubeconfig of the node.
    pub(crate) kubeconfig: PathBuf,
    /// The kubeconfig whose credentials request the first certificate.
    pub(crate) bootstrap: Option<PathBuf>,
}

/// Why the agent has no client of the API server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(
        "the kubeconfig {kubeconfig} has no valid client certificate, and a new one cannot be requested: correct --bootstrap-kubeconfig",
        kubeconfig = .kubeconfig.display()
    )]
    Bootstrap { kubeconfig: PathBuf, source: ConnectError },
}

/// The credentials in use. They follow the files after [`ClientCredentials::run`] is called.
pub(crate) struct ClientCredentials {
    settings: ClientSettings,
    directory: Directory,
    client: Client,
    connection: Connection,
    /// The kubeconfig as it was read last.
    current: Option<Arc<Credentials>>,
    /// The kubeconfig has credentials that the agent cannot renew, such as a token.
    is_fixed: bool,
    renewal: Renewal,
    /// The last error of the kubeconfig, which is logged once.
    logged: Option<String>,
}

/// What a kubeconfig contains.
struct Read {
    credentials: Credentials,
    client: Result<Client, ConnectError>,
    found: FoundKubeconfig,
}

impl Read {
    async fn from(path: &Path) -> Result<Self, ConnectError> {
        let path = path.to_owned();
        let credentials = blocking(move || Credentials::read(&path)).await?;
        let client = credentials.client().await;
        let found = match (&client, credentials.certificate()) {
            (Err(_), _) => FoundKubeconfig::Unusable,
            (Ok(_), None) => FoundKubeconfig::Other,
            (Ok(_), Some(pem)) => validity_of(&pem).map_or(FoundKubeconfig::Unusable, FoundKubeconfig::Certificate),
        };
        Ok(Read { credentials, client, found })
    }
}

impl ClientCredentials {
    /// A client with the credentials of the kubeconfig. If the agent has to request a certificate first, the requests of the client
    /// fail until it is issued. Does not connect.
    ///
    /// # Errors
    /// [`ClientError`] if there are no credentials that can be used.
    pub(crate) async fn open(settings: ClientSettings) -> Result<(Client, Self), ClientError> {
        let (client, connection) = Connection::new("the client certificate of the node is not issued yet");
        let directory = Directory::of(&settings.directory, "client");
        let mut opened = ClientCredentials {
            directory,
            client: client.clone(),
            connection,
            current: None,
            is_fixed: false,
            renewal: Renewal::default(),
            logged: None,
            settings,
        };
        let kubeconfig = opened.settings.kubeconfig.clone();
        let read = Read::from(&kubeconfig).await;
        let found = match &read {
            Ok(read) => read.found,
            Err(error) if error.is_missing() => FoundKubeconfig::Missing,
            Err(error) if is_replaceable(error) => FoundKubeconfig::Unusable,
            Err(_) => return Err(read.map(drop).expect_err("the result is an error").into()),
        };
        match credential_source(found, opened.settings.bootstrap.is_some(), Timestamp::now()) {
            CredentialSource::Use | CredentialSource::Renew => opened.apply(read?, None)?,
            CredentialSource::Fail => {
                return Err(read?.client.map(drop).expect_err("the kubeconfig gives no client").into());
            }
            CredentialSource::Request => {
                let bootstrap = opened.settings.bootstrap.clone().unwrap_or_default();
                let checked = Read::from(&bootstrap).await.and_then(|read| read.client);
                checked.map_err(|source| ClientError::Bootstrap { kubeconfig, source })?;
                opened.current = read.ok().map(|read| Arc::new(read.credentials));
                tracing::info!(
                    kubeconfig = %opened.settings.kubeconfig.display(),
                    "the kubeconfig has no valid client certificate, so the agent requests one"
                );
            }
        }
        Ok((client, opened))
    }

    /// Follows the files, and renews the certificate. Never returns.
    pub(crate) async fn run(&mut self, metrics: &CertificateMetrics) {
        let mut pause = Duration::ZERO;
        let mut request: Option<BoxFuture<'static, Result<(), IssueError>>> = None;
        loop {
            let issued = tokio::select! {
                () = sleep(pause) => None,
                issued = async { request.as_mut().expect("a request runs").await }, if request.is_some() => Some(issued),
            };
            match issued {
                None => self.follow().await,
                Some(issued) => {
                    request = None;
                    let taken = match issued {
                        Ok(()) => self.take(Some(Timestamp::now())).await,
                        Err(error) => Err(error),
                    };
                    if let Err(error) = taken {
                        self.failed(&error, metrics);
                    }
                }
            }
            let now = Timestamp::now();
            pause = INTERVAL;
            if self.settings.bootstrap.is_none() || self.is_fixed {
                continue;
            }
            metrics.client_ttl(self.renewal.ttl(now));
            if request.is_some() && !self.renewal.is_needed(now) {
                // New files replaced the expired credentials while the request waited.
                request = None;
            }
            if request.is_none()
                && let Some(requester) = self.renewal.due(now)
            {
                if self.has_stored(now).await {
                    if let Err(error) = self.take(None).await {
                        self.failed(&error, metrics);
                    }
                } else {
                    request = Some(self.request(requester));
                }
            }
            if request.is_none() {
                pause = self.renewal.pause(now).map_or(INTERVAL, |pause| pause.min(INTERVAL));
            }
        }
    }

    /// Reads the files again if they have changed. Credentials that cannot be used change nothing.
    async fn follow(&mut self) {
        if let Some(current) = self.current.clone()
            && blocking(move || current.is_current()).await
        {
            return;
        }
        let applied = match Read::from(&self.settings.kubeconfig).await {
            Ok(read) => self.apply(read, None),
            // The agent writes the file when its certificate is issued.
            Err(error) if self.current.is_none() && is_replaceable(&error) => return,
            Err(error) => Err(error),
        };
        match applied {
            Ok(()) => tracing::info!("the changed credentials of the kubeconfig are in use"),
            Err(error) => {
                let error = error_chain(&error).to_string();
                if self.logged.as_ref() != Some(&error) {
                    tracing::error!(error, "cannot use the changed kubeconfig; the old credentials stay in use");
                }
                self.logged = Some(error);
            }
        }
    }

    /// Uses the credentials of a kubeconfig.
    fn apply(&mut self, read: Read, received: Option<Timestamp>) -> Result<(), ConnectError> {
        self.connection.replace(read.client?);
        self.current = Some(Arc::new(read.credentials));
        self.logged = None;
        self.is_fixed = read.found == FoundKubeconfig::Other;
        match read.found {
            FoundKubeconfig::Certificate(validity) => self.renewal.hold(validity, received),
            FoundKubeconfig::Missing | FoundKubeconfig::Unusable | FoundKubeconfig::Other => self.renewal.release(),
        }
        Ok(())
    }

    /// Whether an earlier agent stored a certificate that the kubeconfig does not name yet.
    async fn has_stored(&self, now: Timestamp) -> bool {
        let directory = self.directory.clone();
        let stored = blocking(move || directory.current()).await;
        let user = Template::client(&self.settings.node).common_name;
        stored.is_some_and(|stored| {
            stored.common_name().as_ref() == Some(&user) && self.renewal.is_better(stored.validity, now)
        })
    }

    /// Starts a request with these credentials.
    fn request(&self, requester: Requester) -> BoxFuture<'static, Result<(), IssueError>> {
        let (settings, directory) = (self.settings.clone(), self.directory.clone());
        let (own, connection) = (self.client.clone(), self.connection.clone());
        async move {
            let client = match (requester, &settings.bootstrap) {
                (Requester::Bootstrap, Some(bootstrap)) => {
                    let read = Read::from(bootstrap).await.and_then(|read| read.client);
                    read.map_err(IssueError::Connect)?
                }
                (Requester::Bootstrap, None) | (Requester::Current, _) => own,
            };
            let waits = |name: &str| {
                tracing::info!(name, "waiting until the certificate signing request is approved");
                connection.set_problem(&format!(
                    "the client certificate of the node is not issued yet: run kubectl certificate approve {name}"
                ));
            };
            let template = Template::client(&settings.node);
            issue(&KubeSigningRequests::new(client), &template, &directory, waits).await.map(drop)
        }
        .boxed()
    }

    /// Uses the stored certificate. Writes the kubeconfig unless it names the certificate already.
    async fn take(&mut self, received: Option<Timestamp>) -> Result<(), IssueError> {
        let (settings, directory) = (self.settings.clone(), self.directory.clone());
        let written = blocking(move || {
            let written = name_certificate(&settings, &directory.current_file());
            if written.is_ok() {
                directory.discard_pending();
            }
            written
        });
        written.await?;
        let read = Read::from(&self.settings.kubeconfig).await.map_err(IssueError::Connect)?;
        self.apply(read, received).map_err(IssueError::Connect)?;
        tracing::info!("the agent uses a new client certificate");
        Ok(())
    }

    fn failed(&mut self, error: &IssueError, metrics: &CertificateMetrics) {
        let delay = self.renewal.failed(Timestamp::now());
        let error = error_chain(error).to_string();
        tracing::error!(error, retry.seconds = delay.as_secs(), "cannot get a client certificate");
        self.connection.set_problem(&error);
        metrics.client_request_failed();
    }
}

/// Whether the agent may write the kubeconfig: the file does not exist, or only its credentials cannot be used. The agent does not
/// overwrite a file that is no kubeconfig.
fn is_replaceable(error: &ConnectError) -> bool {
    error.is_missing() || error.concerns_credentials()
}

/// Writes a kubeconfig that names the certificate, unless it names the certificate already. The cluster is that of the
/// kubeconfig, or else that of the bootstrap kubeconfig. Blocking.
fn name_certificate(settings: &ClientSettings, certificate: &Path) -> Result<(), IssueError> {
    let bootstrap = settings.bootstrap.as_deref();
    let template = match Credentials::read(&settings.kubeconfig) {
        Ok(found) if found.certificate_file() == Some(certificate) => return Ok(()),
        Ok(found) => found,
        Err(error) => match bootstrap.filter(|_| is_replaceable(&error)).map(Credentials::read) {
            Some(found) => found.map_err(IssueError::Connect)?,
            None => return Err(IssueError::Connect(error)),
        },
    };
    let write = || {
        // If the kubeconfig is a symbolic link, the link stays, and the file that it points to is replaced.
        let path = fs::canonicalize(&settings.kubeconfig).unwrap_or_else(|_| settings.kubeconfig.clone());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        record::replace(&path, template.with_certificate_file(certificate).as_bytes(), Durability::Disk)
    };
    write().map_err(|source: io::Error| IssueError::Kubeconfig { path: settings.kubeconfig.clone(), source })
}
