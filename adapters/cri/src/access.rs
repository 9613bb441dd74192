//! Decides which pods may use an image that is already present, by what is recorded about its pulls (kubelet 1.36,
//! `KubeletEnsureSecretPulledImages`). Pure.
//!
//! If the agent pulled an image without a login, or with a login of the node, every pod may use it. If the agent pulled it with an image
//! pull secret, only pods that present that secret may use it. If a credential provider plugin gave the login for a service account, only
//! pods with that service account may use it. For any other pod the image is pulled again, so the registry decides.
//! [`VerificationPolicy`](super::verification::VerificationPolicy) says for which images the records count.

mod record;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub(super) use record::PullIntentRecord;

/// The most secrets, and the most service accounts, that are recorded for one image. Another pod pulls the image again.
const MAX_HOLDERS: usize = 100;

/// What is known about one pulled image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PulledImage {
    /// The runtime's ID of the image.
    image: String,
    /// Who may use the image, by the repository from which it was pulled. A login for one registry gives no access to another.
    repositories: BTreeMap<String, Holders>,
}

/// The pods that may use an image.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holders {
    /// Every pod of the node.
    Node,
    /// The pods that present one of these secrets, or that have one of these service accounts.
    Some { secrets: Vec<SecretIdentity>, accounts: Vec<AccountIdentity> },
}

/// Which pods may use an image because of one pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Every pod of the node.
    Node,
    /// The pods that present this secret.
    Secret(SecretIdentity),
    /// The pods with this service account.
    Account(AccountIdentity),
}

/// An image pull secret: its identity, and a hash of its login for the image. The login itself is not recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SecretIdentity {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The hash of the login. An earlier agent wrote it as `hash`, and computed it in another way, so it equals no hash of this agent.
    #[serde(rename = "credentialHash", alias = "hash")]
    pub(super) hash: String,
}

impl SecretIdentity {
    fn is_same_secret(&self, other: &SecretIdentity) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

/// A service account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AccountIdentity {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// What a pod presents for an image that is already present.
#[derive(Clone, Debug, Default)]
pub(super) struct Presented {
    pub(super) secrets: Vec<SecretIdentity>,
    pub(super) accounts: Vec<AccountIdentity>,
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
    AskRegistry {
        /// Whether pods with certain service accounts may use the image.
        of_accounts: bool,
    },
}

impl PulledImage {
    /// The record of an image that the agent pulled. No pod has access yet.
    pub(super) fn new(image: &str) -> Self {
        PulledImage { image: image.to_owned(), repositories: BTreeMap::new() }
    }

    /// Whether a pod may use the image under a name in this repository.
    pub(super) fn decide(&self, repository: &str, presented: &Presented) -> AccessDecision {
        let (secrets, accounts) = match self.repositories.get(repository) {
            Some(Holders::Node) => return AccessDecision::Allow,
            Some(Holders::Some { secrets, accounts }) => (secrets, accounts),
            None => return AccessDecision::AskRegistry { of_accounts: false },
        };
        if presented.secrets.iter().any(|secret| secrets.contains(secret))
            || presented.accounts.iter().any(|account| accounts.contains(account))
        {
            return AccessDecision::Allow;
        }
        let is_similar =
            |secret: &&SecretIdentity| secrets.iter().any(|it| it.hash == secret.hash || it.is_same_secret(secret));
        match presented.secrets.iter().find(is_similar) {
            Some(secret) => AccessDecision::AllowAndRecord(secret.clone()),
            None => AccessDecision::AskRegistry { of_accounts: !accounts.is_empty() },
        }
    }

    /// Adds access for pulls from a repository. Returns whether the record changed.
    pub(super) fn grant(&mut self, repository: &str, access: Access) -> bool {
        let nobody = || Holders::Some { secrets: vec![], accounts: vec![] };
        let holders = self.repositories.entry(repository.to_owned()).or_insert_with(nobody);
        let before = holders.clone();
        match (&mut *holders, access) {
            (Holders::Node, _) => {}
            (holders, Access::Node) => *holders = Holders::Node,
            (Holders::Some { secrets, .. }, Access::Secret(secret)) => {
                secrets.retain(|it| !it.is_same_secret(&secret));
                if secrets.len() < MAX_HOLDERS {
                    secrets.push(secret);
                }
            }
            (Holders::Some { accounts, .. }, Access::Account(account)) => {
                if !accounts.contains(&account) && accounts.len() < MAX_HOLDERS {
                    accounts.push(account);
                }
            }
        }
        *holders != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPOSITORY: &str = "r.example/a";
    const ASK: AccessDecision = AccessDecision::AskRegistry { of_accounts: false };

    fn secret(name: &str, hash: &str) -> SecretIdentity {
        SecretIdentity { uid: format!("uid-{name}"), namespace: "ns".into(), name: name.into(), hash: hash.into() }
    }

    fn account(name: &str) -> AccountIdentity {
        AccountIdentity { uid: format!("uid-{name}"), namespace: "ns".into(), name: name.into() }
    }

    fn secrets(secrets: &[SecretIdentity]) -> Presented {
        Presented { secrets: secrets.to_vec(), accounts: vec![] }
    }

    #[test]
    fn an_image_pulled_with_a_secret_is_only_for_pods_with_that_secret() {
        let mut image = PulledImage::new("sha256:1");
        assert_eq!(image.decide(REPOSITORY, &secrets(&[secret("a", "1")])), ASK, "no access is recorded");
        assert!(image.grant(REPOSITORY, Access::Secret(secret("a", "1"))));
        assert!(!image.grant(REPOSITORY, Access::Secret(secret("a", "1"))));
        for (presented, expected) in [
            (vec![], ASK),
            (vec![secret("b", "2")], ASK),
            (vec![secret("a", "1")], AccessDecision::Allow),
            (vec![secret("b", "2"), secret("a", "1")], AccessDecision::Allow),
            (vec![secret("b", "1")], AccessDecision::AllowAndRecord(secret("b", "1"))),
            (vec![secret("a", "2")], AccessDecision::AllowAndRecord(secret("a", "2"))),
        ] {
            assert_eq!(image.decide(REPOSITORY, &secrets(&presented)), expected, "{presented:?}");
        }
        assert_eq!(image.decide("r.example/b", &secrets(&[secret("a", "1")])), ASK, "another repository");

        assert!(image.grant(REPOSITORY, Access::Secret(secret("a", "2"))));
        assert_eq!(image.decide(REPOSITORY, &secrets(&[secret("b", "1")])), ASK, "the login was replaced");
        assert!(image.grant(REPOSITORY, Access::Node));
        assert_eq!(image.decide(REPOSITORY, &Presented::default()), AccessDecision::Allow);
        assert!(!image.grant(REPOSITORY, Access::Secret(secret("a", "1"))), "every pod has access already");
    }

    #[test]
    fn an_image_pulled_for_a_service_account_is_only_for_pods_with_that_account() {
        let mut image = PulledImage::new("sha256:1");
        assert!(image.grant(REPOSITORY, Access::Account(account("a"))));
        assert!(!image.grant(REPOSITORY, Access::Account(account("a"))));
        let with = |accounts: &[AccountIdentity]| Presented { secrets: vec![], accounts: accounts.to_vec() };
        assert_eq!(image.decide(REPOSITORY, &with(&[account("a")])), AccessDecision::Allow);
        let created_again = AccountIdentity { uid: "uid-new".into(), ..account("a") };
        for other in [with(&[]), with(&[account("b")]), with(&[created_again])] {
            let decision = image.decide(REPOSITORY, &other);
            assert_eq!(decision, AccessDecision::AskRegistry { of_accounts: true }, "{other:?}");
        }
        assert!(image.grant(REPOSITORY, Access::Secret(secret("s", "1"))));
        assert_eq!(image.decide(REPOSITORY, &secrets(&[secret("s", "1")])), AccessDecision::Allow);
        assert_eq!(image.decide(REPOSITORY, &with(&[account("a")])), AccessDecision::Allow);
    }

    #[test]
    fn the_number_of_secrets_and_accounts_recorded_for_an_image_is_limited() {
        let mut image = PulledImage::new("sha256:1");
        for n in 0..2 * MAX_HOLDERS {
            image.grant(REPOSITORY, Access::Secret(secret(&n.to_string(), &n.to_string())));
            image.grant(REPOSITORY, Access::Account(account(&n.to_string())));
        }
        let decide = |n: &str| {
            let of_secret = image.decide(REPOSITORY, &secrets(&[secret(n, n)]));
            let accounts = Presented { secrets: vec![], accounts: vec![account(n)] };
            (of_secret, image.decide(REPOSITORY, &accounts))
        };
        let refused = AccessDecision::AskRegistry { of_accounts: true };
        assert_eq!(decide("0"), (AccessDecision::Allow, AccessDecision::Allow));
        assert_eq!(decide("150"), (refused.clone(), refused));
    }
}
