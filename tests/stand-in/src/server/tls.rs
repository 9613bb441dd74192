//! TLS of the listener, and the user of a client certificate.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ring::digest;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring as provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::Clock;
use crate::access::User;
use crate::authority::Authority;

/// The user that the certificate of a client names.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    /// The client sent no certificate.
    Unknown,
    User(User),
    /// The authority did not sign the certificate, or the certificate has expired.
    Refused,
}

/// The TLS settings of a server.
pub(super) struct Tls {
    acceptor: TlsAcceptor,
    verifier: Arc<dyn ClientCertVerifier>,
    clock: Clock,
}

impl Tls {
    pub(super) fn new(authority: &Authority, clock: Clock) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der()).expect("the certificate of the authority is valid");
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider::default_provider().into())
            .allow_unauthenticated()
            .build()
            .expect("the authority is a root");
        let (certificate, key) = authority.server_certificate();
        let mut config = ServerConfig::builder_with_provider(provider::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("ring has the cipher suites of the default versions")
            .with_client_cert_verifier(Arc::new(AnyClientVerifier(verifier.clone())))
            .with_single_cert(vec![certificate], key)
            .expect("the key is that of the certificate");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { acceptor: TlsAcceptor::from(Arc::new(config)), verifier, clock }
    }

    /// Whether a client starts a TLS handshake. Otherwise it sends plain HTTP.
    pub(super) async fn is_started(stream: &TcpStream) -> io::Result<bool> {
        /// The first byte of a TLS record with a handshake message.
        const HANDSHAKE: u8 = 0x16;
        let mut first = [0];
        Ok(stream.peek(&mut first).await? == 1 && first[0] == HANDSHAKE)
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Peer)> {
        let stream = self.acceptor.accept(stream).await?;
        let peer = self.peer(stream.get_ref().1.peer_certificates().unwrap_or_default());
        Ok((stream, peer))
    }

    fn peer(&self, certificates: &[CertificateDer<'_>]) -> Peer {
        let Some((own, intermediates)) = certificates.split_first() else { return Peer::Unknown };
        let seconds = u64::try_from((self.clock)().as_second()).unwrap_or(0);
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        match self.verifier.verify_client_cert(own, intermediates, now) {
            Ok(_) => user(own).map_or(Peer::Refused, Peer::User),
            Err(_) => Peer::Refused,
        }
    }
}

/// The user of a certificate: the common name, and the organizations as groups. Source: the x509 authenticator of
/// kube-apiserver.
fn user(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok().filter(|name| !name.is_empty())?;
    let groups: Vec<&str> = parsed.subject().iter_organization().filter_map(|group| group.as_str().ok()).collect();
    let digest = digest::digest(&digest::SHA256, certificate);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut user = User::new(name, &groups);
    user.extra = json!({"authentication.kubernetes.io/credential-id": [format!("X509SHA256={hex}")]});
    Some(user)
}

/// Accepts any certificate in the handshake. A real server answers a request with 401 if it cannot verify the
/// certificate of the client; it does not abort the handshake.
struct AnyClientVerifier(Arc<dyn ClientCertVerifier>);

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
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
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
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
