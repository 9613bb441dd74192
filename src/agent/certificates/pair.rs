//! A certificate with its chain and its private key.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

impl Validity {
    /// Whether the certificate has expired.
    pub(crate) fn has_ended(self, now: Timestamp) -> bool {
        now >= self.not_after
    }
}

/// A certificate with its chain and its private key.
#[derive(Clone)]
pub(crate) struct CertificatePair {
    pub(crate) validity: Validity,
    pub(crate) certified: Arc<CertifiedKey>,
}

impl fmt::Debug for CertificatePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificatePair").field("validity", &self.validity).finish_non_exhaustive()
    }
}

/// Why a certificate and a key cannot be used together.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PairError {
    #[error("no certificate in PEM is present")]
    NoCertificate,
    #[error("no private key in PEM is present")]
    NoKey(#[source] pem::Error),
    #[error("the certificate is damaged: {0}")]
    Damaged(String),
    #[error("the private key is not the key of the certificate")]
    Mismatch(#[source] rustls::Error),
}

impl CertificatePair {
    /// Reads a certificate with its chain, and a private key. Both texts are PEM and may be the same text.
    ///
    /// # Errors
    /// [`PairError`] if the certificate or the key is missing or damaged, or if the key is not the key of the certificate.
    pub(crate) fn parse(certificates: &str, key: &str) -> Result<Self, PairError> {
        let chain = CertificateDer::pem_slice_iter(certificates.as_bytes()).collect::<Result<Vec<_>, _>>();
        let chain = chain.map_err(|_| PairError::NoCertificate)?;
        let validity = validity(chain.first().ok_or(PairError::NoCertificate)?)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(PairError::NoKey)?;
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(PairError::Mismatch)?;
        Ok(CertificatePair { validity, certified: Arc::new(certified) })
    }

    /// The common name of the certificate: the user, for a client certificate.
    pub(crate) fn common_name(&self) -> Option<String> {
        let (_, parsed) = X509Certificate::from_der(self.certified.cert.first()?).ok()?;
        parsed.subject().iter_common_name().next()?.as_str().ok().map(str::to_owned)
    }

    /// The names and addresses of the certificate, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let Some(Ok((_, parsed))) = self.certified.cert.first().map(|own| X509Certificate::from_der(own)) else {
            return Vec::new();
        };
        let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };
        let mut names: Vec<String> = names.value.general_names.iter().filter_map(name_text).collect();
        names.sort_unstable();
        names
    }
}

fn name_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| std::net::Ipv4Addr::from(bytes).to_string()),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| std::net::Ipv6Addr::from(bytes).to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// The period in which the first certificate of a text in PEM is valid. `None` if the text has no certificate.
pub(super) fn validity_of(pem: &str) -> Option<Validity> {
    validity(&CertificateDer::from_pem_slice(pem.as_bytes()).ok()?).ok()
}

/// The period in which a certificate is valid.
fn validity(certificate: &CertificateDer<'_>) -> Result<Validity, PairError> {
    let damaged = |error: &dyn fmt::Display| PairError::Damaged(error.to_string());
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|error| damaged(&error))?;
    let time = |seconds: i64| Timestamp::from_second(seconds).map_err(|error| damaged(&error));
    Ok(Validity {
        not_before: time(parsed.validity().not_before.timestamp())?,
        not_after: time(parsed.validity().not_after.timestamp())?,
    })
}
