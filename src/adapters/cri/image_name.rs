//! Names of images, and what follows from them. Pure.
//!
//! The grammar is that of the distribution project's references: `[HOST[:PORT]/]PATH[:TAG][@DIGEST]`.

/// More is no name (distribution `NameTotalLengthMax`).
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;
const LATEST: &str = "latest";

/// The name of an image as a runtime is asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ImageName(String);

impl ImageName {
    /// Checks a name; one without tag and digest means `latest`. `None` if it is not valid.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            // What follows the colon of a port has a slash.
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

    /// Its repository, `HOST/PATH`, with what is left out for docker's hub (distribution `ParseNormalizedNamed`).
    pub(super) fn repository(&self) -> String {
        let (host, path) = match split_host(self.split().0) {
            (Some("index.docker.io") | None, path) => ("docker.io", path),
            (Some(host), path) => (host, path),
        };
        let library = if host == "docker.io" && !path.contains('/') { "library/" } else { "" };
        format!("{host}/{library}{path}")
    }

    /// One name for all the ways to write it, which is how runtimes list it: the repository with the digest, which leaves a tag
    /// without a meaning, else with the tag.
    pub(super) fn normal(&self) -> String {
        let rest = self.split().1;
        format!("{}{}", self.repository(), rest.find('@').map_or(rest, |digest| &rest[digest..]))
    }

    /// The repository as it was written, and the rest.
    fn split(&self) -> (&str, &str) {
        let tagged = self.0.find('@').unwrap_or(self.0.len());
        // What follows the colon of a port has a slash.
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
    /// Each time: the registry has the last word.
    Always,
    /// When it is not there.
    IfNotPresent,
    /// Never.
    Never,
}

impl PullPolicy {
    /// As the spec says; where it says nothing, a tag that may move is followed (API default of `imagePullPolicy`).
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

/// The registry, if one is named, and the rest.
fn split_host(name: &str) -> (Option<&str>, &str) {
    match name.split_once('/') {
        Some((host, path)) if host.contains(['.', ':', '[']) || host == "localhost" => (Some(host), path),
        _ => (None, name),
    }
}

fn is_name(name: &str) -> bool {
    let (host, path) = split_host(name);
    // A bare one would be taken for the id of an image.
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

/// Lower case letters and digits, in between a dot, one or two underscores, or hyphens.
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
    fn a_name_without_a_tag_means_the_latest() {
        let digest = format!("@sha256:{}", "0a".repeat(32));
        for name in ["busybox", "localhost:5000/a", "registry.example/a/b-c__d.e", "[::1]:5000/a", "Host.Example/a"] {
            assert_eq!(parsed(name), Some(format!("{name}:latest")));
            for suffix in [":1.36-musl", digest.as_str(), &format!(":1{digest}")] {
                assert_eq!(parsed(&format!("{name}{suffix}")), Some(format!("{name}{suffix}")));
            }
        }
    }

    #[test]
    fn a_repository_is_named_in_full() {
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
    fn a_normal_name_is_one_for_all_ways_to_write_it() {
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
    fn what_no_registry_could_have_is_no_name() {
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
    fn a_tag_that_moves_is_followed_unless_told_otherwise() {
        let policy = |policy, image: &str| PullPolicy::of(policy, &ImageName::parse(image).unwrap());
        assert_eq!(policy(None, "a"), PullPolicy::Always);
        assert_eq!(policy(Some(""), "h:1/a:latest"), PullPolicy::Always);
        assert_eq!(policy(None, "a:1"), PullPolicy::IfNotPresent);
        assert_eq!(policy(None, &format!("a@sha256:{}", "0a".repeat(32))), PullPolicy::IfNotPresent);
        assert_eq!(policy(Some("Never"), "a"), PullPolicy::Never);
    }
}
