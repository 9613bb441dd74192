//! The logins that a pod may use: those of its pull secrets, then those of the node.

use std::sync::Arc;

use podwright_actors::pod::PodObject;
use podwright_actors::ports::{EventRecorder, PodEvent, PullSecret, PullSecrets};

use super::access::{Access, SecretMark};
use super::credentials::{Keyring, Login, parse};
use super::image_name::ImageName;
use super::inner::blocking;
use super::pull_records::hash;
use super::registry_config::{ReadConfig, RegistryConfig};

/// Where logins come from.
pub(super) struct Logins {
    pub(super) secrets: Arc<dyn PullSecrets>,
    /// The node's own.
    pub(super) node: Option<Arc<RegistryConfig>>,
    pub(super) events: Arc<dyn EventRecorder>,
}

/// The secrets of a pod that could be had.
#[derive(Default)]
pub(super) struct PodSecrets(Vec<(SecretMark, Keyring)>);

/// A login to try, and who may use what it brings.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) login: Login,
    pub(super) access: Access,
}

/// All logins for one image.
pub(super) struct Candidates {
    /// In the order in which they are tried.
    pub(super) logins: Vec<Candidate>,
    /// Why some of the node may be missing.
    pub(super) problem: Option<String>,
}

impl Logins {
    /// The pull secrets of a pod. An event tells of those that are missing or of no use; the pull goes on without them.
    pub(super) async fn of_pod(&self, pod: &Arc<PodObject>) -> PodSecrets {
        let (mut found, mut missing) = (PodSecrets::default(), Vec::new());
        for reference in pod.spec().image_pull_secrets.iter().flatten() {
            // One without a name is allowed and means nothing.
            let (name, namespace) = (reference.name.as_str(), pod.full_name().namespace());
            if name.is_empty() {
                continue;
            }
            let secret = self.secrets.pull_secret(namespace, name).await.map_err(|error| error.to_string());
            match secret.and_then(|secret| keyring(&secret).map(|keyring| (secret.uid, keyring))) {
                Ok((uid, keyring)) => {
                    let (namespace, name) = (namespace.to_owned(), name.to_owned());
                    found.0.push((SecretMark { uid, namespace, name, hash: String::new() }, keyring));
                }
                Err(why) => missing.push(format!("{name:?}: {why}")),
            }
        }
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets, images may not be pulled without them: {}",
                missing.join("; ")
            );
            self.events.record(pod, PodEvent::warning("FailedToRetrieveImagePullSecret", message));
        }
        found
    }

    /// The logins for an image, those of the pod's own secrets first.
    pub(super) async fn of_image(&self, secrets: &PodSecrets, image: &ImageName) -> Candidates {
        let repository = image.repository();
        let mut logins = secrets.candidates(&repository);
        let node = match self.node.clone() {
            Some(node) => blocking(move || Ok(node.look())).await.unwrap_or_default(),
            None => ReadConfig::default(),
        };
        let of_node = node.keyring.of(&repository).into_iter();
        logins.extend(of_node.map(|login| Candidate { login, access: Access::Node }));
        Candidates { logins, problem: node.problem }
    }
}

impl PodSecrets {
    fn candidates(&self, repository: &str) -> Vec<Candidate> {
        let of_secret = |(mark, keyring): &(SecretMark, Keyring)| {
            let mark = mark.clone();
            keyring.of(repository).into_iter().map(move |login| {
                let mark = SecretMark { hash: login.hash(), ..mark.clone() };
                Candidate { login, access: Access::Secrets(vec![mark]) }
            })
        };
        self.0.iter().flat_map(of_secret).collect()
    }

    /// What the pod shows for an image that is present.
    pub(super) fn marks(&self, repository: &str) -> Vec<SecretMark> {
        let marks = self.candidates(repository).into_iter().map(|candidate| match candidate.access {
            Access::Secrets(marks) => marks,
            Access::Node => vec![],
        });
        marks.flatten().collect()
    }
}

impl Login {
    /// Tells logins apart where they must not be kept.
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
