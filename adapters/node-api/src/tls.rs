//! The versions and the cipher suites of TLS that the node API offers, with the names that Go gives them. Pure.

use std::fmt;
use std::str::FromStr;

use rustls::crypto::{CryptoProvider, ring};
use rustls::version::{TLS12, TLS13};
use rustls::{SupportedCipherSuite, SupportedProtocolVersion};

/// The versions from TLS 1.2.
static FROM_12: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
/// The versions from TLS 1.3.
static FROM_13: &[&SupportedProtocolVersion] = &[&TLS13];

/// The versions and the cipher suites of TLS that the node API offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TlsPolicy {
    /// The lowest version (the kubelet's `tlsMinVersion`).
    pub min_version: TlsVersion,
    /// The cipher suites (the kubelet's `tlsCipherSuites`). Empty for all. If it has none of TLS 1.3, all suites of TLS 1.3 are
    /// offered, as by a kubelet: Go cannot choose them.
    pub cipher_suites: Vec<TlsCipherSuite>,
}

impl TlsPolicy {
    /// The versions that are offered.
    pub(crate) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        match self.min_version {
            TlsVersion::V12 => FROM_12,
            TlsVersion::V13 => FROM_13,
        }
    }

    /// The cryptography with the suites that are offered, in the order of their preference.
    pub(crate) fn provider(&self) -> CryptoProvider {
        let mut provider = ring::default_provider();
        if self.cipher_suites.is_empty() {
            return provider;
        }
        let chooses_13 = self.cipher_suites.iter().any(|TlsCipherSuite(suite)| suite.tls13().is_some());
        provider.cipher_suites.retain(|suite| {
            self.cipher_suites.contains(&TlsCipherSuite(*suite)) || (suite.tls13().is_some() && !chooses_13)
        });
        provider
    }
}

/// A version of TLS, such as `VersionTLS12`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    V12,
    /// TLS 1.3.
    V13,
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TlsVersion::V12 => "VersionTLS12",
            TlsVersion::V13 => "VersionTLS13",
        })
    }
}

impl FromStr for TlsVersion {
    type Err = ParseTlsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "VersionTLS12" => Ok(TlsVersion::V12),
            "VersionTLS13" => Ok(TlsVersion::V13),
            "VersionTLS10" | "VersionTLS11" => Err(ParseTlsError::OldVersion),
            _ => Err(ParseTlsError::Version),
        }
    }
}

/// A cipher suite of TLS, such as `TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TlsCipherSuite(SupportedCipherSuite);

impl TlsCipherSuite {
    /// The suites that can be offered, in the order of their preference.
    fn all() -> impl Iterator<Item = Self> {
        ring::ALL_CIPHER_SUITES.iter().copied().map(TlsCipherSuite)
    }

    /// Go has one prefix for the suites of all versions.
    fn name(self) -> String {
        self.0.suite().as_str().unwrap_or_default().replacen("TLS13_", "TLS_", 1)
    }
}

impl fmt::Display for TlsCipherSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl FromStr for TlsCipherSuite {
    type Err = ParseTlsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Go has an earlier name for the suites with ChaCha20.
        let name = if text.ends_with("_CHACHA20_POLY1305") { format!("{text}_SHA256") } else { text.to_owned() };
        TlsCipherSuite::all().find(|suite| suite.name() == name).ok_or(ParseTlsError::CipherSuite)
    }
}

/// A text names no version or no cipher suite of TLS that the node API can offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseTlsError {
    /// The version is older than those that can be offered.
    #[error("the node API does not offer TLS 1.0 and 1.1: use VersionTLS12 or VersionTLS13")]
    OldVersion,
    /// The text is no version.
    #[error("not a version of TLS: use VersionTLS12 or VersionTLS13")]
    Version,
    /// The text is no cipher suite, or one that cannot be offered.
    #[error("not a cipher suite of the node API: use {}", TlsCipherSuite::all().map(|suite| suite.to_string()).collect::<Vec<_>>().join(", "))]
    CipherSuite,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustls::pki_types::PrivateKeyDer;
    use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, ServerConfig, ServerConnection};

    use super::*;

    fn policy(min_version: &str, suites: &[&str]) -> TlsPolicy {
        TlsPolicy {
            min_version: min_version.parse().unwrap(),
            cipher_suites: suites.iter().map(|suite| suite.parse().unwrap()).collect(),
        }
    }

    /// The version and the suite of a connection, for a client with these versions. The error is that of the server or the client.
    fn negotiated(
        policy: &TlsPolicy,
        client: &[&'static SupportedProtocolVersion],
    ) -> Result<(ProtocolVersion, String), rustls::Error> {
        let made = rcgen::generate_simple_self_signed(vec!["node".to_owned()]).unwrap();
        let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(client)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = ServerConfig::builder_with_provider(Arc::new(policy.provider()))
            .with_protocol_versions(policy.versions())?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivateKeyDer::try_from(key).unwrap())
            .unwrap();
        let mut client = ClientConnection::new(Arc::new(client), "node".try_into().unwrap()).unwrap();
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
            while client.wants_write() {
                client.write_tls(&mut to_server).unwrap();
            }
            let mut bytes = to_server.as_slice();
            while !bytes.is_empty() {
                server.read_tls(&mut bytes).unwrap();
                server.process_new_packets()?;
            }
            while server.wants_write() {
                server.write_tls(&mut to_client).unwrap();
            }
            let mut bytes = to_client.as_slice();
            while !bytes.is_empty() {
                client.read_tls(&mut bytes).unwrap();
                client.process_new_packets()?;
            }
        }
        let suite = TlsCipherSuite(server.negotiated_cipher_suite().unwrap());
        Ok((server.protocol_version().unwrap(), suite.to_string()))
    }

    #[test]
    fn the_lowest_version_refuses_older_clients() {
        let version = |min_version: &str, client: &[&'static SupportedProtocolVersion]| {
            negotiated(&policy(min_version, &[]), client).map(|(version, _)| version)
        };
        assert_eq!(version("VersionTLS12", &[&TLS12]).unwrap(), ProtocolVersion::TLSv1_2);
        assert_eq!(version("VersionTLS12", &[&TLS12, &TLS13]).unwrap(), ProtocolVersion::TLSv1_3);
        assert_eq!(version("VersionTLS13", &[&TLS12, &TLS13]).unwrap(), ProtocolVersion::TLSv1_3);
        version("VersionTLS13", &[&TLS12]).unwrap_err();
    }

    #[test]
    fn only_suites_that_are_named_are_offered() {
        let one = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
        assert_eq!(negotiated(&policy("VersionTLS12", &[one]), &[&TLS12]).unwrap().1, one);
        // Go cannot choose the suites of TLS 1.3, so a list without any of them does not turn TLS 1.3 off.
        let (version, _) = negotiated(&policy("VersionTLS12", &[one]), &[&TLS13]).unwrap();
        assert_eq!(version, ProtocolVersion::TLSv1_3);
        let of_13 = "TLS_CHACHA20_POLY1305_SHA256";
        assert_eq!(negotiated(&policy("VersionTLS12", &[of_13]), &[&TLS13]).unwrap().1, of_13);
        negotiated(&policy("VersionTLS12", &[of_13]), &[&TLS12]).unwrap_err();
        assert_eq!(policy("VersionTLS12", &[]).provider().cipher_suites, ring::default_provider().cipher_suites);
    }

    #[test]
    fn versions_and_suites_have_the_names_of_go() {
        for name in ["VersionTLS12", "VersionTLS13"] {
            assert_eq!(name.parse::<TlsVersion>().unwrap().to_string(), name);
        }
        for name in [
            "TLS_AES_128_GCM_SHA256",
            "TLS_AES_256_GCM_SHA384",
            "TLS_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        ] {
            assert_eq!(name.parse::<TlsCipherSuite>().unwrap().to_string(), name);
        }
        let earlier: TlsCipherSuite = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305".parse().unwrap();
        assert_eq!(earlier.to_string(), "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256");
        for other in ["TLS_RSA_WITH_AES_128_GCM_SHA256", "TLS_AES_128_GCM", "TLS13_AES_128_GCM_SHA256", ""] {
            let error = other.parse::<TlsCipherSuite>().unwrap_err().to_string();
            assert!(error.contains("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, "), "{other}: {error}");
        }
        assert_eq!("VersionTLS11".parse::<TlsVersion>(), Err(ParseTlsError::OldVersion));
        assert_eq!("1.2".parse::<TlsVersion>(), Err(ParseTlsError::Version));
    }
}
