//! Finds the logins for an image (upstream `BasicDockerKeyring`, kubelet 1.36).

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use super::Login;

/// The host of Docker Hub in logins, and in normal image names.
const HUB_OF_LOGINS: &str = "index.docker.io";
const HUB: &str = "docker.io";

/// Logins by scope. A scope is a registry host, optionally with wildcards, and an optional path prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keyring(BTreeMap<String, Vec<Login>>);

impl Keyring {
    /// Adds logins. A login comes after the earlier ones of the same scope. The scheme and the registry's API version are ignored,
    /// as in `https://index.docker.io/v1/`.
    pub(crate) fn add(&mut self, logins: Vec<(String, Login)>) {
        for (scope, login) in logins {
            let scope = scope.strip_prefix("https://").or_else(|| scope.strip_prefix("http://")).unwrap_or(&scope);
            let (host, path) = scope.split_at(scope.find('/').unwrap_or(scope.len()));
            let path = if path.starts_with("/v1/") || path.starts_with("/v2/") { &path[3..] } else { path };
            let key = if path == "/" { host.to_owned() } else { format!("{host}{path}") };
            self.0.entry(key).or_default().push(login);
        }
    }

    /// The logins to try for a repository, which is `HOST/PATH` in its normal form. A login with a longer scope comes first.
    pub(crate) fn of(&self, repository: &str) -> Vec<Login> {
        // The map is sorted, so a scope comes after its prefixes; the reverse order has longer scopes first.
        let covering = self.0.iter().rev().filter(|(scope, _)| covers(scope, repository));
        let logins: Vec<Login> = covering.flat_map(|(_, logins)| logins).cloned().collect();
        let is_of_hub = repository.split('/').next() == Some(HUB);
        if logins.is_empty() && is_of_hub {
            return self.0.get(HUB_OF_LOGINS).cloned().unwrap_or_default();
        }
        logins
    }
}

/// Whether a scope contains a repository.
fn covers(scope: &str, repository: &str) -> bool {
    let split = |name: &str| {
        let (host, path) = name.split_at(name.find('/').unwrap_or(name.len()));
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (host, port),
            _ => (host, ""),
        };
        // The brackets of an IPv6 address are not a pattern.
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = address.filter(|address| address.parse::<Ipv6Addr>().is_ok()).unwrap_or(host);
        (host.to_owned(), port.to_owned(), path.to_owned())
    };
    let ((scope_host, scope_port, scope_path), (host, port, path)) = (split(scope), split(repository));
    let (patterns, parts): (Vec<&str>, Vec<&str>) = (scope_host.split('.').collect(), host.split('.').collect());
    scope_port == port
        && path.starts_with(&scope_path)
        && patterns.len() == parts.len()
        && patterns
            .iter()
            .zip(parts)
            .all(|(pattern, part)| matches(&pattern.chars().collect::<Vec<_>>(), &part.chars().collect::<Vec<_>>()))
}

/// Whether a shell pattern matches a text: `*`, `?`, `[a-z]`, `[^a-z]`, and `\` to escape a character. A pattern that is not valid
/// matches nothing. The time is at most the length of the pattern times the length of the text, because a pattern may come from a
/// pod's secret.
fn matches(pattern: &[char], text: &[char]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The position after the last `*`, and the end of the text that the `*` matches. If the rest of the pattern does not match,
    // the `*` takes one more character.
    let mut star = None;
    loop {
        if pattern.get(p) == Some(&'*') {
            p += 1;
            star = Some((p, t));
        } else if p == pattern.len() && t == text.len() {
            return true;
        } else if let Some(len) = text.get(t).and_then(|c| match_one(&pattern[p..], *c)) {
            (p, t) = (p + len, t + 1);
        } else if let Some((after_star, end)) = star.filter(|(_, end)| *end < text.len()) {
            star = Some((after_star, end + 1));
            (p, t) = (after_star, end + 1);
        } else {
            return false;
        }
    }
}

/// The number of pattern characters that match one character; `None` if the beginning of the pattern does not match.
fn match_one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['[', class @ ..] => {
            let end = class.iter().position(|c| *c == ']')?;
            let (negated, class) = match &class[..end] {
                ['^', class @ ..] => (true, class),
                class => (false, class),
            };
            (!class.is_empty() && is_in(class, c) != negated).then_some(end + 2)
        }
        ['\\', literal, ..] => (*literal == c).then_some(2),
        [literal, ..] => (*literal == c).then_some(1),
        [] => None,
    }
}

fn is_in(class: &[char], c: char) -> bool {
    match class {
        [from, '-', to, rest @ ..] => (*from..=*to).contains(&c) || is_in(rest, c),
        [one, rest @ ..] => *one == c || is_in(rest, c),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(name: &str) -> Login {
        Login::IdentityToken(name.to_owned())
    }

    /// A keyring in which each login is named for its scope.
    fn keyring(scopes: &[&str]) -> Keyring {
        let mut keyring = Keyring::default();
        keyring.add(scopes.iter().map(|scope| ((*scope).to_owned(), token(scope))).collect());
        keyring
    }

    fn found(scopes: &[&str], repository: &str) -> Vec<String> {
        let login = |login| match login {
            Login::IdentityToken(name) => name,
            Login::Password { .. } => unreachable!(),
        };
        keyring(scopes).of(repository).into_iter().map(login).collect()
    }

    #[test]
    fn a_login_applies_to_its_registry_and_its_path_prefix() {
        for (scope, repository, expected) in [
            ("r.example", "r.example/a/b", true),
            ("r.example", "q.example/a", false),
            ("r.example", "x.r.example/a", false),
            ("r.example", "r.example:5000/a", false),
            ("r.example:5000", "r.example:5000/a", true),
            ("r.example:5000", "r.example/a", false),
            ("r.example/a", "r.example/a/b", true),
            ("r.example/a/", "r.example/a/b", true),
            ("r.example/a/", "r.example/ab", false),
            ("r.example/b", "r.example/a/b", false),
            ("https://r.example", "r.example/a", true),
            ("http://r.example/v1/", "r.example/a", true),
            ("https://r.example/v2/a", "r.example/a/b", true),
            ("*.example", "r.example/a", true),
            ("*.example", "r.q.example/a", false),
            ("*.*.example", "r.q.example/a", true),
            ("r*-?.example", "reg-1.example/a", true),
            ("r*-?.example", "reg-.example/a", false),
            ("r[0-9].example", "r5.example/a", true),
            ("r[^0-9].example", "r5.example/a", false),
            ("r[0-9.example", "r5.example/a", false),
            ("*", "localhost/a", true),
            ("*a*b.example", "xaxaxb.example/a", true),
            ("*a*b.example", "xbxa.example/a", false),
            (r"\*.example", "r.example/a", false),
            ("[::1]:5000", "[::1]:5000/a", true),
            ("", "r.example/a", false),
        ] {
            assert_eq!(!found(&[scope], repository).is_empty(), expected, "{scope} for {repository}");
        }
    }

    #[test]
    fn logins_for_docker_hub_are_found_by_all_its_names() {
        for scope in ["https://index.docker.io/v1/", "index.docker.io", "docker.io", "docker.io/library"] {
            assert_eq!(found(&[scope], "docker.io/library/busybox"), [scope]);
        }
        assert_eq!(
            found(&["docker.io", "index.docker.io"], "docker.io/a/b"),
            ["docker.io"],
            "the normal name comes first"
        );
        assert_eq!(found(&["index.docker.io"], "r.example/a"), [""; 0]);
        assert_eq!(found(&["index.docker.io"], "localhost/a"), [""; 0], "another registry gets no login of Docker Hub");
    }

    #[test]
    fn a_login_with_a_longer_scope_is_tried_first() {
        let scopes = ["r.example", "*.example", "r.example/a", "r.example/a/b", "r.example/c"];
        assert_eq!(found(&scopes, "r.example/a/b/c"), ["r.example/a/b", "r.example/a", "r.example", "*.example"]);
        let mut keyring = keyring(&["r.example"]);
        keyring.add(vec![("r.example".to_owned(), token("second"))]);
        assert_eq!(keyring.of("r.example/a"), [token("r.example"), token("second")]);
    }
}
