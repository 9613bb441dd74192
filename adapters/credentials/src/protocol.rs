//! The messages of a plugin: `CredentialProviderRequest` and `CredentialProviderResponse` of `credentialprovider.kubelet.k8s.io`
//! (kubelet 1.36). Pure.
//!
//! No error text contains a part of an answer, because an answer has passwords.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::config::{ProtocolVersion, cache_duration};

const REQUEST_KIND: &str = "CredentialProviderRequest";
const ANSWER_KIND: &str = "CredentialProviderResponse";

/// What a plugin is asked.
pub(crate) struct Request<'a> {
    pub(crate) image: &'a str,
    /// The token of the pod's service account; empty for none.
    pub(crate) token: &'a str,
    /// The annotations of the service account that the plugin gets.
    pub(crate) annotations: &'a BTreeMap<String, String>,
}

/// The answer of a plugin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) cache_key: CacheKeyType,
    /// How long the answer may be kept. `None` for the default of the configuration.
    pub(crate) cache_duration: Option<Duration>,
    /// The credentials, by scope.
    pub(crate) auth: BTreeMap<String, Auth>,
}

/// Which images share an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum CacheKeyType {
    Image,
    Registry,
    Global,
}

/// A credential.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Auth {
    #[serde(default)]
    pub(crate) username: String,
    #[serde(default)]
    pub(crate) password: String,
}

/// Prints no part of the credential.
impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Auth")
    }
}

/// An answer that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AnswerError {
    #[error("it is not a CredentialProviderResponse in JSON (line {line}, column {column})")]
    Json { line: usize, column: usize },
    #[error("it is not a CredentialProviderResponse of {expected}")]
    Kind { expected: &'static str },
    #[error("its cacheDuration is not a time span")]
    Duration,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RequestMessage<'a> {
    kind: &'static str,
    api_version: &'static str,
    image: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    service_account_token: &'a str,
    #[serde(skip_serializing_if = "is_empty")]
    service_account_annotations: &'a BTreeMap<String, String>,
}

fn is_empty(map: &&BTreeMap<String, String>) -> bool {
    map.is_empty()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeMeta {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AnswerMessage {
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    cache_key_type: CacheKeyType,
    #[serde(default)]
    cache_duration: Option<String>,
    #[serde(default)]
    auth: Option<BTreeMap<String, Auth>>,
}

impl Request<'_> {
    /// The bytes for the standard input of the plugin.
    pub(crate) fn encode(&self, version: ProtocolVersion) -> Vec<u8> {
        let message = RequestMessage {
            kind: REQUEST_KIND,
            api_version: version.as_str(),
            image: self.image,
            service_account_token: self.token,
            service_account_annotations: self.annotations,
        };
        serde_json::to_vec(&message).expect("texts and maps of texts have a form in JSON")
    }
}

impl Answer {
    /// Parses the standard output of the plugin.
    pub(crate) fn decode(bytes: &[u8], version: ProtocolVersion) -> Result<Self, AnswerError> {
        let syntax = |error: serde_json::Error| AnswerError::Json { line: error.line(), column: error.column() };
        let TypeMeta { kind, api_version } = serde_json::from_slice(bytes).map_err(syntax)?;
        if kind != ANSWER_KIND || api_version != version.as_str() {
            return Err(AnswerError::Kind { expected: version.as_str() });
        }
        let message: AnswerMessage = serde_json::from_slice(bytes).map_err(syntax)?;
        // An answer with a negative time must not be kept.
        let parse = |text: &str| match text.strip_prefix('-') {
            Some(positive) => cache_duration(positive).map(|_| Duration::ZERO),
            None => cache_duration(text),
        };
        let duration =
            message.cache_duration.as_deref().map(|text| parse(text).ok_or(AnswerError::Duration)).transpose()?;
        Ok(Answer {
            cache_key: message.cache_key_type,
            cache_duration: duration,
            auth: message.auth.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const V1: ProtocolVersion = ProtocolVersion::V1;

    fn answer() -> Value {
        json!({
            "kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "cacheKeyType": "Registry", "cacheDuration": "6h",
            "auth": {"r.example": {"username": "user", "password": "s3cret"}},
        })
    }

    fn decode(answer: &Value) -> Result<Answer, AnswerError> {
        Answer::decode(answer.to_string().as_bytes(), V1)
    }

    #[test]
    fn a_request_has_the_token_and_the_annotations_of_its_account_only_if_there_is_one() {
        let (none, some) = (BTreeMap::new(), BTreeMap::from([("role".to_owned(), "pull".to_owned())]));
        let sent = |token, annotations, version| {
            let request = Request { image: "r.example/a", token, annotations };
            serde_json::from_slice::<Value>(&request.encode(version)).unwrap()
        };
        let expected = json!({
            "kind": "CredentialProviderRequest", "apiVersion": "credentialprovider.kubelet.k8s.io/v1beta1",
            "image": "r.example/a",
        });
        assert_eq!(sent("", &none, ProtocolVersion::V1Beta1), expected);
        let expected = json!({
            "kind": "CredentialProviderRequest", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "image": "r.example/a", "serviceAccountToken": "t", "serviceAccountAnnotations": {"role": "pull"},
        });
        assert_eq!(sent("t", &some, V1), expected);
    }

    #[test]
    fn an_answer_has_credentials_and_says_how_long_they_are_kept() {
        let found = decode(&answer()).unwrap();
        assert_eq!(
            (found.cache_key, found.cache_duration),
            (CacheKeyType::Registry, Some(Duration::from_secs(21_600)))
        );
        let auth = Auth { username: "user".into(), password: "s3cret".into() };
        assert_eq!(found.auth, BTreeMap::from([("r.example".to_owned(), auth)]));
        for (duration, expected) in
            [(json!("0s"), Some(Duration::ZERO)), (json!("-5m"), Some(Duration::ZERO)), (Value::Null, None)]
        {
            let mut answer = answer();
            answer["cacheDuration"] = duration;
            answer["auth"] = Value::Null;
            let found = decode(&answer).unwrap();
            assert_eq!((found.cache_duration, found.auth.len()), (expected, 0));
        }
    }

    #[test]
    fn a_fault_of_an_answer_shows_nothing_of_it() {
        for (field, value) in [
            ("kind", json!("s3cret")),
            ("apiVersion", json!("credentialprovider.kubelet.k8s.io/v1beta1")),
            ("cacheKeyType", json!("s3cret")),
            ("cacheDuration", json!("s3cret")),
            ("s3cret", json!(1)),
            ("auth", json!({"r.example": {"username": 1, "password": "s3cret"}})),
            ("auth", json!({"r.example": {"token": "s3cret"}})),
        ] {
            let mut answer = answer();
            answer[field] = value;
            let error = decode(&answer).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
        assert!(matches!(Answer::decode(b"s3cret", V1), Err(AnswerError::Json { line: 1, .. })));
        assert!(!format!("{:?}", decode(&answer()).unwrap()).contains("s3cret"));
    }
}
