//! For which images that are present a pod must have access (upstream `imagePullCredentialsVerificationPolicy`, KEP-2535, kubelet 1.36).
//! Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::image_name::ImageName;

/// For which images that are already present the agent verifies that a pod may use them. If the records of pulls do not show that it may,
/// the image is pulled again with the credentials of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// For no image.
    Never,
    /// For images that the agent, or a kubelet before it, pulled. Images that were put on the node in another way are for all pods.
    #[default]
    NeverPreloaded,
    /// For all images that the list does not name.
    NeverListed(ImageList),
    /// For all images.
    Always,
}

/// A list of images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageList {
    /// The repositories, as `HOST/PATH`.
    repositories: BTreeSet<String>,
    /// What the repositories start with, up to and with a slash.
    prefixes: Vec<String>,
}

/// An entry of a list of images that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseImageListError {
    /// The entry has a wildcard that does not end it.
    #[error("{0:?} has a * that is not all of the last part: write HOST/PATH/*, or name the image without a *")]
    Wildcard(String),
    /// The entry has no registry host.
    #[error("{0:?} names no registry: write HOST/PATH, such as docker.io/library/busybox, or HOST/*")]
    NoHost(String),
    /// The entry is not an image name.
    #[error("{0:?} is not an image name: write HOST/PATH or HOST/PATH/*")]
    Name(String),
    /// The entry has a tag or a digest.
    #[error("{0:?} has a tag or a digest: leave it out, because the list names repositories")]
    Tag(String),
}

impl VerificationPolicy {
    /// Whether a pod must have access to an image of a repository, which is `HOST/PATH` in its normal form. `is_pulled` is whether there is
    /// a record of a pull.
    pub(super) fn verifies(&self, repository: &str, is_pulled: bool) -> bool {
        match self {
            VerificationPolicy::Never => false,
            VerificationPolicy::NeverPreloaded => is_pulled,
            VerificationPolicy::NeverListed(list) => !list.contains(repository),
            VerificationPolicy::Always => true,
        }
    }
}

impl ImageList {
    fn contains(&self, repository: &str) -> bool {
        self.repositories.contains(repository) || self.prefixes.iter().any(|prefix| repository.starts_with(prefix))
    }
}

/// Collects entries of a list.
impl FromIterator<ImageListEntry> for ImageList {
    fn from_iter<T: IntoIterator<Item = ImageListEntry>>(entries: T) -> Self {
        let mut list = ImageList::default();
        for entry in entries {
            match entry {
                ImageListEntry::Repository(repository) => {
                    list.repositories.insert(repository);
                }
                ImageListEntry::Prefix(prefix) => list.prefixes.push(prefix),
            }
        }
        list
    }
}

/// An entry of a list of images: `HOST/PATH`, or `HOST/PATH/*` for all images below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageListEntry {
    /// The images of this repository.
    Repository(String),
    /// The images of the repositories that start with this text, which ends with a slash.
    Prefix(String),
}

impl FromStr for ImageListEntry {
    type Err = ParseImageListError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (prefix, is_prefix) = match text.strip_suffix('*') {
            Some(prefix) if prefix.ends_with('/') => (prefix, true),
            _ => (text, false),
        };
        if prefix.contains('*') {
            return Err(ParseImageListError::Wildcard(text.to_owned()));
        }
        if is_prefix {
            // The name of an image below the prefix is valid, if the prefix is.
            let below = ImageName::parse(&format!("{prefix}a"));
            let below = below.ok_or_else(|| ParseImageListError::Name(text.to_owned()))?;
            // The names of images have a host and, at Docker Hub, a path, so a prefix without them would match nothing.
            let matches = below.repository().starts_with(prefix);
            return if matches {
                Ok(ImageListEntry::Prefix(prefix.to_owned()))
            } else {
                Err(ParseImageListError::NoHost(text.to_owned()))
            };
        }
        let name = ImageName::parse(text).ok_or_else(|| ParseImageListError::Name(text.to_owned()))?;
        let repository = name.repository();
        if repository == text {
            Ok(ImageListEntry::Repository(repository))
        } else if name.as_str() == text {
            Err(ParseImageListError::Tag(text.to_owned()))
        } else {
            Err(ParseImageListError::NoHost(text.to_owned()))
        }
    }
}

impl fmt::Display for ImageListEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageListEntry::Repository(repository) => f.write_str(repository),
            ImageListEntry::Prefix(prefix) => write!(f, "{prefix}*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> ImageList {
        let parsed = |entry: &&str| {
            let parsed: ImageListEntry = entry.parse().unwrap();
            assert_eq!(parsed.to_string(), **entry);
            parsed
        };
        entries.iter().map(parsed).collect()
    }

    #[test]
    fn each_policy_verifies_its_images() {
        let listed = list(&["r.example/a", "r.example:5000/team/*", "docker.io/library/busybox"]);
        for (policy, repository, pulled, preloaded) in [
            (VerificationPolicy::Never, "r.example/b", false, false),
            (VerificationPolicy::default(), "r.example/b", true, false),
            (VerificationPolicy::Always, "r.example/b", true, true),
            (VerificationPolicy::NeverListed(listed.clone()), "r.example/a", false, false),
            (VerificationPolicy::NeverListed(listed.clone()), "r.example/a/b", true, true),
            (VerificationPolicy::NeverListed(listed.clone()), "r.example:5000/team/a/b", false, false),
            (VerificationPolicy::NeverListed(listed.clone()), "r.example:5000/teams/a", true, true),
            (VerificationPolicy::NeverListed(listed), "docker.io/library/busybox", false, false),
            (VerificationPolicy::NeverListed(list(&["r.example/*"])), "r.example/a/b", false, false),
            (VerificationPolicy::NeverListed(list(&[])), "r.example/a", true, true),
        ] {
            let verifies = |is_pulled| policy.verifies(repository, is_pulled);
            assert_eq!((verifies(true), verifies(false)), (pulled, preloaded), "{policy:?} for {repository}");
        }
    }

    #[test]
    fn an_entry_that_would_match_nothing_is_refused() {
        for (entry, says) in [
            ("*", "write HOST/PATH/*"),
            ("r.example/a*", "write HOST/PATH/*"),
            ("*.example/a/*", "write HOST/PATH/*"),
            ("busybox", "names no registry"),
            ("team/*", "names no registry"),
            ("/*", "not an image name"),
            ("", "not an image name"),
            (" r.example/a", "not an image name"),
            ("https://r.example/a", "not an image name"),
            ("r.example/a:1", "leave it out"),
        ] {
            let error = entry.parse::<ImageListEntry>().unwrap_err().to_string();
            assert!(error.contains(says), "{entry}: {error}");
        }
    }
}
