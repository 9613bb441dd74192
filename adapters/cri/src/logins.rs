//! The registry logins that a pull may use: those of the pod's image pull secrets, then those of the node.

use std::sync::Arc;

use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_model::texts::images::no_secrets;
use podwright_ports::{EventRecorder, PodEvent, PullSecret, PullSecrets};

use super::access::{Access, SecretIdentity};
use super::credentials::{Keyring, Login, parse};
use super::image_name::ImageName;
use super::pull_records::hash;
use super::registry_config::{NodeLogins, RegistryConfig};
use super::tasks::blocking;

/// The sources of logins.
pub(super) struct LoginSources {
    pub(super) secrets: Arc<dyn PullSecrets>,
    /// The node's own logins.
    pub(super) node: Option<Arc<RegistryConfig>>,
    pub(super) events: Arc<dyn EventRecorder>,
}

/// The image pull secrets of a pod, without those that could not be read.
#[derive(Default)]
pub(super) struct PodPullSecrets(Vec<(SecretIdentity, Keyring)>);

/// A login to try, and which pods may use an image that is pulled with it.
#[derive(Clone)]
pub(super) struct LoginCandidate {
    pub(super) login: Login,
    pub(super) access: Access,
}

/// All logins for one image.
pub(super) struct LoginCandidates {
    /// The logins, in the order in which they are tried.
    pub(super) logins: Vec<LoginCandidate>,
    /// Why some of the node's logins may be missing.
    pub(super) problem: Option<String>,
}

impl LoginSources {
    /// The image pull secrets of a pod. If some are missing or not valid, records an event; the pull continues without them.
    pub(super) async fn of_pod(&self, pod: &Arc<PodObject>) -> PodPullSecrets {
        let (mut found, mut missing) = (PodPullSecrets::default(), Vec::new());
        for reference in pod.spec().image_pull_secrets.iter().flatten() {
            // The API allows a reference without a name, which has no effect.
            let (name, namespace) = (reference.name.as_str(), pod.full_name().namespace());
            if name.is_empty() {
                continue;
            }
            let secret =
                self.secrets.pull_secret(namespace, name).await.map_err(|error| error_chain(&error).to_string());
            match secret.and_then(|secret| keyring(&secret).map(|keyring| (secret.uid, keyring))) {
                Ok((uid, keyring)) => {
                    let (namespace, name) = (namespace.to_owned(), name.to_owned());
                    found.0.push((SecretIdentity { uid, namespace, name, hash: String::new() }, keyring));
                }
                Err(why) => {
                    tracing::debug!(pod.uid = %pod.uid(), secret = name, why, "cannot read an image pull secret");
                    missing.push(name.to_owned());
                }
            }
        }
        if !missing.is_empty() {
            self.events.record(pod, PodEvent::warning("FailedToRetrieveImagePullSecret", no_secrets(&missing)));
        }
        found
    }

    /// The logins for an image. Those of the pod's own secrets come first.
    pub(super) async fn of_image(&self, secrets: &PodPullSecrets, image: &ImageName) -> LoginCandidates {
        let repository = image.repository();
        let mut logins = secrets.candidates(&repository);
        let node = match self.node.clone() {
            Some(node) => blocking(move || Ok(node.current())).await.unwrap_or_default(),
            None => NodeLogins::default(),
        };
        let of_node = node.keyring.of(&repository).into_iter();
        logins.extend(of_node.map(|login| LoginCandidate { login, access: Access::Node }));
        LoginCandidates { logins, problem: node.problem }
    }
}

impl PodPullSecrets {
    fn candidates(&self, repository: &str) -> Vec<LoginCandidate> {
        let of_secret = |(secret, keyring): &(SecretIdentity, Keyring)| {
            let secret = secret.clone();
            keyring.of(repository).into_iter().map(move |login| {
                let secret = SecretIdentity { hash: login.hash(), ..secret.clone() };
                LoginCandidate { login, access: Access::Secrets(vec![secret]) }
            })
        };
        self.0.iter().flat_map(of_secret).collect()
    }

    /// The secrets with a login for a repository. The pod presents them for an image that is already present.
    pub(super) fn identities(&self, repository: &str) -> Vec<SecretIdentity> {
        let secrets = self.candidates(repository).into_iter().map(|candidate| match candidate.access {
            Access::Secrets(secrets) => secrets,
            Access::Node => vec![],
        });
        secrets.flatten().collect()
    }
}

impl Login {
    /// The hash of the login. Records on disk contain the hash instead of the login.
    fn hash(&self) -> String {
        let parts = match self {
            Login::Password { username, password } => ["password", username, password],
            Login::IdentityToken(token) => ["token", "", token],
        };
        hash(serde_json::json!(parts).to_string().as_bytes())
    }
}

fn keyring(secret: &PullSecret) -> Result<Keyring, String> {
    let logins = parse(secret.payload.expose(), secret.format.into()).map_err(|error| error.to_string())?;
    let mut keyring = Keyring::default();
    keyring.add(logins);
    Ok(keyring)
}
