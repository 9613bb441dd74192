//! The forms of names in objects of the API.

/// A DNS-1123 label.
pub fn is_label(text: &str) -> bool {
    text.len() <= 63 && lower_alnum_with(text, "-")
}

/// A DNS-1123 subdomain.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|part| lower_alnum_with(part, "-"))
}

/// The name of a DRA driver: a DNS-1123 subdomain of at most 63 bytes (`DriverNameMaxLength`, `resource.k8s.io/v1`,
/// Kubernetes 1.36).
pub fn is_driver_name(text: &str) -> bool {
    text.len() <= 63 && is_subdomain(text)
}

/// A search domain of a resolver: like a subdomain, and `_` is allowed where a letter is.
pub fn is_search_domain(text: &str) -> bool {
    is_subdomain(&text.replace('_', "a"))
}

/// A name of letters, digits and `-_.` behind an optional DNS domain and a slash.
pub fn is_qualified(text: &str) -> bool {
    match text.split_once('/') {
        // Annotation keys may have upper case in their domain, which is compared without case.
        Some((domain, name)) => is_subdomain(&domain.to_ascii_lowercase()) && is_plain(name),
        None => is_plain(text),
    }
}

/// A label's value: empty, or like a name.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_plain(text)
}

/// A UID that is safe as the name of a directory.
pub fn is_uid(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text != "."
        && text != ".."
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// The name of a port: letters, digits and single hyphens, at least one letter.
pub fn is_port_name(text: &str) -> bool {
    text.len() <= 15
        && lower_alnum_with(text, "-")
        && !text.contains("--")
        && text.bytes().any(|b| b.is_ascii_lowercase())
}

fn is_plain(text: &str) -> bool {
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    text.len() <= 63
        && ends(text.bytes().next())
        && ends(text.bytes().last())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn lower_alnum_with(text: &str, inner: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    text.bytes().next().is_some_and(plain)
        && text.bytes().last().is_some_and(plain)
        && text.bytes().all(|b| plain(b) || inner.as_bytes().contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_forms() {
        let (long, longest) = ("a".repeat(64), "a".repeat(63));
        type Check = fn(&str) -> bool;
        let cases: [(Check, &[&str], &[&str]); 8] = [
            (is_search_domain, &["a.b", "_tcp.a_b"], &["", ".", "a.", "A", "a/b"]),
            (is_label, &["a", "a-1", "0"], &["", "-a", "a-", "A", "a.b", "a_b", &long]),
            (is_subdomain, &["a", "a.b-c.d", &long], &["", ".a", "a..b", "a.", "A", "a/b"]),
            (
                is_driver_name,
                &["gpu.example.com", "a", "0-a.b", &longest],
                &["", ".", "a..b", "-a", "a-", "a.-b", "Gpu.example.com", "a_b", "a/b", &long],
            ),
            (is_qualified, &["a", "A_b.c", "x.io/Name", "X.io/n"], &["", "/a", "a/", "a/b/c", "-a", &long]),
            (is_label_value, &["", "a", "A_b"], &["-", "a/b", "a b", &long]),
            (is_uid, &["a", "..a", "1-2_3"], &["", ".", "..", "a/b", "../x", "a b"]),
            (is_port_name, &["http", "a-1"], &["", "1", "a--b", "abcdefghijklmnop", "HTTP"]),
        ];
        for (check, good, bad) in cases {
            assert!(good.iter().all(|text| check(text)), "{good:?}");
            assert_eq!(bad.iter().filter(|text| check(text)).collect::<Vec<_>>(), Vec::<&&str>::new());
        }
    }
}
