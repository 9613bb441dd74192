//! Certificate signing requests: their content, and the rules of the signers of a cluster. Source: the validation of
//! `certificates.k8s.io/v1` and the signers of kube-controller-manager.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateSigningRequestParams, SanType};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer, X509CertificationRequest};

use crate::refusal::FieldFault;

/// The signer of client certificates for any user.
pub(crate) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// The signer of client certificates for nodes.
pub(crate) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The signer of serving certificates for nodes.
pub(crate) const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";

/// The usages that a request may name.
const USAGES: &[&str] = &[
    "signing",
    "digital signature",
    "content commitment",
    "key encipherment",
    "key agreement",
    "data encipherment",
    "cert sign",
    "crl sign",
    "encipher only",
    "decipher only",
    "any",
    "server auth",
    "client auth",
    "code signing",
    "email protection",
    "s/mime",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "timestamping",
    "ocsp signing",
    "microsoft sgc",
    "netscape sgc",
];

/// The content of a signing request.
#[derive(Debug)]
pub(crate) struct SigningRequest {
    pub(crate) common_name: String,
    pub(crate) organizations: Vec<String>,
    pub(crate) params: CertificateSigningRequestParams,
}

impl SigningRequest {
    /// Reads `spec.request`, and verifies the signature.
    ///
    /// # Errors
    ///
    /// A text for the user if the request is not a signed request in PEM and base64.
    pub(crate) fn parse(request: &Value) -> Result<Self, String> {
        let not_a_request = || "PEM block type must be CERTIFICATE REQUEST".to_owned();
        let pem = STANDARD.decode(request.as_str().unwrap_or_default()).map_err(|error| error.to_string())?;
        let der = CertificateSigningRequestDer::from_pem_slice(&pem).map_err(|_| not_a_request())?;
        let (_, parsed) = X509CertificationRequest::from_der(&der).map_err(|error| error.to_string())?;
        let subject = &parsed.certification_request_info.subject;
        let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().unwrap_or_default().to_owned();
        Ok(Self {
            common_name: subject.iter_common_name().next().map(text).unwrap_or_default(),
            organizations: subject.iter_organization().map(text).collect(),
            params: CertificateSigningRequestParams::from_der(&der).map_err(|error| error.to_string())?,
        })
    }

    fn has(&self, is_meant: impl Fn(&SanType) -> bool) -> bool {
        self.params.params.subject_alt_names.iter().any(is_meant)
    }

    /// Whether a signer signs this request. Nobody signs requests for other signers.
    ///
    /// # Errors
    ///
    /// The message of the condition `Failed`, if the signer does not accept the request.
    pub(crate) fn check(&self, signer: &str, usages: &[&str]) -> Result<bool, String> {
        match signer {
            KUBELET_CLIENT => self.check_kubelet_client(usages),
            KUBELET_SERVING => self.check_kubelet_serving(usages),
            CLIENT => check_client_usages(usages),
            _ => return Ok(false),
        }
        .map(|()| true)
    }

    fn check_kubelet_client(&self, usages: &[&str]) -> Result<(), String> {
        self.check_organization()?;
        for (kind, is_present) in [
            ("DNS", self.has(|name| matches!(name, SanType::DnsName(_)))),
            ("Email", self.has(|name| matches!(name, SanType::Rfc822Name(_)))),
            ("IP", self.has(|name| matches!(name, SanType::IpAddress(_)))),
            ("URI", self.has(|name| matches!(name, SanType::URI(_)))),
        ] {
            if is_present {
                return Err(format!("{kind} subjectAltNames are not allowed"));
            }
        }
        self.check_common_name()?;
        check_usages(usages, "client auth")
    }

    fn check_kubelet_serving(&self, usages: &[&str]) -> Result<(), String> {
        self.check_organization()?;
        if !self.has(|name| matches!(name, SanType::DnsName(_) | SanType::IpAddress(_))) {
            return Err("DNS or IP subjectAltName is required".to_owned());
        }
        for (kind, is_present) in [
            ("Email", self.has(|name| matches!(name, SanType::Rfc822Name(_)))),
            ("URI", self.has(|name| matches!(name, SanType::URI(_)))),
        ] {
            if is_present {
                return Err(format!("{kind} subjectAltNames are not allowed"));
            }
        }
        check_usages(usages, "server auth")?;
        self.check_common_name()
    }

    fn check_organization(&self) -> Result<(), String> {
        if self.organizations == ["system:nodes"] {
            Ok(())
        } else {
            Err("subject organization is not system:nodes".to_owned())
        }
    }

    fn check_common_name(&self) -> Result<(), String> {
        if self.common_name.starts_with("system:node:") {
            Ok(())
        } else {
            Err("subject common name does not begin with system:node:".to_owned())
        }
    }
}

/// A certificate of a kubelet has exactly these usages; the second one only for RSA keys.
fn check_usages(usages: &[&str], purpose: &str) -> Result<(), String> {
    let mut required = vec!["digital signature", "key encipherment", purpose];
    required.sort_unstable();
    let mut found = usages.to_vec();
    found.sort_unstable();
    let without: Vec<&str> = required.iter().copied().filter(|usage| *usage != "key encipherment").collect();
    if found == required || found == without {
        Ok(())
    } else {
        Err(format!("usages did not match [{}]", required.join(" ")))
    }
}

fn check_client_usages(usages: &[&str]) -> Result<(), String> {
    if let Some(usage) =
        usages.iter().find(|u| !matches!(**u, "digital signature" | "key encipherment" | "client auth"))
    {
        return Err(format!("invalid usage for client certificate: {usage}"));
    }
    if usages.contains(&"client auth") {
        Ok(())
    } else {
        Err("missing required usage for client certificate: client auth".to_owned())
    }
}

/// The usages of a request.
pub(crate) fn usages(spec: &Value) -> Vec<&str> {
    spec["usages"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Whether a request has a condition of this type.
pub(crate) fn has_condition(object: &Value, kind: &str) -> bool {
    object["status"]["conditions"].as_array().into_iter().flatten().any(|condition| condition["type"] == kind)
}

/// The faults of a new request.
pub(crate) fn faults(spec: &Value) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    if let Err(why) = SigningRequest::parse(&spec["request"]) {
        faults.push(FieldFault::invalid("spec.request", &spec["request"], &why));
    }
    let usages = usages(spec);
    if usages.is_empty() {
        faults.push(FieldFault::required("spec.usages", ""));
    }
    for (at, usage) in usages.iter().enumerate() {
        let path = format!("spec.usages[{at}]");
        if !USAGES.contains(usage) {
            faults.push(FieldFault::not_supported(&path, &json!(usage), USAGES));
        }
        if usages[..at].contains(usage) {
            faults.push(FieldFault::duplicate(&path, &json!(usage)));
        }
    }
    let signer = &spec["signerName"];
    match signer.as_str().unwrap_or_default() {
        "" => faults.push(FieldFault::required("spec.signerName", "")),
        "kubernetes.io/legacy-unknown" => {
            let why = "the legacy signerName is not allowed via this API version";
            faults.push(FieldFault::invalid("spec.signerName", signer, why));
        }
        name if name.split_once('/').is_none_or(|(domain, path)| !domain.contains('.') || path.is_empty()) => {
            let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
            faults.push(FieldFault::invalid("spec.signerName", signer, why));
        }
        _ => {}
    }
    if spec["expirationSeconds"].as_i64().is_some_and(|seconds| seconds < 600) {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        faults.push(FieldFault::invalid("spec.expirationSeconds", &spec["expirationSeconds"], why));
    }
    faults
}

/// The faults of a changed request. Only the path `approval` may approve or deny, and only the path `status` may set a
/// certificate.
pub(crate) fn change_faults(subresource: &str, live: &Value, object: &Value) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    let find = |object: &Value, kind: &str| -> Vec<Value> {
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        conditions.filter(|condition| condition["type"] == kind).cloned().collect()
    };
    for kind in ["Approved", "Denied", "Failed"] {
        let (old, new) = (find(live, kind), find(object, kind));
        let verb = if new.len() < old.len() {
            "remove"
        } else if subresource == "approval" || kind == "Failed" || old == new {
            continue;
        } else if new.len() > old.len() {
            "add"
        } else {
            "modify"
        };
        let why = format!("updates may not {verb} a condition of type {kind:?}");
        faults.push(FieldFault::forbidden("status.conditions", &why));
    }
    if has_condition(object, "Approved") && has_condition(object, "Denied") {
        let at = object["status"]["conditions"].as_array().map_or(0, |conditions| conditions.len().saturating_sub(1));
        let path = format!("status.conditions[{at}].type");
        let kind = &object["status"]["conditions"][at]["type"];
        faults.push(FieldFault::invalid(&path, kind, "Approved and Denied conditions are mutually exclusive"));
    }
    let (old, new) = (&live["status"]["certificate"], &object["status"]["certificate"]);
    if old != new {
        if subresource != "status" {
            faults.push(FieldFault::forbidden("status.certificate", "updates may not set certificate content"));
        } else if !old.is_null() {
            let why = "updates may not modify existing certificate content";
            faults.push(FieldFault::forbidden("status.certificate", why));
        }
    }
    faults
}
