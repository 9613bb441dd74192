//! Requests a certificate from the cluster, and waits until it is issued.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use tokio::time::timeout;

use super::blocking::blocking;
use super::directory::Directory;
use super::pair::{CertificatePair, PairError};
use super::request::{Outcome, Pending, Template, is_decided, outcome};
use crate::adapters::kube::{ConnectError, KubeSigningRequests};
use podwright_ports::{ApiError, ApiFuture};

/// How long an agent waits for a certificate before it sends its request again (upstream `certificate_manager.go`,
/// `certificateWaitTimeout`, client-go 1.36).
const WAIT: Duration = Duration::from_secs(15 * 60);

/// The certificate signing requests of a cluster.
pub(super) trait SigningApi: Send + Sync {
    /// Creates a request. The error is a conflict if the request exists.
    fn create<'a>(&'a self, request: &'a CertificateSigningRequest) -> ApiFuture<'a, ()>;

    /// Waits until a request is issued, denied or has failed.
    fn decided<'a>(&'a self, name: &'a str) -> ApiFuture<'a, CertificateSigningRequest>;
}

impl SigningApi for KubeSigningRequests {
    fn create<'a>(&'a self, request: &'a CertificateSigningRequest) -> ApiFuture<'a, ()> {
        KubeSigningRequests::create(self, request)
    }

    fn decided<'a>(&'a self, name: &'a str) -> ApiFuture<'a, CertificateSigningRequest> {
        self.wait_until(name, is_decided)
    }
}

/// Why a certificate was not issued. The agent requests it again later.
#[derive(Debug, thiserror::Error)]
pub(super) enum IssueError {
    #[error(transparent)]
    Connect(ConnectError),
    #[error("cannot write the kubeconfig {path}: make its directory writable", path = .path.display())]
    Kubeconfig { path: PathBuf, source: io::Error },
    #[error("cannot keep the key of the request: make the directory of certificates writable")]
    Keep(#[source] io::Error),
    #[error("cannot create the certificate signing request {name}")]
    Create { name: String, source: ApiError },
    #[error("the certificate signing request {name} was deleted, or cannot be read")]
    Read { name: String, source: ApiError },
    #[error(
        "an approver denied the certificate signing request {name} ({message}): approve the next request, or correct the approver"
    )]
    Denied { name: String, message: String },
    #[error(
        "the signer failed the certificate signing request {name} ({message}): correct the cause that the message names"
    )]
    Failed { name: String, message: String },
    #[error(
        "nobody approved the certificate signing request {0} within 15 minutes: run kubectl certificate approve {0}"
    )]
    NotApproved(String),
    #[error("the certificate of the certificate signing request {name} cannot be used")]
    Unusable { name: String, source: PairError },
}

/// Requests a certificate, waits until it is issued, and stores it. Calls `waits_for` with the name of the request before it waits.
/// Continues an open request of an earlier call. The caller removes the open request when it uses the certificate. Cancel safe.
pub(super) async fn issue(
    api: &dyn SigningApi,
    template: &Template,
    directory: &Directory,
    waits_for: impl Fn(&str),
) -> Result<CertificatePair, IssueError> {
    let pending = {
        let (directory, template) = (directory.clone(), template.clone());
        blocking(move || directory.pending(&template)).await.map_err(IssueError::Keep)?
    };
    let issued = request(api, template, &pending, waits_for).await;
    let (directory, key) = (directory.clone(), pending.key);
    blocking(move || finish(&directory, &key, issued)).await
}

/// Creates the request unless it exists, and waits until it is decided. Returns its name and the certificate in PEM.
async fn request(
    api: &dyn SigningApi,
    template: &Template,
    pending: &Pending,
    waits_for: impl Fn(&str),
) -> Result<(String, String), IssueError> {
    let name = pending.name();
    match api.create(&template.object(pending)).await {
        // The name is a digest of the request, so the existing request is this one.
        Ok(()) | Err(ApiError::Conflict(_)) => {}
        Err(source) => return Err(IssueError::Create { name, source }),
    }
    waits_for(&name);
    let decided = match timeout(WAIT, api.decided(&name)).await {
        Ok(Ok(decided)) => decided,
        Ok(Err(source)) => return Err(IssueError::Read { name, source }),
        Err(_) => return Err(IssueError::NotApproved(name)),
    };
    match outcome(&decided) {
        Outcome::Issued(certificates) => Ok((name, certificates)),
        Outcome::Denied(message) => Err(IssueError::Denied { name, message }),
        Outcome::Failed(message) => Err(IssueError::Failed { name, message }),
        Outcome::Waiting => Err(IssueError::NotApproved(name)),
    }
}

/// Stores an issued certificate. A request that cannot lead to a certificate any more is removed, so that the next request has a new key.
/// Blocking.
fn finish(
    directory: &Directory,
    key: &str,
    issued: Result<(String, String), IssueError>,
) -> Result<CertificatePair, IssueError> {
    let stored = issued.and_then(|(name, certificates)| {
        let pair =
            CertificatePair::parse(&certificates, key).map_err(|source| IssueError::Unusable { name, source })?;
        directory.store(&certificates, key).map_err(IssueError::Keep)?;
        Ok(pair)
    });
    if let Err(IssueError::Denied { .. } | IssueError::Failed { .. } | IssueError::Unusable { .. }) = &stored {
        directory.discard_pending();
    }
    stored
}

#[cfg(test)]
mod tests;
