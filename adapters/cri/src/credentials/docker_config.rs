//! The Docker configuration file with registry logins. An image pull secret contains such a file.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use podwright_ports::PullSecretFormat;
use serde_json::{Map, Value};

use super::Login;

/// Accepts base64 with and without padding, because Docker and similar tools write both.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The format of a file with logins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DockerConfigFormat {
    /// `config.json`: `{"auths": {REGISTRY: LOGIN}}`.
    ConfigJson,
    /// `.dockercfg`, the older format: `{REGISTRY: LOGIN}`.
    DockerCfg,
}

impl From<PullSecretFormat> for DockerConfigFormat {
    fn from(format: PullSecretFormat) -> Self {
        match format {
            PullSecretFormat::DockerConfigJson => DockerConfigFormat::ConfigJson,
            PullSecretFormat::DockerCfg => DockerConfigFormat::DockerCfg,
        }
    }
}

/// A file with logins that cannot be parsed. The text contains the position and no content, which may be a part of a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DockerConfigError {
    #[error("line {line}, column {column}: not valid JSON: write the file again with docker login")]
    Json { line: usize, column: usize },
    #[error("no \"auths\" with logins: write {{\"auths\": {{REGISTRY: LOGIN}}}}; credential helpers are not supported")]
    NoLogins,
    #[error("registry {registry:?}: {what}")]
    Registry { registry: String, what: &'static str },
}

/// Parses the logins. Returns them with their registries, sorted by registry.
pub(crate) fn parse(bytes: &[u8], format: DockerConfigFormat) -> Result<Vec<(String, Login)>, DockerConfigError> {
    let parsed: Value = serde_json::from_slice(bytes)
        .map_err(|error| DockerConfigError::Json { line: error.line(), column: error.column() })?;
    let entries = match (format, &parsed) {
        (DockerConfigFormat::ConfigJson, Value::Object(top)) => top.get("auths").and_then(Value::as_object),
        (DockerConfigFormat::DockerCfg, Value::Object(top)) => Some(top),
        _ => None,
    };
    let entries = entries.ok_or(DockerConfigError::NoLogins)?;
    let login = |(registry, entry): (&String, &Value)| {
        let login = entry.as_object().ok_or("a login must be a JSON object: give it an \"auth\"").and_then(login);
        match login {
            Ok(login) => login.map(|login| Ok((registry.clone(), login))),
            Err(what) => Some(Err(DockerConfigError::Registry { registry: registry.clone(), what })),
        }
    };
    entries.iter().filter_map(login).collect()
}

/// Parses one login. `None` if the entry is empty: Docker writes such an entry if a credential helper has the login.
fn login(entry: &Map<String, Value>) -> Result<Option<Login>, &'static str> {
    let text = |name: &str| match entry.get(name) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err("username, password, auth and identitytoken must be strings: put them in quotes"),
    };
    let (mut username, mut password) = (text("username")?.to_owned(), text("password")?.to_owned());
    let (auth, token) = (text("auth")?.trim(), text("identitytoken")?);
    if !auth.is_empty() {
        let decoded = BASE64.decode(auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let decoded = decoded.ok_or("\"auth\" is not valid base64 of UTF-8 text: encode NAME:PASSWORD")?;
        let (name, secret) = decoded.split_once(':').ok_or("\"auth\" has no colon: encode NAME:PASSWORD")?;
        (username, password) = (name.to_owned(), secret.to_owned());
    }
    // An identity token replaces the password.
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
    fn registry_logins_are_parsed_in_all_their_forms() {
        let text = r#"{"auths": {
            "a.example": {"auth": "bmFtZTpwYXNz"},
            "b.example": {"auth": "bmFtZTpwYTpzcw==", "email": "x"},
            "c.example": {"auth": "bmFtZTpwYTpzcw", "username": "other"},
            "d.example": {"username": "name", "password": "pass"},
            "e.example": {"auth": "bmFtZTo=", "identitytoken": "token"},
            "f.example": {}
        }, "credsStore": "pass"}"#;
        let read = parse(text.as_bytes(), DockerConfigFormat::ConfigJson).unwrap();
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
        let old = parse(br#"{"a.example": {"auth": "bmFtZTpwYXNz"}}"#, DockerConfigFormat::DockerCfg).unwrap();
        assert!(old == [("a.example".to_owned(), password("name", "pass"))]);
        assert!(parse(br#"{"auths": {}}"#, DockerConfigFormat::ConfigJson).unwrap().is_empty());
    }

    #[test]
    fn login_parse_errors_name_the_position_and_not_the_secret() {
        let bad = |text: &str, format| {
            let error = parse(text.as_bytes(), format).unwrap_err().to_string();
            assert!(!error.contains("s3cret") && !error.contains("czNjcmV0"), "{error}");
            error
        };
        let json = |text: &str| bad(text, DockerConfigFormat::ConfigJson);
        assert!(json("{\n  \"auths\": s3cret}").starts_with("line 2, column 12"));
        for text in ["[]", r#"{"a.example": {"auth": "s3cret"}}"#, r#"{"auths": "s3cret"}"#] {
            assert!(json(text).contains(r#"write {"auths": {REGISTRY: LOGIN}}"#), "{text}");
        }
        for (entry, says) in [
            (r#""s3cret""#, "a login must be a JSON object"),
            (r#"{"auth": "s3cret!"}"#, "is not valid base64"),
            (r#"{"auth": "czNjcmV0"}"#, "has no colon"),
            (r#"{"password": ["s3cret"]}"#, "must be strings"),
        ] {
            let error = json(&format!(r#"{{"auths": {{"a.example": {entry}}}}}"#));
            assert!(error.starts_with(r#"registry "a.example": "#) && error.contains(says), "{error}");
        }
        assert!(
            bad(r#"{"a.example": "s3cret"}"#, DockerConfigFormat::DockerCfg).contains("a login must be a JSON object")
        );
    }
}
