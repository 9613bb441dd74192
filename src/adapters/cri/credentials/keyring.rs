//! Which logins are for which image (upstream `BasicDockerKeyring`, kubelet 1.36).

use std::collections::BTreeMap;
use std::net::Ipv6Addr;

use super::Login;

/// What docker's hub is called in logins, and in normal names of images.
const HUB_OF_LOGINS: &str = "index.docker.io";
const HUB: &str = "docker.io";

/// Logins by what they are for: a registry, which may have wildcards in the parts of its name, with the beginning of a
/// path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::adapters::cri) struct Keyring(BTreeMap<String, Vec<Login>>);

impl Keyring {
    /// Adds logins behind those that there are. What is named may have a scheme, and the version of a registry's API,
    /// which say nothing: `https://index.docker.io/v1/`.
    pub(in crate::adapters::cri) fn add(&mut self, logins: Vec<(String, Login)>) {
        for (place, login) in logins {
            let place = place.strip_prefix("https://").or_else(|| place.strip_prefix("http://")).unwrap_or(&place);
            let (host, path) = place.split_at(place.find('/').unwrap_or(place.len()));
            let path = if path.starts_with("/v1/") || path.starts_with("/v2/") { &path[3..] } else { path };
            let key = if path == "/" { host.to_owned() } else { format!("{host}{path}") };
            self.0.entry(key).or_default().push(login);
        }
    }

    /// The logins to try for a repository, `HOST/PATH` in its normal form: the more of its name one is for, the sooner.
    pub(in crate::adapters::cri) fn of(&self, repository: &str) -> Vec<Login> {
        // In reverse order, because what goes on where another ends comes after that one.
        let fit = self.0.iter().rev().filter(|(place, _)| covers(place, repository));
        let logins: Vec<Login> = fit.flat_map(|(_, logins)| logins).cloned().collect();
        let is_of_hub = repository.split('/').next() == Some(HUB);
        if logins.is_empty() && is_of_hub {
            return self.0.get(HUB_OF_LOGINS).cloned().unwrap_or_default();
        }
        logins
    }
}

/// Whether a login for `place` is for `repository` too.
fn covers(place: &str, repository: &str) -> bool {
    let split = |name: &str| {
        let (host, path) = name.split_at(name.find('/').unwrap_or(name.len()));
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (host, port),
            _ => (host, ""),
        };
        // Those of an address are no pattern.
        let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = address.filter(|address| address.parse::<Ipv6Addr>().is_ok()).unwrap_or(host);
        (host.to_owned(), port.to_owned(), path.to_owned())
    };
    let ((place, place_port, place_path), (host, port, path)) = (split(place), split(repository));
    let (patterns, parts): (Vec<&str>, Vec<&str>) = (place.split('.').collect(), host.split('.').collect());
    place_port == port
        && path.starts_with(&place_path)
        && patterns.len() == parts.len()
        && patterns
            .iter()
            .zip(parts)
            .all(|(pattern, part)| matches(&pattern.chars().collect::<Vec<_>>(), &part.chars().collect::<Vec<_>>()))
}

/// Shell patterns, as for names of files: `*`, `?`, `[a-z]`, `[^a-z]`, and `\` before what means itself. A pattern that is
/// none matches nothing. Patterns may come with a pod, so no pattern takes longer than its length times that of the text.
fn matches(pattern: &[char], text: &[char]) -> bool {
    let (mut p, mut t) = (0, 0);
    // What stands behind the last `*`, and how far that reaches: if the rest does not fit, it takes one more.
    let mut star = None;
    loop {
        if pattern.get(p) == Some(&'*') {
            p += 1;
            star = Some((p, t));
        } else if p == pattern.len() && t == text.len() {
            return true;
        } else if let Some(len) = text.get(t).and_then(|c| fits(&pattern[p..], *c)) {
            (p, t) = (p + len, t + 1);
        } else if let Some((behind, reach)) = star.filter(|(_, reach)| *reach < text.len()) {
            star = Some((behind, reach + 1));
            (p, t) = (behind, reach + 1);
        } else {
            return false;
        }
    }
}

/// Whether one character fits the beginning of a pattern, and how much of that it takes.
fn fits(pattern: &[char], c: char) -> Option<usize> {
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
        ['\\', meant, ..] => (*meant == c).then_some(2),
        [meant, ..] => (*meant == c).then_some(1),
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

    /// A keyring in which each login is named as what it is for.
    fn ring(places: &[&str]) -> Keyring {
        let mut ring = Keyring::default();
        ring.add(places.iter().map(|place| ((*place).to_owned(), token(place))).collect());
        ring
    }

    fn found(places: &[&str], repository: &str) -> Vec<String> {
        let login = |login| match login {
            Login::IdentityToken(name) => name,
            Login::Password { .. } => unreachable!(),
        };
        ring(places).of(repository).into_iter().map(login).collect()
    }

    #[test]
    fn a_login_is_for_its_registry_and_for_what_its_path_begins() {
        for (place, repository, expected) in [
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
            assert_eq!(!found(&[place], repository).is_empty(), expected, "{place} for {repository}");
        }
    }

    #[test]
    fn the_hub_has_several_names() {
        for place in ["https://index.docker.io/v1/", "index.docker.io", "docker.io", "docker.io/library"] {
            assert_eq!(found(&[place], "docker.io/library/busybox"), [place]);
        }
        assert_eq!(
            found(&["docker.io", "index.docker.io"], "docker.io/a/b"),
            ["docker.io"],
            "its own name comes first"
        );
        assert_eq!(found(&["index.docker.io"], "r.example/a"), [""; 0]);
        assert_eq!(found(&["index.docker.io"], "localhost/a"), [""; 0], "nobody else is told");
    }

    #[test]
    fn the_more_a_login_is_for_the_sooner_it_is_tried() {
        let places = ["r.example", "*.example", "r.example/a", "r.example/a/b", "r.example/c"];
        assert_eq!(found(&places, "r.example/a/b/c"), ["r.example/a/b", "r.example/a", "r.example", "*.example"]);
        let mut ring = ring(&["r.example"]);
        ring.add(vec![("r.example".to_owned(), token("second"))]);
        assert_eq!(ring.of("r.example/a"), [token("r.example"), token("second")]);
    }
}
