//! The certificate of a TLS listener.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::private_file::{PrivateFileError, read_private};
use podwright_model::text::reason;

/// The files of a certificate and its private key, in PEM.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate and its chain, in PEM.
    pub certificate: PathBuf,
    /// The private key, in PEM.
    pub key: PathBuf,
}

/// Why a certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of the certificate cannot be read.
    #[error("cannot read the certificate {path} ({why})", path = .path.display(), why = reason(.error))]
    ReadCertificate {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        error: io::Error,
    },
    /// The file has no certificate.
    #[error("{path} holds no certificate in PEM: name a file with the certificate and its chain", path = .0.display())]
    NoCertificate(PathBuf),
    /// The file of the key cannot be read, or other users can read it.
    #[error("cannot read the private key")]
    ReadKey(#[from] PrivateFileError),
    /// The file has no key.
    #[error("{path} holds no private key in PEM: name the key of the certificate", path = .path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
        /// Why it has no key.
        source: pem::Error,
    },
    /// The certificate and the key do not belong together.
    #[error("the certificate {certificate} and the key {key} cannot be used together: name the key of this certificate",
        certificate = .files.certificate.display(), key = .files.key.display())]
    Unusable {
        /// The files.
        files: TlsFiles,
        /// Why they cannot be used.
        source: rustls::Error,
    },
}

impl TlsFiles {
    /// Reads the files. Blocking.
    ///
    /// # Errors
    /// [`TlsError`] if a file cannot be read, if other users can read the key, or if the two do not fit together.
    pub fn load(&self) -> Result<TlsAcceptor, TlsError> {
        let certificates = certificates(&self.certificate)?;
        let key = read_private(&self.key)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|source| TlsError::NoKey { path: self.key.clone(), source })?;
        let unusable = |source| TlsError::Unusable { files: self.clone(), source };
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .map_err(unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// The certificates of a PEM file, at least one. Blocking.
///
/// # Errors
/// [`TlsError`] if the file cannot be read or holds no certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = |error| TlsError::ReadCertificate { path: path.to_owned(), error };
    let text = std::fs::read(path).map_err(read)?;
    match CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) | Err(_) => Err(TlsError::NoCertificate(path.to_owned())),
    }
}
