//! Which pods may use an image that is present (kubelet 1.36, `KubeletEnsureSecretPulledImages` with the policy
//! `NeverVerifyPreloadedImages`). Pure.
//!
//! What was not pulled by the agent is anybody's. What the agent pulled is for pods that could pull it themselves: for all,
//! if no login or a login of the node was needed, else for those that show a secret with which it was pulled. Others have
//! to pull it, which the registry allows or not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// More secrets are not remembered for one image: whoever shows another one pulls again.
const MAX_SECRETS: usize = 100;

/// How one image came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PulledImage {
    /// The image, by the id that the runtime has for it.
    pub(super) image: String,
    /// By the repositories that it was pulled from: one registry's word says nothing of another's.
    repositories: BTreeMap<String, Access>,
}

/// Who may use an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Access {
    /// Every pod of the node.
    Node,
    /// Those that show one of these.
    Secrets(Vec<SecretMark>),
}

/// A pull secret, told by its identity and by what it holds for an image. The login itself is not kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SecretMark {
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// A hash of the login.
    pub(super) hash: String,
}

impl SecretMark {
    fn is_same_secret(&self, other: &SecretMark) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

/// Whether a pod may use an image without asking the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may.
    Yes,
    /// It may, and what it showed should be remembered: the same login in another secret, or a changed one in the same.
    YesAndKeep(SecretMark),
    /// The registry has to say so.
    AskRegistry,
}

impl PulledImage {
    /// An image of which nothing is known but that the agent pulled it.
    pub(super) fn new(image: &str) -> Self {
        PulledImage { image: image.to_owned(), repositories: BTreeMap::new() }
    }

    /// Whether a pod that shows these secrets may use the image by the name of this repository.
    pub(super) fn judge(&self, repository: &str, shown: &[SecretMark]) -> Verdict {
        let known = match self.repositories.get(repository) {
            Some(Access::Node) => return Verdict::Yes,
            Some(Access::Secrets(known)) => known,
            None => return Verdict::AskRegistry,
        };
        if shown.iter().any(|mark| known.contains(mark)) {
            return Verdict::Yes;
        }
        let similar = |mark: &&SecretMark| known.iter().any(|it| it.hash == mark.hash || it.is_same_secret(mark));
        shown.iter().find(similar).map_or(Verdict::AskRegistry, |mark| Verdict::YesAndKeep(mark.clone()))
    }

    /// Notes with what it was pulled. Whether anything changed.
    pub(super) fn grant(&mut self, repository: &str, access: Access) -> bool {
        let Some(have) = self.repositories.get_mut(repository) else {
            self.repositories.insert(repository.to_owned(), access);
            return true;
        };
        match (have, access) {
            (Access::Node, _) => false,
            (have, Access::Node) => {
                *have = Access::Node;
                true
            }
            (Access::Secrets(known), Access::Secrets(new)) => {
                let before = known.clone();
                for mark in new {
                    known.retain(|it| !it.is_same_secret(&mark));
                    if known.len() < MAX_SECRETS {
                        known.push(mark);
                    }
                }
                *known != before
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPOSITORY: &str = "r.example/a";

    fn mark(name: &str, hash: &str) -> SecretMark {
        SecretMark { uid: format!("uid-{name}"), namespace: "ns".into(), name: name.into(), hash: hash.into() }
    }

    #[test]
    fn an_image_is_for_those_who_could_pull_it() {
        let mut image = PulledImage::new("sha256:1");
        assert_eq!(image.judge(REPOSITORY, &[mark("a", "1")]), Verdict::AskRegistry, "nobody knows how it came");
        assert!(image.grant(REPOSITORY, Access::Secrets(vec![mark("a", "1")])));
        assert!(!image.grant(REPOSITORY, Access::Secrets(vec![mark("a", "1")])));
        for (shown, expected) in [
            (vec![], Verdict::AskRegistry),
            (vec![mark("b", "2")], Verdict::AskRegistry),
            (vec![mark("a", "1")], Verdict::Yes),
            (vec![mark("b", "2"), mark("a", "1")], Verdict::Yes),
            (vec![mark("b", "1")], Verdict::YesAndKeep(mark("b", "1"))),
            (vec![mark("a", "2")], Verdict::YesAndKeep(mark("a", "2"))),
        ] {
            assert_eq!(image.judge(REPOSITORY, &shown), expected, "{shown:?}");
        }
        assert_eq!(image.judge("r.example/b", &[mark("a", "1")]), Verdict::AskRegistry, "another repository");

        assert!(image.grant(REPOSITORY, Access::Secrets(vec![mark("a", "2")])));
        assert_eq!(image.judge(REPOSITORY, &[mark("b", "1")]), Verdict::AskRegistry, "the login was replaced");
        assert!(image.grant(REPOSITORY, Access::Node));
        assert_eq!(image.judge(REPOSITORY, &[]), Verdict::Yes);
        assert!(!image.grant(REPOSITORY, Access::Secrets(vec![mark("a", "1")])), "more than that there is not");
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let mut image = PulledImage::new("sha256:1");
        for n in 0..2 * MAX_SECRETS {
            image.grant(REPOSITORY, Access::Secrets(vec![mark(&n.to_string(), &n.to_string())]));
        }
        assert_eq!(image.judge(REPOSITORY, &[mark("0", "0")]), Verdict::Yes);
        assert_eq!(image.judge(REPOSITORY, &[mark("150", "150")]), Verdict::AskRegistry);
    }
}
