//! Verifies client certificates with the authority of `--client-ca-file`, and finds their users.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::user::User;
use podwright_host::trusted_file::{self, UntrustedFile};
use podwright_http_server::{TlsError, certificates};
use podwright_model::text::error_chain;

/// How often the file is read again (upstream `DynamicFileCAContent.Run`, 1.36).
const RELOAD: Duration = Duration::from_secs(60);

/// Why the certificates of `--client-ca-file` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientAuthorityError {
    /// The file cannot be read, or has no certificate.
    #[error("cannot use --client-ca-file")]
    File(#[from] TlsError),
    /// Other users can change the file, so they could sign certificates of any user.
    #[error("cannot use --client-ca-file")]
    Untrusted(#[from] UntrustedFile),
    /// The file has a certificate that is no authority.
    #[error("{path} holds a certificate that cannot sign others: name the certificate of the cluster's authority",
        path = .path.display())]
    Root {
        /// The file.
        path: PathBuf,
        /// Why the certificate is no authority.
        source: rustls::Error,
    },
    /// The certificates cannot verify others.
    #[error("{path} cannot verify certificates", path = .path.display())]
    Verifier {
        /// The file.
        path: PathBuf,
        /// Why its certificates cannot verify others.
        source: VerifierBuilderError,
    },
}

/// The authority that signs the certificates of clients. The file of the authority may change.
pub(super) struct ClientAuthority {
    path: PathBuf,
    verifier: RwLock<Arc<dyn ClientCertVerifier>>,
}

impl ClientAuthority {
    /// Reads the certificates of the authority. Blocking.
    ///
    /// # Errors
    /// [`ClientAuthorityError`] if the file cannot be read or has no usable certificate.
    pub(super) fn open(path: &Path) -> Result<Arc<Self>, ClientAuthorityError> {
        let verifier = RwLock::new(load(path)?);
        Ok(Arc::new(ClientAuthority { path: path.to_owned(), verifier }))
    }

    /// The user of a client that sent these certificates. The first one is the certificate of the client itself. `None` if the
    /// authority did not sign it, if it has expired, or if it is not a client certificate.
    pub(super) fn user(&self, peer: &[CertificateDer<'static>]) -> Option<User> {
        let (own, others) = peer.split_first()?;
        let verifier = self.verifier.read().clone();
        match verifier.verify_client_cert(own, others, UnixTime::now()) {
            Ok(_) => User::of_certificate(own),
            Err(error) => {
                tracing::debug!(%error, "the certificate of a client of the node API is not valid");
                None
            }
        }
    }

    /// Reads the file again every minute. If that fails, the earlier certificates stay in use. Never returns.
    pub(super) async fn follow_file(self: Arc<Self>) {
        let mut is_failing = false;
        loop {
            sleep(RELOAD).await;
            let path = self.path.clone();
            match spawn_blocking(move || load(&path)).await {
                Ok(Ok(verifier)) => {
                    *self.verifier.write() = verifier;
                    is_failing = false;
                }
                Ok(Err(error)) if !is_failing => {
                    is_failing = true;
                    let error = error_chain(&error).to_string();
                    tracing::error!(error, "the earlier certificates of --client-ca-file stay in use");
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}

fn load(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, ClientAuthorityError> {
    let mut roots = RootCertStore::empty();
    trusted_file::check(path)?;
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| ClientAuthorityError::Root { path: path.to_owned(), source })?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(roots.into(), ring::default_provider().into());
    let verifier = builder.build();
    verifier
        .map(|it| it as Arc<dyn ClientCertVerifier>)
        .map_err(|source| ClientAuthorityError::Verifier { path: path.to_owned(), source })
}

/// Requests the certificate of a client in the handshake, and accepts every certificate. A client whose certificate is not valid may have a valid token,
/// and gets an answer with status 401 otherwise. The client proves in the handshake that it has the key of its certificate.
pub(super) struct AnyClientVerifier(WebPkiSupportedAlgorithms);

impl AnyClientVerifier {
    pub(super) fn new() -> Self {
        AnyClientVerifier(ring::default_provider().signature_verification_algorithms)
    }
}

impl fmt::Debug for AnyClientVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyClientVerifier")
    }
}

impl ClientCertVerifier for AnyClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _own: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_authority_that_other_users_can_change_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        fs::write(&path, params.self_signed(&key).unwrap().pem()).unwrap();
        let opened = |mode| {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            ClientAuthority::open(&path).map(drop)
        };
        assert!(matches!(opened(0o646), Err(ClientAuthorityError::Untrusted(refused)) if refused.path == path));
        opened(0o644).unwrap();
    }
}
