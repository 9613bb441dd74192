//! Certificate signing requests: validation, approval, signature, and the use of the certificate.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use podwright_stand_in::{Approval, StandIn, User};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};

use crate::http::Client;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";

/// A request in PEM and base64, and the key.
pub(crate) fn request(name: &str, group: &str, sans: &[&str]) -> (String, KeyPair) {
    let sans: Vec<String> = sans.iter().map(|san| (*san).to_owned()).collect();
    let mut params = CertificateParams::new(sans).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, group);
    let key = KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    (STANDARD.encode(pem), key)
}

fn client_request(request: &str) -> Value {
    json!({
        "metadata": {"name": "r"},
        "spec": {"request": request, "signerName": CLIENT, "usages": ["digital signature", "client auth"]},
    })
}

fn serving_request(request: &str) -> Value {
    json!({
        "metadata": {"name": "r"},
        "spec": {"request": request, "signerName": SERVING, "usages": ["digital signature", "server auth"]},
    })
}

async fn start(approval: Approval) -> StandIn {
    StandIn::builder().settings(|settings| settings.approval = approval).start().await.unwrap()
}

fn stored(server: &StandIn) -> Value {
    Value::clone(&server.get("certificatesigningrequests", "", "r").unwrap())
}

fn certificate(server: &StandIn) -> String {
    String::from_utf8(STANDARD.decode(stored(server)["status"]["certificate"].as_str().unwrap()).unwrap()).unwrap()
}

/// The type, the reason and the message of the last condition.
fn condition(server: &StandIn) -> String {
    let stored = stored(server);
    let last = stored["status"]["conditions"].as_array().and_then(|conditions| conditions.last()).cloned();
    last.map_or_else(String::new, |last| format!("{} {} {}", last["type"], last["reason"], last["message"]))
        .replace('"', "")
}

#[tokio::test]
async fn a_bootstrap_token_gets_a_client_certificate_that_the_server_accepts() {
    let server = start(Approval::KubeletClients).await;
    let client = Client::new(&server, Some(server.token(User::bootstrap("abcdef"))));
    let (request, key) = request("system:node:n1", "system:nodes", &[]);
    let made = client.post(REQUESTS, client_request(&request)).await;
    assert_eq!((made.code, &made.body["spec"]["username"]), (201, &json!("system:bootstrap:abcdef")));
    assert_eq!(made.body["status"], json!({}), "approval follows the creation");
    assert_eq!(
        condition(&server),
        "Approved AutoApproved Auto approving kubelet client certificate after SubjectAccessReview."
    );
    let mut kubeconfig: Value = serde_json::from_str(&server.kubeconfig("")).unwrap();
    kubeconfig["users"][0]["user"] = json!({
        "client-certificate-data": STANDARD.encode(certificate(&server)),
        "client-key-data": STANDARD.encode(key.serialize_pem()),
    });
    assert_eq!(crate::credentials::name(&kubeconfig.to_string()).await.as_deref(), Ok("system:node:n1"));
}

#[tokio::test]
async fn a_serving_certificate_waits_for_an_approval_as_in_a_cluster() {
    let server = start(Approval::KubeletClients).await;
    let node = Client::new(&server, Some(server.node_token("n1")));
    let (request, _) = request("system:node:n1", "system:nodes", &["n1", "10.0.0.1"]);
    assert_eq!(node.post(REQUESTS, serving_request(&request)).await.code, 201);
    assert!(stored(&server)["status"]["certificate"].is_null());
    let mut approved = stored(&server);
    approved["status"]["conditions"] = json!([{"type": "Approved", "status": "True", "reason": "Test"}]);
    let path = format!("{REQUESTS}/r/approval");
    assert_eq!(node.send("PUT", &path, "application/json", &approved).await.code, 403);
    let admin = Client::admin(&server);
    assert_eq!(admin.send("PUT", &format!("{REQUESTS}/r/status"), "application/json", &approved).await.code, 422);
    assert_eq!(admin.send("PUT", &path, "application/json", &approved).await.code, 200);
    assert!(certificate(&server).starts_with("-----BEGIN CERTIFICATE-----"));
    let none = json!({"status": {"conditions": null}});
    assert_eq!(admin.send("PATCH", &path, "application/merge-patch+json", &none).await.code, 422);
}

#[tokio::test]
async fn the_life_of_a_certificate_is_what_the_request_says() {
    use x509_parser::prelude::{FromDer, X509Certificate};
    let server = start(Approval::Kubelets).await;
    let node = Client::new(&server, Some(server.node_token("n1")));
    let (request, _) = request("system:node:n1", "system:nodes", &["n1"]);
    let mut body = serving_request(&request);
    body["spec"]["expirationSeconds"] = json!(3600);
    node.post(REQUESTS, body).await;
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate(&server).as_bytes()).unwrap();
    let (_, parsed) = X509Certificate::from_der(&pem.contents).unwrap();
    let life = parsed.validity().not_after.timestamp() - parsed.validity().not_before.timestamp();
    assert_eq!(life, 3600 + 300, "an hour after the signature, and five minutes before it");
    assert!(parsed.extended_key_usage().unwrap().unwrap().value.server_auth);
    assert!(!parsed.is_ca());
}

#[tokio::test]
async fn a_signer_refuses_an_approved_request_that_breaks_its_rules() {
    for (name, group, sans, body, message) in [
        (
            "system:node:n1",
            "others",
            &[][..],
            client_request as fn(&str) -> Value,
            "subject organization is not system:nodes",
        ),
        ("n1", "system:nodes", &[], client_request, "subject common name does not begin with system:node:"),
        ("system:node:n1", "system:nodes", &["n1"], client_request, "DNS subjectAltNames are not allowed"),
        ("system:node:n1", "system:nodes", &[], serving_request, "DNS or IP subjectAltName is required"),
    ] {
        let server = start(Approval::Kubelets).await;
        let admin = Client::admin(&server);
        admin.post(REQUESTS, body(&request(name, group, sans).0)).await;
        assert_eq!(condition(&server), "", "{message}: not approved automatically");
        let approve = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}]}});
        admin.send("PATCH", &format!("{REQUESTS}/r/approval"), "application/merge-patch+json", &approve).await;
        assert_eq!(condition(&server), format!("Failed SignerValidationFailure {message}"));
    }
}

#[tokio::test]
async fn a_new_request_is_validated() {
    let server = start(Approval::Kubelets).await;
    let admin = Client::admin(&server);
    let (valid, _) = request("system:node:n1", "system:nodes", &[]);
    for (field, value, message) in [
        ("request", json!("eA=="), "PEM block type must be CERTIFICATE REQUEST"),
        ("usages", json!([]), "spec.usages: Required value"),
        ("usages", json!(["unknown"]), "spec.usages[0]: Unsupported value: \"unknown\": supported values: "),
        ("usages", json!(["any", "any"]), "spec.usages[1]: Duplicate value: \"any\""),
        ("signerName", json!(""), "spec.signerName: Required value"),
        (
            "signerName",
            json!("kubernetes.io/legacy-unknown"),
            "the legacy signerName is not allowed via this API version",
        ),
        ("expirationSeconds", json!(599), "may not specify a duration less than 600 seconds (10 minutes)"),
    ] {
        let mut body = client_request(&valid);
        body["spec"][field] = value;
        let refused = admin.post(REQUESTS, body).await;
        let found = refused.body["message"].as_str().unwrap_or_default();
        assert!(refused.code == 422 && found.contains(message), "{message}: {} {found}", refused.code);
    }
}

#[tokio::test]
async fn a_node_requests_certificates_for_itself_only() {
    let server = start(Approval::Kubelets).await;
    let node = Client::new(&server, Some(server.node_token("n1")));
    let refused = node.post(REQUESTS, client_request(&request("system:node:n2", "system:nodes", &[]).0)).await;
    assert_eq!(
        refused.body["message"],
        "certificatesigningrequests.certificates.k8s.io \"r\" is forbidden: can only create a node CSR with \
         CN=system:node:n1"
    );
    let own = client_request(&request("system:node:n1", "system:nodes", &[]).0);
    assert_eq!(node.post(REQUESTS, own).await.code, 201);
    assert!(condition(&server).contains("Auto approving self kubelet client certificate"));
}
