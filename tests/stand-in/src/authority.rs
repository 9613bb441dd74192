//! The certificate authority of the cluster. It signs the certificate of the server, client certificates and signing
//! requests.

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::access::User;
use crate::signing::SigningRequest;

/// The names of the server in its certificate.
const SERVER_NAMES: &[&str] =
    &["localhost", "127.0.0.1", "::1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];

/// The default lifetime of a certificate whose request names no shorter one. Source: the flag `--cluster-signing-duration` of
/// kube-controller-manager.
pub(crate) const LONGEST_LIFE: Duration = Duration::from_secs(365 * 86_400);

/// A certificate with a shorter lifetime is valid for the whole lifetime after its signature. Source: the signer of
/// kube-controller-manager.
const SHORT_LIFE: Duration = Duration::from_secs(8 * 3600);

/// How long before its signature a certificate is valid, so that clocks may differ. Source: the signer of
/// kube-controller-manager.
const BACKDATE: Duration = Duration::from_secs(300);

/// A client certificate with its private key, in PEM.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCertificate {
    /// The certificate.
    pub certificate: String,
    /// The private key in PKCS #8.
    pub key: String,
}

impl std::fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCertificate").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

/// The authority. Its own certificate is valid at any time.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = params("kubernetes", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, key()).expect("the parameters of the authority are constant");
        Self { issuer }
    }

    /// The certificate of the authority in PEM.
    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.issuer.der().clone()
    }

    /// The certificate of the server, with its key.
    pub(crate) fn server_certificate(&self) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let names: Vec<String> = SERVER_NAMES.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("the names of the server are constant");
        params.distinguished_name = name("kube-apiserver", None);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = key();
        let certificate = params.signed_by(&key, &self.issuer).expect("the parameters of the server are constant");
        (certificate.der().clone(), PrivatePkcs8KeyDer::from(key.serialize_der()).into())
    }

    /// A client certificate of a user: its name is the common name, and its group the organization.
    ///
    /// # Panics
    ///
    /// If the user has more than one group besides `system:authenticated`: such a user needs a token.
    pub(crate) fn client_certificate(&self, user: &User, now: jiff::Timestamp) -> ClientCertificate {
        let groups: Vec<&str> =
            user.groups.iter().map(String::as_str).filter(|group| *group != "system:authenticated").collect();
        assert!(groups.len() < 2, "a client certificate has one group, not {groups:?}: use a token for this user");
        let mut params = params(&user.name, groups.first().copied());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let start = user.issued.map_or(since_epoch(now).saturating_sub(BACKDATE), since_epoch);
        let end = user.expires.map_or(since_epoch(now) + LONGEST_LIFE, since_epoch);
        set_life(&mut params, start.min(end), end);
        let key = key();
        let certificate = params.signed_by(&key, &self.issuer).expect("a name and a group are valid parameters");
        ClientCertificate { certificate: certificate.pem(), key: key.serialize_pem() }
    }

    /// Signs a request. The certificate is valid for `life`.
    ///
    /// # Errors
    ///
    /// If the names in the request cannot be in a certificate.
    pub(crate) fn sign(
        &self,
        request: &SigningRequest,
        usages: &[&str],
        life: Duration,
        now: jiff::Timestamp,
    ) -> Result<String, String> {
        let mut signed = request.params.clone();
        let params = &mut signed.params;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = usages.iter().filter_map(|usage| key_usage(usage)).collect();
        params.extended_key_usages = usages.iter().filter_map(|usage| extended_key_usage(usage)).collect();
        let start = since_epoch(now).saturating_sub(BACKDATE);
        let counts_from = if life < SHORT_LIFE { since_epoch(now) } else { start };
        set_life(params, start, counts_from + life);
        signed.signed_by(&self.issuer).map(|certificate| certificate.pem()).map_err(|error| error.to_string())
    }
}

fn key_usage(usage: &str) -> Option<KeyUsagePurpose> {
    Some(match usage {
        "digital signature" => KeyUsagePurpose::DigitalSignature,
        "key encipherment" => KeyUsagePurpose::KeyEncipherment,
        _ => return None,
    })
}

fn extended_key_usage(usage: &str) -> Option<ExtendedKeyUsagePurpose> {
    Some(match usage {
        "server auth" => ExtendedKeyUsagePurpose::ServerAuth,
        "client auth" => ExtendedKeyUsagePurpose::ClientAuth,
        _ => return None,
    })
}

fn key() -> KeyPair {
    KeyPair::generate().expect("the operating system has random numbers")
}

fn name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}

fn params(common_name: &str, organization: Option<&str>) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name(common_name, organization);
    params
}

fn since_epoch(time: jiff::Timestamp) -> Duration {
    Duration::from_secs(u64::try_from(time.as_second()).unwrap_or(0))
}

fn set_life(params: &mut CertificateParams, start: Duration, end: Duration) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    (params.not_before, params.not_after) = (epoch + start, epoch + end);
}
