//! The certificate that the node API shows to its clients.

mod signed;

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use parking_lot::RwLock;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::time::{MissedTickBehavior, interval};

use super::blocking::blocking;
use super::pair::{CertificatePair, PairError};
use super::self_signed;
use podwright_http_server::{PrivateFileError, TlsFiles, read_private, write_private};
use podwright_metrics::CertificateMetrics;
use podwright_model::text::{error_chain, reason};
use podwright_parts::Parts;
use podwright_ports::HostIps;

/// The file in the directory with the self-signed certificate and its key.
const SELF_SIGNED: &str = "self-signed.pem";
/// How often the files of a certificate are compared with the certificate in use.
const INTERVAL: Duration = Duration::from_secs(2);
/// The part that replaces the certificate.
const PART: &str = "serving_certificate";

/// The node that a certificate is for, and the directory that keeps the certificate.
#[derive(Clone, Debug)]
pub(crate) struct ServingNode {
    pub(crate) directory: PathBuf,
    pub(crate) name: String,
    pub(crate) addresses: HostIps,
}

/// Where the serving certificate comes from.
pub(crate) enum ServingSource {
    /// The agent makes and signs the certificate.
    SelfSigned(ServingNode),
    /// An administrator replaces the files.
    Files(TlsFiles),
    /// The cluster issues the certificate. Connections are refused until then.
    Signed(ServingNode, Client),
}

/// A source whose certificate the agent loads without the cluster.
#[derive(Clone, Debug)]
enum LocalSource {
    SelfSigned(ServingNode),
    Files(TlsFiles),
}

/// Why there is no serving certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServingError {
    #[error("cannot read the certificate {path} ({why}): correct --tls-cert-file", path = .path.display(), why = reason(.error))]
    Certificate { path: PathBuf, error: io::Error },
    #[error("cannot read the private key of the serving certificate")]
    Key(#[from] PrivateFileError),
    #[error("the certificate {certificate} and the key {key} cannot be used: correct --tls-cert-file or --tls-private-key-file",
        certificate = .files.certificate.display(), key = .files.key.display())]
    Pair { files: TlsFiles, source: PairError },
    #[error("cannot make a certificate for {node}: correct --node-name, or use --tls-cert-file")]
    Name { node: String, source: rcgen::Error },
    #[error("cannot write {path} ({why}): make its directory writable", path = .path.display(), why = reason(.error))]
    Write { path: PathBuf, error: io::Error },
    #[error("the certificate that the agent made cannot be used")]
    SelfSigned(#[source] PairError),
}

/// The certificate in use. New connections get the current certificate.
pub(crate) struct ServingCertificate {
    current: RwLock<Option<CertificatePair>>,
}

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServingCertificate").field("current", &*self.current.read()).finish()
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.read().as_ref().map(|pair| pair.certified.clone())
    }
}

impl ServingCertificate {
    fn of(pair: Option<CertificatePair>) -> Arc<Self> {
        Arc::new(ServingCertificate { current: RwLock::new(pair) })
    }

    fn has(&self, pair: &CertificatePair) -> bool {
        self.current.read().as_ref().is_some_and(|current| current.certified.cert == pair.certified.cert)
    }

    fn replace(&self, pair: CertificatePair) {
        *self.current.write() = Some(pair);
    }
}

/// The serving certificate of a source. A part replaces it when its files change, or before it expires.
///
/// # Errors
/// [`ServingError`] if there is no certificate at the start. A certificate that the cluster issues may follow later.
pub(crate) async fn serving(
    source: ServingSource,
    metrics: CertificateMetrics,
    parts: &Parts,
) -> Result<Arc<ServingCertificate>, ServingError> {
    let local = match source {
        ServingSource::SelfSigned(node) => LocalSource::SelfSigned(node),
        ServingSource::Files(files) => LocalSource::Files(files),
        ServingSource::Signed(node, client) => {
            let certificate = ServingCertificate::of(None);
            let served = certificate.clone();
            parts.spawn(PART, move || {
                signed::SignedCertificate::new(&node, client.clone(), served.clone(), metrics.clone()).run()
            });
            return Ok(certificate);
        }
    };
    let first = load(local.clone()).await?;
    metrics.server_ttl(ttl(&first));
    let certificate = ServingCertificate::of(Some(first));
    let served = certificate.clone();
    parts.spawn(PART, move || follow(local.clone(), served.clone(), metrics.clone()));
    Ok(certificate)
}

/// The seconds until a certificate expires.
fn ttl(pair: &CertificatePair) -> f64 {
    pair.validity.not_after.duration_since(Timestamp::now()).as_secs_f64()
}

/// Loads the certificate again every two seconds. Replaces the certificate in use if the loaded certificate differs. If the certificate
/// cannot be loaded, the certificate in use stays.
async fn follow(source: LocalSource, certificate: Arc<ServingCertificate>, metrics: CertificateMetrics) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut logged = None;
    loop {
        ticks.tick().await;
        match load(source.clone()).await {
            Ok(pair) => {
                logged = None;
                metrics.server_ttl(ttl(&pair));
                if !certificate.has(&pair) {
                    tracing::info!(expires = %pair.validity.not_after, "the node API has a new certificate");
                    certificate.replace(pair);
                }
            }
            Err(error) => {
                let error = error_chain(&error).to_string();
                if logged.as_ref() != Some(&error) {
                    tracing::error!(
                        error,
                        "cannot load the certificate of the node API, which keeps its old certificate"
                    );
                }
                logged = Some(error);
            }
        }
    }
}

/// Loads the certificate of a source.
async fn load(source: LocalSource) -> Result<CertificatePair, ServingError> {
    let load = move || match source {
        LocalSource::SelfSigned(node) => load_self_signed(&node, Timestamp::now()),
        LocalSource::Files(files) => load_files(&files),
    };
    blocking(load).await
}

/// Reads the certificate and the key of two files. Blocking.
fn load_files(files: &TlsFiles) -> Result<CertificatePair, ServingError> {
    let unreadable = |error| ServingError::Certificate { path: files.certificate.clone(), error };
    let certificates = fs::read_to_string(&files.certificate).map_err(unreadable)?;
    let key = read_private(&files.key)?;
    CertificatePair::parse(&certificates, &key).map_err(|source| ServingError::Pair { files: files.clone(), source })
}

/// Reads the self-signed certificate, and makes a new one if there is none, if it expires soon, or if the names of the node have
/// changed. Blocking.
fn load_self_signed(node: &ServingNode, now: Timestamp) -> Result<CertificatePair, ServingError> {
    let names = node.names();
    let path = node.directory.join(SELF_SIGNED);
    let kept = read_private(&path).ok().and_then(|pem| CertificatePair::parse(&pem, &pem).ok());
    if let Some(kept) = kept.filter(|kept| self_signed::is_usable(kept, &names, now)) {
        return Ok(kept);
    }
    let unnamed = |source| ServingError::Name { node: node.name.clone(), source };
    let pem = self_signed::create(&node.name, &names, now).map_err(unnamed)?;
    let write = |error| ServingError::Write { path: path.clone(), error };
    DirBuilder::new().recursive(true).mode(0o700).create(&node.directory).map_err(write)?;
    write_private(&path, &pem).map_err(write)?;
    CertificatePair::parse(&pem, &pem).map_err(ServingError::SelfSigned)
}

impl ServingNode {
    /// The name and the addresses of the node, sorted.
    fn names(&self) -> Vec<String> {
        let addresses = self.addresses.get();
        let mut names: Vec<String> = addresses.iter().map(IpAddr::to_string).chain([self.name.clone()]).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

#[cfg(test)]
mod tests;
