//! The records of pulls in the form of the kubelet (`kubelet.config.k8s.io`), so that an agent reads what a kubelet recorded, and a
//! kubelet what an agent recorded.
//!
//! Earlier agents wrote records of images in a form of their own. These are read too, and the next change of a record writes it in the form
//! of the kubelet: a container that must not pull its image keeps the image after an update of the agent.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{AccountIdentity, Holders, PulledImage, SecretIdentity};

const GROUP: &str = "kubelet.config.k8s.io/";
/// The version that every kubelet with such records reads. The versions have the same fields.
const VERSION: &str = "kubelet.config.k8s.io/v1alpha1";

/// A file that is not the record of a kubelet or an agent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidRecord {
    #[error("not a record of this kind in JSON")]
    Json(#[from] serde_json::Error),
    #[error("its kind is {kind:?} of {api_version:?}, and not {expected}")]
    Kind { kind: String, api_version: String, expected: &'static str },
}

/// A pull that runs, or that had no result when its agent ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PullIntentRecord {
    /// The name of the image as a container has it, with its tag.
    pub(crate) image: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    kind: String,
    api_version: String,
}

impl TypeMeta {
    fn of(kind: &str) -> Self {
        TypeMeta { kind: kind.to_owned(), api_version: VERSION.to_owned() }
    }

    fn check(self, expected: &'static str) -> Result<(), InvalidRecord> {
        let TypeMeta { kind, api_version } = self;
        if kind == expected && api_version.starts_with(GROUP) {
            return Ok(());
        }
        Err(InvalidRecord::Kind { kind, api_version, expected })
    }
}

#[derive(Serialize, Deserialize)]
struct IntentFile {
    #[serde(flatten)]
    meta: TypeMeta,
    image: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PulledFile {
    #[serde(flatten)]
    meta: TypeMeta,
    last_updated_time: String,
    image_ref: String,
    #[serde(default)]
    credential_mapping: Option<BTreeMap<String, Credentials>>,
}

/// The record of an image as earlier agents wrote it.
#[derive(Deserialize)]
struct EarlierFile {
    image: String,
    repositories: BTreeMap<String, EarlierAccess>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum EarlierAccess {
    Node,
    Secrets(Vec<SecretIdentity>),
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Credentials {
    #[serde(skip_serializing_if = "Option::is_none")]
    kubernetes_secrets: Option<Vec<SecretIdentity>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kubernetes_service_accounts: Option<Vec<AccountIdentity>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_pods_accessible: Option<bool>,
}

impl PullIntentRecord {
    const KIND: &'static str = "ImagePullIntent";

    /// The bytes of the file.
    ///
    /// # Errors
    /// The error of the encoder.
    pub(crate) fn encode(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&IntentFile { meta: TypeMeta::of(Self::KIND), image: self.image.clone() })
    }

    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// [`InvalidRecord`]
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, InvalidRecord> {
        let file: IntentFile = serde_json::from_slice(bytes)?;
        file.meta.check(Self::KIND)?;
        Ok(PullIntentRecord { image: file.image })
    }
}

impl PulledImage {
    const KIND: &'static str = "ImagePulledRecord";

    /// The bytes of the file, with the time at which it is written.
    ///
    /// # Errors
    /// The error of the encoder.
    pub(crate) fn encode(&self, now: Timestamp) -> serde_json::Result<Vec<u8>> {
        let mapping =
            self.repositories.iter().map(|(repository, holders)| (repository.clone(), Credentials::from(holders)));
        serde_json::to_vec(&PulledFile {
            meta: TypeMeta::of(Self::KIND),
            last_updated_time: now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            image_ref: self.image.clone(),
            credential_mapping: Some(mapping.collect()),
        })
    }

    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// [`InvalidRecord`]
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, InvalidRecord> {
        if let Ok(EarlierFile { image, repositories }) = serde_json::from_slice(bytes) {
            let repositories = repositories.into_iter().map(|(repository, access)| (repository, Holders::from(access)));
            return Ok(PulledImage { image, repositories: repositories.collect() });
        }
        let file: PulledFile = serde_json::from_slice(bytes)?;
        file.meta.check(Self::KIND)?;
        let mapping = file.credential_mapping.unwrap_or_default().into_iter();
        let repositories = mapping.map(|(repository, credentials)| (repository, Holders::from(credentials))).collect();
        Ok(PulledImage { image: file.image_ref, repositories })
    }
}

impl From<EarlierAccess> for Holders {
    fn from(access: EarlierAccess) -> Self {
        match access {
            EarlierAccess::Node => Holders::Node,
            EarlierAccess::Secrets(secrets) => Holders::Some { secrets, accounts: vec![] },
        }
    }
}

impl From<&Holders> for Credentials {
    fn from(holders: &Holders) -> Self {
        fn some<T: Clone>(items: &[T]) -> Option<Vec<T>> {
            (!items.is_empty()).then(|| items.to_vec())
        }
        match holders {
            Holders::Node => Credentials { node_pods_accessible: Some(true), ..Credentials::default() },
            Holders::Some { secrets, accounts } => Credentials {
                kubernetes_secrets: some(secrets),
                kubernetes_service_accounts: some(accounts),
                node_pods_accessible: None,
            },
        }
    }
}

impl From<Credentials> for Holders {
    fn from(credentials: Credentials) -> Self {
        if credentials.node_pods_accessible == Some(true) {
            return Holders::Node;
        }
        Holders::Some {
            secrets: credentials.kubernetes_secrets.unwrap_or_default(),
            accounts: credentials.kubernetes_service_accounts.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{Access, AccessDecision, Presented};
    use super::*;

    fn file(version: &str, mapping: &Value) -> Vec<u8> {
        let file = json!({
            "kind": "ImagePulledRecord", "apiVersion": format!("kubelet.config.k8s.io/{version}"),
            "lastUpdatedTime": "2026-11-02T03:04:05Z", "imageRef": "sha256:1", "credentialMapping": mapping,
        });
        file.to_string().into_bytes()
    }

    #[test]
    fn records_have_the_form_of_the_kubelet() {
        let secret = json!({"uid": "u", "namespace": "ns", "name": "s", "credentialHash": "h"});
        let account = json!({"uid": "v", "namespace": "ns", "name": "a"});
        let mapping = json!({
            "r.example/a": {"kubernetesSecrets": [secret], "kubernetesServiceAccounts": [account]},
            "r.example/b": {"nodePodsAccessible": true},
        });
        let mut image = PulledImage::new("sha256:1");
        let of_secret = SecretIdentity { uid: "u".into(), namespace: "ns".into(), name: "s".into(), hash: "h".into() };
        image.grant("r.example/a", Access::Secret(of_secret));
        let of_account = AccountIdentity { uid: "v".into(), namespace: "ns".into(), name: "a".into() };
        image.grant("r.example/a", Access::Account(of_account));
        image.grant("r.example/b", Access::Node);
        let at = "2026-11-02T03:04:05.678Z".parse().unwrap();
        let written: Value = serde_json::from_slice(&image.encode(at).unwrap()).unwrap();
        let expected: Value = serde_json::from_slice(&file("v1alpha1", &mapping)).unwrap();
        assert_eq!(written, expected);
        for version in ["v1alpha1", "v1beta1"] {
            assert_eq!(PulledImage::decode(&file(version, &mapping)).unwrap(), image);
        }

        let intent = PullIntentRecord { image: "a:1".into() };
        let written: Value = serde_json::from_slice(&intent.encode().unwrap()).unwrap();
        let kind = json!({"kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1alpha1", "image": "a:1"});
        assert_eq!(written, kind);
        assert_eq!(PullIntentRecord::decode(&intent.encode().unwrap()).unwrap(), intent);
    }

    #[test]
    fn a_record_without_credentials_gives_access_to_nobody() {
        let bytes = [
            file("v1beta1", &Value::Null),
            file("v1beta1", &json!({})),
            file("v1beta1", &json!({"r.example/a": {"kubernetesSecrets": null, "nodePodsAccessible": false}})),
        ];
        for bytes in bytes {
            let image = PulledImage::decode(&bytes).unwrap();
            let decision = image.decide("r.example/a", &Presented::default());
            assert_eq!(decision, AccessDecision::AskRegistry { of_accounts: false });
        }
    }

    #[test]
    fn a_record_of_an_earlier_agent_gives_the_access_that_it_gave_there() {
        let secret = json!({"uid": "u", "namespace": "ns", "name": "s", "hash": "of an earlier agent"});
        let earlier = json!({
            "image": "sha256:1", "repositories": {"r.example/a": {"secrets": [secret]}, "r.example/b": "node"},
        });
        let image = PulledImage::decode(earlier.to_string().as_bytes()).unwrap();
        let presented = |uid: &str| SecretIdentity {
            uid: uid.into(),
            namespace: "ns".into(),
            name: "s".into(),
            hash: "of this agent".into(),
        };
        let decide = |repository: &str, secrets: &[SecretIdentity]| {
            image.decide(repository, &Presented { secrets: secrets.to_vec(), accounts: vec![] })
        };
        let ask = AccessDecision::AskRegistry { of_accounts: false };
        assert_eq!(decide("r.example/a", &[]), ask);
        assert_eq!(decide("r.example/a", &[presented("v")]), ask);
        assert_eq!(decide("r.example/a", &[presented("u")]), AccessDecision::AllowAndRecord(presented("u")));
        assert_eq!(decide("r.example/b", &[]), AccessDecision::Allow);
        assert_eq!(decide("r.example/c", &[presented("u")]), ask);

        let written = image.encode(Timestamp::UNIX_EPOCH).unwrap();
        assert!(
            serde_json::from_slice::<EarlierFile>(&written).is_err(),
            "the record is written in the form of the kubelet"
        );
        assert_eq!(PulledImage::decode(&written).unwrap(), image);
    }

    #[test]
    fn another_file_is_no_record() {
        let other = br#"{"kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1beta1", "image": "a"}"#;
        for bytes in [&b"r.example/a:1"[..], b"", b"{}", other] {
            assert!(PulledImage::decode(bytes).is_err());
        }
        let foreign = br#"{"kind": "ImagePullIntent", "apiVersion": "example.com/v1", "image": "a"}"#;
        let error = PullIntentRecord::decode(foreign).unwrap_err().to_string();
        assert!(error.contains("\"example.com/v1\""), "{error}");
    }
}
