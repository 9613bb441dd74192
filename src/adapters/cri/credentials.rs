//! Logins at registries: how they are written, and which of them are for which image. Pure.
//!
//! Nothing here shows a login: neither `Debug` nor an error has a part of one.

mod docker_config;
mod keyring;

use std::fmt;

use super::v1;

pub(super) use docker_config::{Format, parse};
pub(super) use keyring::Keyring;

/// Who somebody is at a registry.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Login {
    /// A name and a password, which may be a token of the registry's own making.
    Password {
        /// The name.
        username: String,
        /// The password.
        password: String,
    },
    /// What `docker login` got instead of keeping the password.
    IdentityToken(String),
}

impl Login {
    /// As the runtime is told it.
    pub(super) fn auth(&self) -> v1::AuthConfig {
        match self {
            Login::Password { username, password } => {
                v1::AuthConfig { username: username.clone(), password: password.clone(), ..Default::default() }
            }
            Login::IdentityToken(token) => v1::AuthConfig { identity_token: token.clone(), ..Default::default() },
        }
    }

    /// The text without the secret, should somebody have put it there.
    pub(super) fn redact(&self, text: &str) -> String {
        let (Login::Password { password: secret, .. } | Login::IdentityToken(secret)) = self;
        // A short one would take half of the text with it, and guards nothing.
        if secret.len() < 4 { text.to_owned() } else { text.replace(secret.as_str(), "[redacted]") }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

#[cfg(test)]
mod tests {
    use podwright_actors::ports::Confidential;

    use super::*;

    #[test]
    fn nobody_sees_a_login_who_prints_it() {
        let password = Login::Password { username: "name".into(), password: "s3cret".into() };
        for login in [password, Login::IdentityToken("s3cret".into())] {
            let request = v1::PullImageRequest { auth: Some(login.auth()), ..Default::default() };
            let mut keyring = Keyring::default();
            keyring.add(vec![("r.example".into(), login.clone())]);
            let shown = format!("{login:?} {request:?} {keyring:?} {:?}", Confidential::from(b"s3cret".to_vec()));
            assert!(!shown.contains("s3cret") && shown.contains("AuthConfig"), "{shown}");
            assert_eq!(login.redact("the s3cret is wrong"), "the [redacted] is wrong");
        }
    }
}
