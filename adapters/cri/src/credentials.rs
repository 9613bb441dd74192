//! Registry logins: their file formats, and which logins apply to which image. Pure.
//!
//! No `Debug` output and no error text in this module contains a part of a login.

mod docker_config;
mod keyring;

use std::fmt;

use super::v1;

pub(super) use docker_config::{DockerConfigFormat, parse};
pub(super) use keyring::Keyring;

/// A login at a registry.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Login {
    /// A user name with a password or an access token.
    Password { username: String, password: String },
    /// A token that `docker login` received in exchange for the password.
    IdentityToken(String),
}

impl Login {
    /// The login in the form of the CRI.
    pub(super) fn auth(&self) -> v1::AuthConfig {
        match self {
            Login::Password { username, password } => {
                v1::AuthConfig { username: username.clone(), password: password.clone(), ..Default::default() }
            }
            Login::IdentityToken(token) => v1::AuthConfig { identity_token: token.clone(), ..Default::default() },
        }
    }

    /// The text with the password or token replaced, because a runtime may put it into an error text.
    pub(super) fn redact(&self, text: &str) -> String {
        let (Login::Password { password: secret, .. } | Login::IdentityToken(secret)) = self;
        // A password of three characters protects nothing, and replacing it would make the text unreadable.
        if secret.len() < 4 { text.to_owned() } else { text.replace(secret.as_str(), "[redacted]") }
    }
}

/// Prints no part of the login.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

#[cfg(test)]
mod tests {
    use podwright_ports::Confidential;

    use super::*;

    #[test]
    fn debug_output_and_redacted_text_contain_no_login() {
        let password = Login::Password { username: "name".into(), password: "s3cret".into() };
        for login in [password, Login::IdentityToken("s3cret".into())] {
            let request = v1::PullImageRequest { auth: Some(login.auth()), ..Default::default() };
            let mut keyring = Keyring::default();
            keyring.add(vec![("r.example".into(), login.clone())]);
            let output = format!("{login:?} {request:?} {keyring:?} {:?}", Confidential::from(b"s3cret".to_vec()));
            assert!(!output.contains("s3cret") && output.contains("AuthConfig"), "{output}");
            assert_eq!(login.redact("the s3cret is wrong"), "the [redacted] is wrong");
        }
    }
}
