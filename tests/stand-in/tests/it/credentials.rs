//! TLS, client certificates, bearer tokens and kubeconfig files.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use podwright_stand_in::{Credential, StandIn, User};
use serde_json::json;

/// The review of the client of a kubeconfig file, or the code of the refusal.
async fn review(kubeconfig: &str) -> Result<SelfSubjectReview, u16> {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let api: Api<SelfSubjectReview> = Api::all(Client::try_from(config).unwrap());
    api.create(&Default::default(), &SelfSubjectReview::default()).await.map_err(|error| match error {
        kube::Error::Api(status) => status.code,
        other => panic!("not an answer of the server: {other}"),
    })
}

pub(crate) async fn name(kubeconfig: &str) -> Result<String, u16> {
    review(kubeconfig).await.map(|found| found.status.unwrap().user_info.unwrap().username.unwrap())
}

#[tokio::test]
async fn a_client_certificate_names_the_user_and_the_group() {
    let server = StandIn::start().await.unwrap();
    let found = review(&server.kubeconfig(&User::node("n1"))).await.unwrap();
    let user = found.status.unwrap().user_info.unwrap();
    assert_eq!(user.username.as_deref(), Some("system:node:n1"));
    assert_eq!(user.groups.unwrap(), ["system:nodes", "system:authenticated"]);
    let credential = &user.extra.unwrap()["authentication.kubernetes.io/credential-id"][0];
    assert!(credential.starts_with("X509SHA256="), "{credential}");
}

#[tokio::test]
async fn tokens_are_accepted_over_tls_and_missing_credentials_are_refused() {
    let server = StandIn::start().await.unwrap();
    assert_eq!(name(&server.kubeconfig(&server.admin_token())).await.as_deref(), Ok("kubernetes-admin"));
    assert_eq!(name(&server.kubeconfig("unknown")).await, Err(401));
    assert_eq!(name(&server.kubeconfig(Credential::Nothing)).await, Err(401));
    let server = StandIn::builder().anonymous(User::new("system:anonymous", &[])).start().await.unwrap();
    assert_eq!(name(&server.kubeconfig(Credential::Nothing)).await.as_deref(), Ok("system:anonymous"));
}

#[tokio::test]
async fn expired_certificates_and_those_of_other_authorities_are_answered_with_401() {
    let server = StandIn::start().await.unwrap();
    let mut user = User::node("n1");
    user.expires = Some(jiff::Timestamp::now() - jiff::SignedDuration::from_secs(1));
    assert_eq!(name(&server.kubeconfig(&user)).await, Err(401));
    let other = StandIn::start().await.unwrap().client_certificate(&User::admin());
    let mut kubeconfig: serde_json::Value = serde_json::from_str(&server.kubeconfig(&User::admin())).unwrap();
    let data = |text: &str| {
        use base64::Engine;
        json!(base64::engine::general_purpose::STANDARD.encode(text))
    };
    kubeconfig["users"][0]["user"] =
        json!({"client-certificate-data": data(&other.certificate), "client-key-data": data(&other.key)});
    assert_eq!(name(&kubeconfig.to_string()).await, Err(401));
}

#[tokio::test]
async fn only_the_owner_can_read_a_written_kubeconfig() {
    use std::os::unix::fs::PermissionsExt;
    let server = StandIn::start().await.unwrap();
    let path = std::env::temp_dir().join(format!("stand-in-{}.kubeconfig", std::process::id()));
    server.write_kubeconfig(&path, &User::admin()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(name(&text).await.as_deref(), Ok("kubernetes-admin"));
}

#[tokio::test]
async fn every_namespace_has_the_certificate_of_the_authority() {
    let server = StandIn::start().await.unwrap();
    server.create_namespace("n");
    for namespace in ["default", "n"] {
        let map = server.get("configmaps", namespace, "kube-root-ca.crt").unwrap();
        assert_eq!(map["data"]["ca.crt"], json!(server.ca_certificate()));
        assert!(server.get("serviceaccounts", namespace, "default").is_some());
    }
}
