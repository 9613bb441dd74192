//! The registry logins that a pull may use: those of the pod's image pull secrets, then those of the node's file, then those of its
//! credential provider plugins.

use std::sync::Arc;

use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_model::texts::images::no_secrets;
use podwright_ports::{CredentialProviders, EventRecorder, PodEvent, ProvidedCredential, PullSecret, PullSecrets};

use super::access::{Access, AccountIdentity, Presented, SecretIdentity};
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
    /// The node's credential provider plugins.
    pub(super) providers: Arc<dyn CredentialProviders>,
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
    /// Why some of the node's logins may be missing, as events of the pod.
    pub(super) problems: Vec<PodEvent>,
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
    pub(super) async fn of_image(
        &self,
        pod: &PodObject,
        secrets: &PodPullSecrets,
        image: &ImageName,
    ) -> LoginCandidates {
        let repository = image.repository();
        let mut logins = secrets.candidates(&repository);
        let node = match self.node.clone() {
            Some(node) => blocking(move || Ok(node.current())).await.unwrap_or_default(),
            None => NodeLogins::default(),
        };
        let of_node = node.keyring.of(&repository).into_iter();
        logins.extend(of_node.map(|login| LoginCandidate { login, access: Access::Node }));
        let (of_plugins, of_calls) = self.of_plugins(pod, &repository).await;
        logins.extend(of_plugins);
        let of_file = node.problem.map(|problem| PodEvent::warning("RegistryConfigProblem", problem));
        let of_calls = of_calls.into_iter().map(|problem| PodEvent::warning("CredentialProviderProblem", problem));
        LoginCandidates { logins, problems: of_file.into_iter().chain(of_calls).collect() }
    }

    /// The service account of a pod, if plugins give logins for it. The pod presents it for an image that is already present.
    pub(super) async fn accounts(&self, pod: &PodObject, image: &ImageName) -> Vec<AccountIdentity> {
        let (logins, _) = self.of_plugins(pod, &image.repository()).await;
        let accounts = logins.into_iter().filter_map(|candidate| match candidate.access {
            Access::Account(account) => Some(account),
            Access::Node | Access::Secret(_) => None,
        });
        accounts.collect()
    }

    /// The logins that plugins give for a repository, and the problems of plugins.
    async fn of_plugins(&self, pod: &PodObject, repository: &str) -> (Vec<LoginCandidate>, Vec<String>) {
        let provided = self.providers.credentials(pod, repository).await;
        let mut keyring = Keyring::default();
        keyring.add(provided.credentials.into_iter().filter_map(scope_and_login).collect());
        (keyring.of(repository), provided.problems)
    }
}

impl PodPullSecrets {
    fn candidates(&self, repository: &str) -> Vec<LoginCandidate> {
        let of_secret = |(secret, keyring): &(SecretIdentity, Keyring)| {
            let secret = secret.clone();
            keyring.of(repository).into_iter().map(move |login| {
                let secret = SecretIdentity { hash: login.hash(), ..secret.clone() };
                LoginCandidate { login, access: Access::Secret(secret) }
            })
        };
        self.0.iter().flat_map(of_secret).collect()
    }

    /// What the pod presents for an image that is already present: the secrets with a login for its repository.
    pub(super) fn presented(&self, repository: &str) -> Presented {
        let secrets = self.candidates(repository).into_iter().filter_map(|candidate| match candidate.access {
            Access::Secret(secret) => Some(secret),
            Access::Node | Access::Account(_) => None,
        });
        Presented { secrets: secrets.collect(), accounts: vec![] }
    }
}

impl Login {
    /// The hash of the login. Records on disk contain the hash instead of the login. It is the hash of the kubelet (`hashAuthConfig`,
    /// kubelet 1.36): that of the login in JSON without empty fields.
    fn hash(&self) -> String {
        let fields = match self {
            Login::Password { username, password } => vec![("username", username), ("password", password)],
            Login::IdentityToken(token) => vec![("identitytoken", token)],
        };
        let fields = fields.into_iter().filter(|(_, value)| !value.is_empty());
        let fields: Vec<_> = fields.map(|(name, value)| format!("\"{name}\":{}", go_json(value))).collect();
        hash(format!("{{{}}}", fields.join(",")).as_bytes())
    }
}

/// The login of a plugin with its scope. `None` if it is empty.
fn scope_and_login(credential: ProvidedCredential) -> Option<(String, LoginCandidate)> {
    let ProvidedCredential { scope, username, password, account } = credential;
    let password = String::from_utf8_lossy(password.expose()).into_owned();
    let access = account.map_or(Access::Node, |account| {
        Access::Account(AccountIdentity { uid: account.uid, namespace: account.namespace, name: account.name })
    });
    let is_empty = username.is_empty() && password.is_empty();
    (!is_empty).then_some((scope, LoginCandidate { login: Login::Password { username, password }, access }))
}

/// A text in JSON, as the Go library writes it: it also escapes the characters that have a meaning in HTML and JavaScript.
fn go_json(text: &str) -> String {
    let mut json = serde_json::Value::from(text).to_string();
    for (character, escaped) in
        [('<', "\\u003c"), ('>', "\\u003e"), ('&', "\\u0026"), ('\u{2028}', "\\u2028"), ('\u{2029}', "\\u2029")]
    {
        json = json.replace(character, escaped);
    }
    json
}

fn keyring(secret: &PullSecret) -> Result<Keyring, String> {
    let logins = parse(secret.payload.expose(), secret.format.into()).map_err(|error| error.to_string())?;
    let mut keyring = Keyring::default();
    keyring.add(logins);
    Ok(keyring)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The values are the SHA-256 hashes of the texts in the comments.
    #[test]
    fn a_login_has_the_hash_of_the_kubelet() {
        let password =
            |username: &str, password: &str| Login::Password { username: username.into(), password: password.into() };
        for (login, expected) in [
            // {"username":"user","password":"pass"}
            (password("user", "pass"), "cb54b00fb550d4a17c448149caa29f38f4d5a44fb87c752e43db8160af3a032a"),
            // {"password":"a\u003cb\u0026c\u003e\"\\"}
            (password("", "a<b&c>\"\\"), "f20bfd89e95774a37684e911274084e99d36a171fa0848dc7bdf08dc3dc23548"),
            // {"identitytoken":"t"}
            (Login::IdentityToken("t".into()), "2a24ce227b0a3581f8d1ee6a286513d77c2bcdc4f2eec3f3ebdb4a8d01872567"),
        ] {
            assert_eq!(login.hash(), expected);
        }
    }
}
