//! The secrets that a pod names for the pulls of its images.

use std::fmt;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;

/// Finds the secrets that `imagePullSecrets` of a pod name. Asked whenever a container with an image is started, so it
/// should answer from a copy at hand.
pub trait PullSecrets: Send + Sync + 'static {
    /// One secret.
    ///
    /// # Errors
    /// [`PullSecretError`]: the pull goes on without it, and an event says so.
    fn pull_secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<PullSecret, PullSecretError>>;
}

/// A node whose pods come from manifests alone has no secrets.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPullSecrets;

impl PullSecrets for NoPullSecrets {
    fn pull_secret<'a>(&'a self, _: &'a str, _: &'a str) -> BoxFuture<'a, Result<PullSecret, PullSecretError>> {
        Box::pin(async { Err(PullSecretError::NotFound) })
    }
}

/// A secret for pulls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullSecret {
    /// The UID of the object.
    pub uid: String,
    /// How its payload is written.
    pub format: PullSecretFormat,
    /// The value of its one key.
    pub payload: Confidential,
}

impl PullSecret {
    /// From the object.
    ///
    /// # Errors
    /// [`PullSecretError`] if it is no secret for pulls.
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

/// How logins are written in a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PullSecretFormat {
    /// Type `kubernetes.io/dockerconfigjson`, key `.dockerconfigjson`.
    DockerConfigJson,
    /// Type `kubernetes.io/dockercfg`, key `.dockercfg`.
    DockerCfg,
}

impl PullSecretFormat {
    /// The key under which its payload stands.
    const fn key(self) -> &'static str {
        match self {
            PullSecretFormat::DockerConfigJson => ".dockerconfigjson",
            PullSecretFormat::DockerCfg => ".dockercfg",
        }
    }
}

/// A secret cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PullSecretError {
    /// There is none of that name.
    #[error("not found: create it in the pod's namespace, or take it out of imagePullSecrets")]
    NotFound,
    /// It is no secret for pulls.
    #[error("its type is {0:?}: use kubernetes.io/dockerconfigjson")]
    WrongType(String),
    /// It holds nothing of use.
    #[error("it has no key {0:?}: add it, or make the secret anew")]
    Empty(&'static str),
    /// Whoever knows could not be asked.
    #[error("{0}")]
    Unavailable(String),
}

/// Bytes that nobody is shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Confidential(Vec<u8>);

impl Confidential {
    /// The bytes, for whoever uses them.
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
