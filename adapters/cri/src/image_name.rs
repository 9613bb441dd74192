//! Image names, and the default pull policy that follows from them. Pure.
//!
//! The grammar is that of the distribution project's references: `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`.

/// The longest name without tag and digest (distribution `NameTotalLengthMax`).
const MAX_NAME: usize = 255;
/// The longest tag (distribution `TagRegexp`).
const MAX_TAG: usize = 128;
const LATEST: &str = "latest";

/// A valid image name with a tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ImageName(String);

impl ImageName {
    /// Parses a name. A name without tag and digest gets the tag `latest`. `None` if the name is not valid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            // If a slash follows, the colon belongs to a port.
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        let valid = is_name(name) && tag.is_none_or(is_tag) && digest.is_none_or(is_digest);
        let whole = if tag.is_none() && digest.is_none() { format!("{text}:{LATEST}") } else { text.to_owned() };
        valid.then_some(ImageName(whole))
    }

    /// The name.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The repository, `HOST/PATH`, with the parts that names of Docker Hub may omit (distribution `ParseNormalizedNamed`).
    pub(super) fn repository(&self) -> String {
        let (host, path) = match split_host(self.split().0) {
            (Some("index.docker.io") | None, path) => ("docker.io", path),
            (Some(host), path) => (host, path),
        };
        let library = if host == "docker.io" && !path.contains('/') { "library/" } else { "" };
        format!("{host}/{library}{path}")
    }

    /// The normal form of the name, in which runtimes list images: the repository with the digest, or with the tag if there is no
    /// digest. With a digest the tag has no meaning.
    pub(super) fn normal(&self) -> String {
        let rest = self.split().1;
        format!("{}{}", self.repository(), rest.find('@').map_or(rest, |digest| &rest[digest..]))
    }

    /// The repository as it was written, and the tag and digest.
    fn split(&self) -> (&str, &str) {
        let tagged = self.0.find('@').unwrap_or(self.0.len());
        // If a slash follows, the colon belongs to a port.
        let tag = self.0[..tagged].rfind(':').filter(|colon| !self.0[*colon..tagged].contains('/'));
        self.0.split_at(tag.unwrap_or(tagged))
    }

    fn is_latest(&self) -> bool {
        !self.0.contains('@') && self.0.rsplit(':').next() == Some(LATEST)
    }
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PullPolicy {
    /// Pull before each start of a container.
    Always,
    /// Pull if the image is not present.
    IfNotPresent,
    /// Never pull.
    Never,
}

impl PullPolicy {
    /// The policy of the spec. The default is `Always` for the tag `latest` and `IfNotPresent` otherwise (API default of
    /// `imagePullPolicy`).
    pub(super) fn of(policy: Option<&str>, name: &ImageName) -> Self {
        match policy {
            Some("Always") => PullPolicy::Always,
            Some("IfNotPresent") => PullPolicy::IfNotPresent,
            Some("Never") => PullPolicy::Never,
            _ if name.is_latest() => PullPolicy::Always,
            _ => PullPolicy::IfNotPresent,
        }
    }
}

/// The registry host, if the name has one, and the path.
fn split_host(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':', '[']) || host == "localhost" => (Some(host), path),
        _ => (None, name),
    }
}

fn is_name(name: &str) -> bool {
    let (host, path) = split_host(name);
    // A runtime would take 64 hexadecimal digits for an image ID.
    let is_id = |text: &str| text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    name.len() <= MAX_NAME && host.is_none_or(is_host) && path.split('/').all(is_component) && !is_id(name)
}

fn is_host(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let Some((ip, port)) = rest.split_once(']') else { return false };
        return ip.parse::<std::net::Ipv6Addr>().is_ok()
            && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port));
    }
    let (host, port) = match host.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (host, None),
    };
    let is_label = |label: &str| {
        let ends = label.bytes().next().into_iter().chain(label.bytes().last());
        !label.is_empty()
            && ends.into_iter().all(|b| b.is_ascii_alphanumeric())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    host.split('.').all(is_label) && port.is_none_or(is_port)
}

fn is_port(port: &str) -> bool {
    !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())
}

/// A component of a path: lower case letters and digits, separated by a dot, one or two underscores, or hyphens.
fn is_component(component: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let between = component.split(is_letter).filter(|between| !between.is_empty());
    let good = |between: &str| matches!(between, "." | "_" | "__") || between.bytes().all(|b| b == b'-');
    component.starts_with(is_letter) && component.ends_with(is_letter) && between.into_iter().all(good)
}

fn is_tag(tag: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=MAX_TAG).contains(&tag.len())
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|b| is_word(b) || matches!(b, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let len = match algorithm {
        "sha256" => hex.len() == 64,
        "sha384" => hex.len() == 96,
        "sha512" => hex.len() == 128,
        _ => false,
    };
    len && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<String> {
        ImageName::parse(text).map(|name| name.as_str().to_owned())
    }

    #[test]
    fn an_image_name_without_tag_or_digest_gets_the_tag_latest() {
        let digest = format!("@sha256:{}", "0a".repeat(32));
        for name in ["busybox", "localhost:5000/a", "registry.example/a/b-c__d.e", "[::1]:5000/a", "Host.Example/a"] {
            assert_eq!(parsed(name), Some(format!("{name}:latest")));
            for suffix in [":1.36-musl", digest.as_str(), &format!(":1{digest}")] {
                assert_eq!(parsed(&format!("{name}{suffix}")), Some(format!("{name}{suffix}")));
            }
        }
    }

    #[test]
    fn the_repository_of_an_image_name_has_host_and_full_path() {
        let digest = format!("@sha256:{}", "0a".repeat(32));
        for (name, repository) in [
            ("busybox", "docker.io/library/busybox"),
            ("a/b:1", "docker.io/a/b"),
            ("docker.io/busybox:1", "docker.io/library/busybox"),
            ("index.docker.io/a/b", "docker.io/a/b"),
            ("localhost/a", "localhost/a"),
            ("[::1]:5000/a:1", "[::1]:5000/a"),
            ("registry.example:5000/a/b:1", "registry.example:5000/a/b"),
        ] {
            for name in [name.to_owned(), format!("{name}{digest}")] {
                assert_eq!(ImageName::parse(&name).unwrap().repository(), repository, "{name}");
            }
        }
    }

    #[test]
    fn all_spellings_of_an_image_name_have_one_normal_form() {
        let digest = format!("@sha256:{}", "0a".repeat(32));
        let by_digest = format!("docker.io/a/b{digest}");
        for (name, normal) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("docker.io/busybox:latest", "docker.io/library/busybox:latest"),
            ("h:1/a:2", "h:1/a:2"),
            (&format!("a/b{digest}"), &by_digest),
            (&format!("index.docker.io/a/b:1{digest}"), &by_digest),
        ] {
            assert_eq!(ImageName::parse(name).unwrap().normal(), normal);
        }
    }

    #[test]
    fn invalid_image_names_are_rejected() {
        let long = "a".repeat(256);
        let id = "0a".repeat(32);
        for bad in [
            "",
            ":1",
            "Busybox",
            "a:",
            "a:b:c",
            "a/",
            "/a",
            "a//b",
            "a@sha256:12",
            "a@",
            "-a",
            "a..b",
            "a___b",
            "a b",
            "a:-1",
            "host.example:x/a",
            "https://example.com/a",
            &long,
            &id,
        ] {
            assert_eq!(parsed(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_default_pull_policy_is_always_for_latest_only() {
        let policy = |policy, image: &str| PullPolicy::of(policy, &ImageName::parse(image).unwrap());
        assert_eq!(policy(None, "a"), PullPolicy::Always);
        assert_eq!(policy(Some(""), "h:1/a:latest"), PullPolicy::Always);
        assert_eq!(policy(None, "a:1"), PullPolicy::IfNotPresent);
        assert_eq!(policy(None, &format!("a@sha256:{}", "0a".repeat(32))), PullPolicy::IfNotPresent);
        assert_eq!(policy(Some("Never"), "a"), PullPolicy::Never);
    }
}
