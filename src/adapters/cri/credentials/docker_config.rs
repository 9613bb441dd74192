//! The files in which docker keeps logins, and the secrets that hold such a file.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use podwright_actors::ports::PullSecretFormat;
use serde_json::{Map, Value};

use super::Login;

/// With or without `=` at the end, as docker and its followers write it.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// How logins are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::adapters::cri) enum Format {
    /// `config.json`: `{"auths": {REGISTRY: LOGIN}}`.
    ConfigJson,
    /// `.dockercfg`, of old: `{REGISTRY: LOGIN}`.
    DockerCfg,
}

impl From<PullSecretFormat> for Format {
    fn from(format: PullSecretFormat) -> Self {
        match format {
            PullSecretFormat::DockerConfigJson => Format::ConfigJson,
            PullSecretFormat::DockerCfg => Format::DockerCfg,
        }
    }
}

/// Logins that cannot be read. Says where, and nothing of what stands there: it may be a part of a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::adapters::cri) enum BadConfig {
    #[error("line {line}, column {column}: this is no JSON: write it anew, as docker login does")]
    Json { line: usize, column: usize },
    #[error(
        "it has no \"auths\" with logins: write {{\"auths\": {{REGISTRY: LOGIN}}}}; helpers for logins are not asked"
    )]
    NoLogins,
    #[error("registry {registry:?}: {what}")]
    Entry { registry: String, what: &'static str },
}

/// The logins by registry, in the order of their names.
pub(in crate::adapters::cri) fn parse(bytes: &[u8], format: Format) -> Result<Vec<(String, Login)>, BadConfig> {
    let parsed: Value = serde_json::from_slice(bytes)
        .map_err(|error| BadConfig::Json { line: error.line(), column: error.column() })?;
    let entries = match (format, &parsed) {
        (Format::ConfigJson, Value::Object(top)) => top.get("auths").and_then(Value::as_object),
        (Format::DockerCfg, Value::Object(top)) => Some(top),
        _ => None,
    };
    let entries = entries.ok_or(BadConfig::NoLogins)?;
    let login = |(registry, entry): (&String, &Value)| {
        let login = entry.as_object().ok_or("a login is an object: give it an \"auth\"").and_then(login);
        match login {
            Ok(login) => login.map(|login| Ok((registry.clone(), login))),
            Err(what) => Some(Err(BadConfig::Entry { registry: registry.clone(), what })),
        }
    };
    entries.iter().filter_map(login).collect()
}

/// One login. `None` if the entry has none: docker leaves such ones where a helper has the login.
fn login(entry: &Map<String, Value>) -> Result<Option<Login>, &'static str> {
    let text = |name: &str| match entry.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err("username, password, auth and identitytoken are texts: put them in quotes"),
    };
    let (mut username, mut password) = (text("username")?.to_owned(), text("password")?.to_owned());
    let (auth, token) = (text("auth")?.trim(), text("identitytoken")?);
    if !auth.is_empty() {
        let decoded = BASE64.decode(auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or("\"auth\" is not base64 of a text: encode NAME:PASSWORD")?;
        let (name, word) = decoded.split_once(':').ok_or("\"auth\" has no colon: encode NAME:PASSWORD")?;
        (username, password) = (name.to_owned(), word.to_owned());
    }
    // What docker got for a password takes its place.
    if !token.is_empty() {
        return Ok(Some(Login::IdentityToken(token.to_owned())));
    }
    Ok((!username.is_empty() || !password.is_empty()).then_some(Login::Password { username, password }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn password(username: &str, password: &str) -> Login {
        Login::Password { username: username.to_owned(), password: password.to_owned() }
    }

    #[test]
    fn logins_are_read_in_each_of_their_forms() {
        let text = r#"{"auths": {
            "a.example": {"auth": "bmFtZTpwYXNz"},
            "b.example": {"auth": "bmFtZTpwYTpzcw==", "email": "x"},
            "c.example": {"auth": "bmFtZTpwYTpzcw", "username": "other"},
            "d.example": {"username": "name", "password": "pass"},
            "e.example": {"auth": "bmFtZTo=", "identitytoken": "token"},
            "f.example": {}
        }, "credsStore": "pass"}"#;
        let read = parse(text.as_bytes(), Format::ConfigJson).unwrap();
        let expected = [
            ("a.example", password("name", "pass")),
            ("b.example", password("name", "pa:ss")),
            ("c.example", password("name", "pa:ss")),
            ("d.example", password("name", "pass")),
            ("e.example", Login::IdentityToken("token".to_owned())),
        ];
        assert!(
            read.iter().map(|(registry, login)| (registry.as_str(), login)).eq(expected.iter().map(|(r, l)| (*r, l)))
        );
        let old = parse(br#"{"a.example": {"auth": "bmFtZTpwYXNz"}}"#, Format::DockerCfg).unwrap();
        assert!(old == [("a.example".to_owned(), password("name", "pass"))]);
        assert!(parse(br#"{"auths": {}}"#, Format::ConfigJson).unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_read_says_where_and_not_what() {
        let bad = |text: &str, format| {
            let error = parse(text.as_bytes(), format).unwrap_err().to_string();
            assert!(!error.contains("s3cret") && !error.contains("czNjcmV0"), "{error}");
            error
        };
        let json = |text: &str| bad(text, Format::ConfigJson);
        assert!(json("{\n  \"auths\": s3cret}").starts_with("line 2, column 12"));
        for text in ["[]", r#"{"a.example": {"auth": "s3cret"}}"#, r#"{"auths": "s3cret"}"#] {
            assert!(json(text).contains(r#"write {"auths": {REGISTRY: LOGIN}}"#), "{text}");
        }
        for (entry, says) in [
            (r#""s3cret""#, "a login is an object"),
            (r#"{"auth": "s3cret!"}"#, "is not base64"),
            (r#"{"auth": "czNjcmV0"}"#, "has no colon"),
            (r#"{"password": ["s3cret"]}"#, "are texts"),
        ] {
            let error = json(&format!(r#"{{"auths": {{"a.example": {entry}}}}}"#));
            assert!(error.starts_with(r#"registry "a.example": "#) && error.contains(says), "{error}");
        }
        assert!(bad(r#"{"a.example": "s3cret"}"#, Format::DockerCfg).contains("a login is an object"));
    }
}
