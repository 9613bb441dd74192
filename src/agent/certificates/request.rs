//! Certificate signing requests: their content, and the meaning of their status.

use std::fmt;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use ring::digest::{SHA256, digest};

/// The signer of client certificates for nodes (`certificates.k8s.io/v1`, `KubeAPIServerClientKubeletSignerName`).
const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of serving certificates for nodes (`certificates.k8s.io/v1`, `KubeletServingSignerName`).
const SERVING: &str = "kubernetes.io/kubelet-serving";
/// The group of all nodes.
const NODES: &str = "system:nodes";
/// The first line of a kept request starts with this text.
const HEAD: &str = "request of ";
const KEY: &str = "-----BEGIN PRIVATE KEY";
const REQUEST: &str = "-----BEGIN CERTIFICATE REQUEST";

/// The content of a requested certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    signer: &'static str,
    /// The purpose of the certificate, one of the usages of the request. Keys other than RSA are not used for key encipherment.
    purpose: &'static str,
    pub(super) common_name: String,
    /// The names and addresses of the certificate, sorted.
    pub(super) names: Vec<String>,
}

impl Template {
    /// A client certificate, which the node shows to the API server.
    pub(super) fn client(node: &str) -> Self {
        Template { signer: CLIENT, purpose: "client auth", common_name: user(node), names: Vec::new() }
    }

    /// A serving certificate, which the node shows to the clients of its API, with these sorted names and addresses.
    pub(super) fn serving(node: &str, names: Vec<String>) -> Self {
        Template { signer: SERVING, purpose: "server auth", common_name: user(node), names }
    }

    /// Makes a key and a signed request.
    ///
    /// # Errors
    /// An error if a name cannot be in a certificate.
    pub(super) fn request(&self) -> Result<Pending, rcgen::Error> {
        let mut params = CertificateParams::new(self.names.clone())?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, NODES);
        params.distinguished_name.push(DnType::CommonName, self.common_name.clone());
        let key = KeyPair::generate()?;
        let request = params.serialize_request(&key)?.pem()?;
        Ok(Pending { purpose: self.to_string(), key: key.serialize_pem(), request })
    }

    /// The object of a request.
    pub(super) fn object(&self, pending: &Pending) -> CertificateSigningRequest {
        CertificateSigningRequest {
            metadata: ObjectMeta { name: Some(pending.name()), ..ObjectMeta::default() },
            spec: CertificateSigningRequestSpec {
                request: ByteString(pending.request.clone().into_bytes()),
                signer_name: self.signer.to_owned(),
                usages: Some(vec!["digital signature".to_owned(), self.purpose.to_owned()]),
                ..CertificateSigningRequestSpec::default()
            },
            status: None,
        }
    }
}

/// The user of a node.
fn user(node: &str) -> String {
    format!("system:node:{node}")
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {} for {}", self.common_name, self.signer, self.names.join(" "))
    }
}

/// A request that was made, with its key. It is kept on disk until the certificate is issued.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Pending {
    /// The text of the template. A request for another template is not continued.
    purpose: String,
    pub(super) key: String,
    request: String,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("purpose", &self.purpose).finish_non_exhaustive()
    }
}

impl Pending {
    /// The name of the object. An agent that restarts finds the object of its request again.
    pub(super) fn name(&self) -> String {
        let digest = digest(&SHA256, self.request.as_bytes());
        let hex: String = digest.as_ref().iter().take(20).map(|byte| format!("{byte:02x}")).collect();
        format!("node-csr-{hex}")
    }

    pub(super) fn is_for(&self, template: &Template) -> bool {
        self.purpose == template.to_string()
    }

    /// The text of the file that keeps the request.
    pub(super) fn to_text(&self) -> String {
        format!("{HEAD}{}\n{}{}", self.purpose, self.key, self.request)
    }

    /// Reads the text of a file. `None` if the text is damaged.
    pub(super) fn from_text(text: &str) -> Option<Self> {
        let (head, rest) = text.split_once('\n')?;
        let (key, request) = rest.split_at(rest.find(REQUEST)?);
        let is_complete = key.starts_with(KEY) && request.trim_end().ends_with("-----END CERTIFICATE REQUEST-----");
        is_complete.then(|| Pending {
            purpose: head.strip_prefix(HEAD).unwrap_or_default().to_owned(),
            key: key.to_owned(),
            request: request.to_owned(),
        })
    }
}

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The request waits for its approval, or for the signer.
    Waiting,
    /// The certificate in PEM.
    Issued(String),
    /// An approver refused the request, with a message.
    Denied(String),
    /// The signer could not issue the certificate, with a message.
    Failed(String),
}

/// The state of a request. A refusal counts even if the request has a certificate (`certificates.k8s.io/v1`: a denied request is never
/// signed).
pub(super) fn outcome(request: &CertificateSigningRequest) -> Outcome {
    let Some(status) = &request.status else { return Outcome::Waiting };
    let mut is_approved = false;
    for condition in status.conditions.iter().flatten() {
        let text = || {
            let (reason, message) = (condition.reason.as_deref(), condition.message.as_deref());
            [reason, message].into_iter().flatten().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(": ")
        };
        match condition.type_.as_str() {
            "Denied" => return Outcome::Denied(text()),
            "Failed" => return Outcome::Failed(text()),
            "Approved" => is_approved = true,
            _ => {}
        }
    }
    match &status.certificate {
        Some(ByteString(pem)) if is_approved && !pem.is_empty() => {
            Outcome::Issued(String::from_utf8_lossy(pem).into_owned())
        }
        _ => Outcome::Waiting,
    }
}

/// Whether nobody will change the state of a request any more.
pub(super) fn is_decided(request: &CertificateSigningRequest) -> bool {
    outcome(request) != Outcome::Waiting
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn kept_request_is_read_back_and_serves_its_names_only() {
        let template = Template::serving("n1", vec!["192.0.2.1".to_owned()]);
        let pending = template.request().unwrap();
        let text = pending.to_text();
        assert_eq!(Pending::from_text(&text), Some(pending.clone()));
        assert!(pending.is_for(&template));
        assert!(!pending.is_for(&Template::serving("n1", vec!["192.0.2.2".to_owned()])));
        assert!(!pending.is_for(&Template::client("n1")));
        for end in [0, 10, text.len() / 2, text.len() - 10] {
            assert_eq!(Pending::from_text(&text[..end]), None, "a torn file is no request");
        }
        assert_ne!(template.request().unwrap().name(), pending.name());
    }

    #[test]
    fn objects_have_the_signers_and_usages_of_a_kubelet() {
        let (client, serving) = (Template::client("n1"), Template::serving("n1", vec!["n1".to_owned()]));
        for (template, signer, usages) in [
            (client, "kubernetes.io/kube-apiserver-client-kubelet", ["digital signature", "client auth"]),
            (serving, "kubernetes.io/kubelet-serving", ["digital signature", "server auth"]),
        ] {
            let pending = template.request().unwrap();
            let object = template.object(&pending);
            assert_eq!(object.spec.signer_name, signer);
            assert_eq!(object.spec.usages.unwrap(), usages);
            assert_eq!(object.metadata.name, Some(pending.name()));
        }
    }

    #[test]
    fn request_is_issued_denied_failed_or_waits() {
        let object = |status: &Value| {
            let pending = Template::client("n1").request().unwrap();
            let mut object = Template::client("n1").object(&pending);
            object.status = serde_json::from_value(status.clone()).unwrap();
            outcome(&object)
        };
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "R", "message": "m"});
        let pem = "UEVN";
        assert_eq!(object(&Value::Null), Outcome::Waiting);
        assert_eq!(object(&json!({"conditions": [condition("Approved")]})), Outcome::Waiting);
        assert_eq!(object(&json!({"certificate": pem})), Outcome::Waiting, "an approval is missing");
        let issued = json!({"conditions": [condition("Approved")], "certificate": pem});
        assert_eq!(object(&issued), Outcome::Issued("PEM".to_owned()));
        assert_eq!(object(&json!({"conditions": [condition("Denied")]})), Outcome::Denied("R: m".to_owned()));
        let failed = json!({"conditions": [condition("Approved"), condition("Failed")], "certificate": pem});
        assert_eq!(object(&failed), Outcome::Failed("R: m".to_owned()));
    }
}
