//! Decides which pods may use an image that is already present (kubelet 1.36, `KubeletEnsureSecretPulledImages` with the policy
//! `NeverVerifyPreloadedImages`). Pure.
//!
//! Every pod may use an image that the agent did not pull. If the agent pulled an image without a login, or with a login of the
//! node, every pod may use it too. If the agent pulled it with an image pull secret, only pods that present that secret may use
//! it. For any other pod the image is pulled again, so the registry decides.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The most secrets that are recorded for one image. A pod with another secret pulls the image again.
const MAX_SECRETS: usize = 100;

/// The record of one pulled image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PulledImage {
    /// The runtime's ID of the image.
    pub(super) image: String,
    /// The access, by the repository from which the image was pulled. A login for one registry gives no access to another.
    repositories: BTreeMap<String, Access>,
}

/// Which pods may use an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Access {
    /// Every pod of the node.
    Node,
    /// The pods that present one of these secrets.
    Secrets(Vec<SecretIdentity>),
}

/// An image pull secret: its identity, and a hash of its login for the image. The login itself is not recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SecretIdentity {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The hash of the login.
    pub(super) hash: String,
}

impl SecretIdentity {
    fn is_same_secret(&self, other: &SecretIdentity) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

/// Whether a pod may use an image without asking the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AccessDecision {
    /// The pod may use the image.
    Allow,
    /// The pod may use the image, and this secret must be recorded: another secret with a recorded login, or a recorded secret
    /// with a changed login.
    AllowAndRecord(SecretIdentity),
    /// The image must be pulled again for the pod.
    AskRegistry,
}

impl PulledImage {
    /// The record of an image that the agent pulled. No pod has access yet.
    pub(super) fn new(image: &str) -> Self {
        PulledImage { image: image.to_owned(), repositories: BTreeMap::new() }
    }

    /// Whether a pod that presents these secrets may use the image under a name in this repository.
    pub(super) fn decide(&self, repository: &str, presented: &[SecretIdentity]) -> AccessDecision {
        let recorded = match self.repositories.get(repository) {
            Some(Access::Node) => return AccessDecision::Allow,
            Some(Access::Secrets(recorded)) => recorded,
            None => return AccessDecision::AskRegistry,
        };
        if presented.iter().any(|secret| recorded.contains(secret)) {
            return AccessDecision::Allow;
        }
        let is_similar =
            |secret: &&SecretIdentity| recorded.iter().any(|it| it.hash == secret.hash || it.is_same_secret(secret));
        let similar = presented.iter().find(is_similar);
        similar.map_or(AccessDecision::AskRegistry, |secret| AccessDecision::AllowAndRecord(secret.clone()))
    }

    /// Adds access for pulls from a repository. Returns whether the record changed.
    pub(super) fn grant(&mut self, repository: &str, access: Access) -> bool {
        let Some(current) = self.repositories.get_mut(repository) else {
            self.repositories.insert(repository.to_owned(), access);
            return true;
        };
        match (current, access) {
            (Access::Node, _) => false,
            (current, Access::Node) => {
                *current = Access::Node;
                true
            }
            (Access::Secrets(recorded), Access::Secrets(new)) => {
                let before = recorded.clone();
                for secret in new {
                    recorded.retain(|it| !it.is_same_secret(&secret));
                    if recorded.len() < MAX_SECRETS {
                        recorded.push(secret);
                    }
                }
                *recorded != before
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPOSITORY: &str = "r.example/a";

    fn secret(name: &str, hash: &str) -> SecretIdentity {
        SecretIdentity { uid: format!("uid-{name}"), namespace: "ns".into(), name: name.into(), hash: hash.into() }
    }

    #[test]
    fn an_image_pulled_with_a_secret_is_only_for_pods_with_that_secret() {
        let mut image = PulledImage::new("sha256:1");
        assert_eq!(image.decide(REPOSITORY, &[secret("a", "1")]), AccessDecision::AskRegistry, "no access is recorded");
        assert!(image.grant(REPOSITORY, Access::Secrets(vec![secret("a", "1")])));
        assert!(!image.grant(REPOSITORY, Access::Secrets(vec![secret("a", "1")])));
        for (presented, expected) in [
            (vec![], AccessDecision::AskRegistry),
            (vec![secret("b", "2")], AccessDecision::AskRegistry),
            (vec![secret("a", "1")], AccessDecision::Allow),
            (vec![secret("b", "2"), secret("a", "1")], AccessDecision::Allow),
            (vec![secret("b", "1")], AccessDecision::AllowAndRecord(secret("b", "1"))),
            (vec![secret("a", "2")], AccessDecision::AllowAndRecord(secret("a", "2"))),
        ] {
            assert_eq!(image.decide(REPOSITORY, &presented), expected, "{presented:?}");
        }
        assert_eq!(image.decide("r.example/b", &[secret("a", "1")]), AccessDecision::AskRegistry, "another repository");

        assert!(image.grant(REPOSITORY, Access::Secrets(vec![secret("a", "2")])));
        assert_eq!(
            image.decide(REPOSITORY, &[secret("b", "1")]),
            AccessDecision::AskRegistry,
            "the login was replaced"
        );
        assert!(image.grant(REPOSITORY, Access::Node));
        assert_eq!(image.decide(REPOSITORY, &[]), AccessDecision::Allow);
        assert!(!image.grant(REPOSITORY, Access::Secrets(vec![secret("a", "1")])), "every pod has access already");
    }

    #[test]
    fn the_number_of_secrets_recorded_for_an_image_is_limited() {
        let mut image = PulledImage::new("sha256:1");
        for n in 0..2 * MAX_SECRETS {
            image.grant(REPOSITORY, Access::Secrets(vec![secret(&n.to_string(), &n.to_string())]));
        }
        assert_eq!(image.decide(REPOSITORY, &[secret("0", "0")]), AccessDecision::Allow);
        assert_eq!(image.decide(REPOSITORY, &[secret("150", "150")]), AccessDecision::AskRegistry);
    }
}
