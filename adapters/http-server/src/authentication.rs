//! Who sent a request: a client that may read everything, or any process of this machine.

use std::fmt;
use std::path::{Path, PathBuf};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use super::private_file::{PrivateFileError, read_private};

/// The random bytes of a token: 128 bits, so that a link with a token fits into a line of 80 characters.
const RANDOM_BYTES: usize = 16;
/// The characters that a token of a file has. 32 characters of a random hexadecimal text are 128 bits.
const MIN_CHARACTERS: usize = 32;
const MAX_CHARACTERS: usize = 1024;

/// What a request may read. Each request carries it as an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The client has authenticated itself.
    Full,
    /// The request carries no credentials.
    Public,
    /// The request carries a token that is not the agent's.
    WrongToken,
}

/// How the clients of a listener authenticate themselves.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// The listener accepts connections only from users that may read everything.
    Listener,
    /// A request carries the token in its `Authorization` header (RFC 6750, section 2.1).
    Token(Token),
    /// The router authenticates each request, and then calls [`Connection::authenticate`](super::Connection::authenticate).
    Router,
}

impl Authentication {
    /// What a request with these headers may read.
    pub fn access(&self, headers: &HeaderMap) -> Access {
        let token = match self {
            Authentication::Listener => return Access::Full,
            Authentication::Token(token) => token,
            Authentication::Router => return Access::Public,
        };
        let Some(given) = headers.get(AUTHORIZATION) else { return Access::Public };
        if bearer(given.as_bytes()).is_some_and(|given| token.is(given)) { Access::Full } else { Access::WrongToken }
    }
}

/// The token in the value of an `Authorization` header. The name of the scheme is not case-sensitive.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// A secret that gives read access. `Debug` does not print it.
#[derive(Clone)]
pub struct Token(String);

/// Why there is no usable token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file of the token cannot be read, or other users can read it.
    #[error("cannot read the token")]
    File(#[from] PrivateFileError),
    /// The file has no token.
    #[error(
        "the token in {path} is not of {MIN_CHARACTERS} to {MAX_CHARACTERS} letters, digits and -._~+/=: write one with \
         `openssl rand -hex 32`",
        path = .0.display()
    )]
    Malformed(PathBuf),
    /// The system has no source of random bytes.
    #[error("the system gives no random bytes for a token")]
    NoRandom,
}

impl Token {
    /// A new random token.
    ///
    /// # Errors
    /// [`TokenError::NoRandom`] if the system has no source of random bytes.
    pub fn random() -> Result<Self, TokenError> {
        let mut bytes = [0; RANDOM_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| TokenError::NoRandom)?;
        Ok(Token(BASE64_URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// Reads a token from a file that other users cannot read. White space around the token is ignored. Blocking.
    ///
    /// # Errors
    /// [`TokenError`] if the file cannot be read, is readable for other users, or holds no token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let text = read_private(path)?;
        let token = text.trim();
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
        if !(MIN_CHARACTERS..=MAX_CHARACTERS).contains(&token.len()) || !token.bytes().all(good) {
            return Err(TokenError::Malformed(path.to_owned()));
        }
        Ok(Token(token.to_owned()))
    }

    /// The secret text.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Whether `given` is this token. The time of the comparison depends neither on the common part nor on the lengths,
    /// because digests are compared.
    fn is(&self, given: &[u8]) -> bool {
        let digest = |text: &[u8]| digest(&SHA256, text);
        digest(self.0.as_bytes()).as_ref().ct_eq(digest(given).as_ref()).into()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_exact_token_gives_access() {
        let token = Token::random().unwrap();
        let secret = token.secret().to_owned();
        assert!(secret.len() == 22 && Token::random().unwrap().secret() != secret);
        assert!(!format!("{token:?}").contains(&secret), "debug output hides the token");
        let by_token = Authentication::Token(token);
        let access = |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
            by_token.access(&headers)
        };
        assert_eq!(by_token.access(&HeaderMap::new()), Access::Public);
        for good in [format!("Bearer {secret}"), format!("bearer {secret}"), format!("BEARER  {secret} ")] {
            assert_eq!(access(&good), Access::Full, "{good}");
        }
        let swapped: String = secret.chars().rev().collect();
        for bad in [
            String::new(),
            "Bearer".into(),
            "Bearer ".into(),
            secret.clone(),
            format!("Basic {secret}"),
            format!("Bearer {}", &secret[1..]),
            format!("Bearer {secret}x"),
            format!("Bearer {swapped}"),
        ] {
            assert_eq!(access(&bad), Access::WrongToken, "{bad}");
        }
        assert_eq!(Authentication::Listener.access(&HeaderMap::new()), Access::Full);
    }

    #[test]
    fn a_weak_or_readable_token_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let read = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        let good = "0123456789abcdef0123456789abcdef";
        assert_eq!(read(&format!("{good}\n"), 0o600).unwrap().secret(), good);
        for bad in ["", "short", &format!("{good} {good}"), &format!("{good}#"), &good.repeat(40)] {
            let error = read(bad, 0o600).unwrap_err();
            assert!(error.to_string().contains("openssl rand"), "{bad}: {error}");
        }
        assert!(matches!(read(good, 0o644), Err(TokenError::File(PrivateFileError::Mode { .. }))));
    }
}
