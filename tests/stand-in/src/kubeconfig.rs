//! Kubeconfig files.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::access::User;
use crate::authority::ClientCertificate;

/// The credential with which a client authenticates.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Credential {
    /// No credential.
    Nothing,
    /// A bearer token.
    Token(String),
    /// A new client certificate of a user.
    Certificate(User),
}

impl From<&User> for Credential {
    fn from(user: &User) -> Self {
        Self::Certificate(user.clone())
    }
}

impl From<&str> for Credential {
    fn from(token: &str) -> Self {
        Self::Token(token.to_owned())
    }
}

impl From<&String> for Credential {
    fn from(token: &String) -> Self {
        Self::Token(token.clone())
    }
}

/// The user entry of a kubeconfig file.
pub(crate) enum UserEntry {
    Nothing,
    Token(String),
    Certificate(ClientCertificate),
}

/// The text of a kubeconfig file. JSON is YAML.
pub(crate) fn text(server: &str, authority: &str, entry: &UserEntry) -> String {
    let data = |text: &str| STANDARD.encode(text);
    let user: Value = match entry {
        UserEntry::Nothing => json!({}),
        UserEntry::Token(token) => json!({"token": token}),
        UserEntry::Certificate(found) => json!({
            "client-certificate-data": data(&found.certificate),
            "client-key-data": data(&found.key),
        }),
    };
    let name = "stand-in";
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server, "certificate-authority-data": data(authority)}}],
        "users": [{"name": name, "user": user}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    });
    format!("{config:#}\n")
}
