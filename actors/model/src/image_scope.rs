//! Scopes of registry logins (upstream `URLsMatchStr`, kubelet 1.36): `HOST[:PORT][/PATH]`.
//!
//! Each part of the host between two dots is a shell pattern. The port is the same as that of the image, and the path is a prefix of the
//! path of the image. An image pull secret gives each login a scope, and a credential provider plugin names the images for which it is called
//! by scopes.

use std::net::Ipv6Addr;

/// Whether a scope contains a repository, which is `HOST[:PORT]/PATH` in its normal form.
pub fn covers(scope: &str, repository: &str) -> bool {
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

    #[test]
    fn a_scope_contains_its_registry_and_its_path_prefix() {
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
            assert_eq!(covers(scope, repository), expected, "{scope} for {repository}");
        }
    }
}
