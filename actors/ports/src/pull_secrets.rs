//! Image pull secrets.

use std::error::Error;
use std::fmt;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;

use super::ErrorSource;

/// Finds the secrets in a pod's `imagePullSecrets`. Called at every start of a container that has an image, so an
/// implementation should answer from a cache.
pub trait PullSecrets: Send + Sync + 'static {
    /// Returns one secret.
    ///
    /// # Errors
    /// [`PullSecretError`] if there is no usable secret. The pull continues without it, and an event reports the error.
    fn pull_secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<PullSecret, PullSecretError>>;
}

/// Finds no secrets, for nodes whose pods come only from manifests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPullSecrets;

impl PullSecrets for NoPullSecrets {
    fn pull_secret<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<PullSecret, PullSecretError>> {
        Box::pin(async { Err(PullSecretError::NotFound) })
    }
}

/// An image pull secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullSecret {
    /// The UID of the `Secret` object.
    pub uid: String,
    /// The format of the payload.
    pub format: PullSecretFormat,
    /// The credentials, encoded in `format`.
    pub payload: Confidential,
}

impl PullSecret {
    /// Reads the credentials from a `Secret` object.
    ///
    /// # Errors
    /// [`PullSecretError`] if the secret is no image pull secret.
    pub fn of(secret: &Secret) -> Result<Self, PullSecretError> {
        let of_type = secret.type_.as_deref().unwrap_or_default();
        let format = match of_type {
            "kubernetes.io/dockerconfigjson" => PullSecretFormat::DockerConfigJson,
            "kubernetes.io/dockercfg" => PullSecretFormat::DockerCfg,
            _ => return Err(PullSecretError::WrongType(of_type.to_owned())),
        };
        let payload = secret.data.as_ref().and_then(|data| data.get(format.key()));
        let payload = payload.ok_or(PullSecretError::Empty(format.key()))?.0.clone().into();
        Ok(PullSecret { uid: secret.metadata.uid.clone().unwrap_or_default(), format, payload })
    }
}

/// The format of the credentials in a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PullSecretFormat {
    /// The type `kubernetes.io/dockerconfigjson` with the key `.dockerconfigjson`.
    DockerConfigJson,
    /// The type `kubernetes.io/dockercfg` with the key `.dockercfg`.
    DockerCfg,
}

impl PullSecretFormat {
    /// The key of the payload in the secret's data.
    const fn key(self) -> &'static str {
        match self {
            PullSecretFormat::DockerConfigJson => ".dockerconfigjson",
            PullSecretFormat::DockerCfg => ".dockercfg",
        }
    }
}

/// A pull secret cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PullSecretError {
    /// The secret does not exist.
    #[error("not found: create it in the pod's namespace, or take it out of imagePullSecrets")]
    NotFound,
    /// The secret has another type.
    #[error("its type is {0:?}: use kubernetes.io/dockerconfigjson")]
    WrongType(String),
    /// The secret lacks its key.
    #[error("it has no key {0:?}: add the key, or create the secret again")]
    Empty(&'static str),
    /// The secret cannot be read now.
    #[error("{0}")]
    Unavailable(#[source] ErrorSource),
}

impl PullSecretError {
    /// A [`PullSecretError::Unavailable`] with this source.
    pub fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        PullSecretError::Unavailable(source.into().into())
    }
}

/// Bytes that `Debug` does not print.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Confidential(Vec<u8>);

impl Confidential {
    /// The bytes.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Confidential {
    fn from(bytes: Vec<u8>) -> Self {
        Confidential(bytes)
    }
}

impl fmt::Debug for Confidential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Confidential")
    }
}
