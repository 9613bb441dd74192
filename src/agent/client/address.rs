//! Where a running agent is: its Unix socket, its loopback port, or another machine.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use reqwest::Url;
use ring::digest::{SHA256, digest};

use crate::agent::machine;

/// The socket in an agent's root directory that serves everything.
pub(crate) const SOCKET_FILE: &str = "admin.sock";
/// The file in an agent's root directory that holds the link to its page.
pub(crate) const LINK_FILE: &str = "admin.link";

/// What precedes the token in the fragment of a link. A browser sends the fragment to no server.
const FRAGMENT: &str = "/#token=";

/// The link to the page of an agent that listens on this address. A host name of this machine replaces an address that
/// stands for all addresses.
///
/// On a loopback address, any program can listen while the agent is away, and leave a service worker in the browser, which would read
/// the token of the next link to the same origin. So the host name of each link is new, and no other program can know it.
pub(crate) fn page_link(address: SocketAddr, tls: bool, secret: &str) -> String {
    let scheme = if tls { "https" } else { "http" };
    let port = address.port();
    let host = match (page_domain(address.ip()), tls) {
        (Some(domain), false) => format!("{}.{domain}:{port}", page_label(secret)),
        _ if address.ip().is_unspecified() => format!("{}:{port}", machine::node_name()),
        _ => address.to_string(),
    };
    format!("{scheme}://{host}{FRAGMENT}{secret}")
}

/// The token of a link, if the link leads to the page of this loopback address.
pub(super) fn token_of_link(link: &str, address: SocketAddr) -> Option<&str> {
    let (_, secret) = link.trim().split_once(FRAGMENT)?;
    (page_link(address, false, secret) == link.trim()).then_some(secret)
}

/// Whether a host name is one that links have: a label that nobody can guess, in a domain of a loopback address.
pub(crate) fn is_page_host(name: &str) -> bool {
    let is_label = |label: &str| {
        label.len() == 2 * LABEL_BYTES && label.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let known = name.split_once('.');
    known.is_some_and(|(label, domain)| is_label(label) && [DOMAIN_V4, DOMAIN_V6].contains(&domain))
}

/// The domains of links to 127.0.0.1 and to ::1. Browsers resolve every name below `localhost` to the loopback addresses themselves (RFC
/// 6761, section 6.3).
const DOMAIN_V4: &str = "localhost";
const DOMAIN_V6: &str = "ip6.localhost";
/// The bytes of a label, which it has as hexadecimal digits: 64 bits. A program can prepare only the few names that it tries to guess.
const LABEL_BYTES: usize = 8;

/// The domain of the links to an address. `None` for an address to which browsers do not resolve names below `localhost`.
fn page_domain(ip: IpAddr) -> Option<&'static str> {
    match ip {
        IpAddr::V4(Ipv4Addr::LOCALHOST) => Some(DOMAIN_V4),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => Some(DOMAIN_V6),
        _ => None,
    }
}

/// The other address to which browsers may connect for the host name of a link: they resolve names below `localhost` to both loopback
/// addresses. `None` if the link has an address.
pub(crate) fn other_page_address(address: SocketAddr, tls: bool) -> Option<SocketAddr> {
    page_domain(address.ip()).filter(|_| !tls)?;
    let other: IpAddr = if address.is_ipv4() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    Some(SocketAddr::new(other, address.port()))
}

/// The first label of the host name in a link. It does not reveal the secret.
fn page_label(secret: &str) -> String {
    let sum = digest(&SHA256, format!("origin of {secret}").as_bytes());
    sum.as_ref().iter().take(LABEL_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// The address of a running agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AgentAddress {
    /// A Unix socket.
    Socket(PathBuf),
    /// A port of this machine, without TLS.
    Loopback(SocketAddr),
    /// Any machine, with TLS.
    Https(Url),
}

impl AgentAddress {
    /// The socket of the agent that has this root directory.
    pub(crate) fn of_root(root: &Path) -> Self {
        AgentAddress::Socket(root.join(SOCKET_FILE))
    }

    /// The URL of the agent's page. The host of a socket has no meaning.
    pub(super) fn url(&self) -> Url {
        let url = match self {
            AgentAddress::Socket(_) => "http://localhost".to_owned(),
            AgentAddress::Loopback(address) => format!("http://{address}"),
            AgentAddress::Https(url) => return url.clone(),
        };
        Url::parse(&url).expect("an address and a port make a URL")
    }
}

impl fmt::Display for AgentAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentAddress::Socket(path) => write!(f, "{}", path.display()),
            AgentAddress::Loopback(address) => address.fmt(f),
            AgentAddress::Https(url) => f.write_str(url.as_str().trim_end_matches('/')),
        }
    }
}

impl FromStr for AgentAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix://").or_else(|| text.starts_with('/').then_some(text)) {
            if !path.starts_with('/') {
                return Err("not an absolute path: write unix:///var/lib/podwright/admin.sock".to_owned());
            }
            return Ok(AgentAddress::Socket(path.into()));
        }
        if text.starts_with("https://") {
            let url = Url::parse(text).map_err(|error| format!("not a URL ({error}): write https://NODE:PORT"))?;
            let has_user = !url.username().is_empty() || url.password().is_some();
            if url.path() != "/" || url.query().is_some() || url.fragment().is_some() || has_user {
                return Err("the URL has more than a host and a port: write https://NODE:PORT".to_owned());
            }
            return Ok(AgentAddress::Https(url));
        }
        let address = loopback_or_other(text.strip_prefix("http://").unwrap_or(text))?;
        if !address.ip().is_loopback() {
            return Err(format!("{} is not a loopback address and needs TLS: write https://{address}", address.ip()));
        }
        Ok(AgentAddress::Loopback(address))
    }
}

/// Parses an IP address with a port. `localhost` stands for 127.0.0.1.
///
/// # Errors
/// The error text with an example.
pub(crate) fn loopback_or_other(text: &str) -> Result<SocketAddr, String> {
    let numeric = match text.strip_prefix("localhost:") {
        Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
        None => text.to_owned(),
    };
    numeric.parse().map_err(|_| "not an address with a port: write 127.0.0.1:10255 or [::1]:10255".to_owned())
}

#[cfg(test)]
mod tests {
    use podwright_http_server::Token;

    use super::*;

    #[test]
    fn addresses_of_all_kinds_are_parsed_and_printed() {
        for (text, printed) in [
            ("unix:///run/a.sock", "/run/a.sock"),
            ("/run/a.sock", "/run/a.sock"),
            ("localhost:80", "127.0.0.1:80"),
            ("http://[::1]:80", "[::1]:80"),
            ("https://node.example:10250", "https://node.example:10250"),
            ("https://10.0.0.1:10250/", "https://10.0.0.1:10250"),
        ] {
            assert_eq!(text.parse::<AgentAddress>().unwrap().to_string(), printed);
        }
        for (bad, says) in [
            ("10.0.0.1:80", "https://10.0.0.1:80"),
            ("0.0.0.0:80", "TLS"),
            ("unix://run/a.sock", "absolute"),
            ("https://", "https://NODE:PORT"),
            ("https://node/#token=x", "https://NODE:PORT"),
            ("https://user@node", "https://NODE:PORT"),
            ("https://:password@node", "https://NODE:PORT"),
            ("nowhere", "127.0.0.1:10255"),
        ] {
            let error = bad.parse::<AgentAddress>().unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    #[test]
    fn the_token_of_a_link_is_only_for_the_address_of_the_link() {
        let address = "127.0.0.1:10255".parse().unwrap();
        let link = page_link(address, false, "secret");
        assert!(link.ends_with(".localhost:10255/#token=secret"), "{link}");
        assert_eq!(token_of_link(&format!("{link}\n"), address), Some("secret"));
        for other in ["127.0.0.1:1025", "127.0.0.2:10255", "[::1]:10255"] {
            let other = other.parse().unwrap();
            assert_eq!(token_of_link(&link, other), None, "{other}");
            assert_eq!(token_of_link(&page_link(other, false, "secret"), other), Some("secret"), "{other}");
        }
        assert_eq!(token_of_link(&link.replace("=secret", "=other"), address), None);
        assert_eq!(token_of_link(&page_link(address, true, "secret"), address), None);
        assert!(!page_link("0.0.0.0:1".parse().unwrap(), true, "secret").contains("0.0.0.0"));
    }

    /// The table of the agent cuts off longer lines.
    #[test]
    fn a_loopback_link_fits_into_a_line_of_a_terminal() {
        let token = Token::random().unwrap();
        for address in ["127.0.0.1:65535", "[::1]:65535"] {
            let line = format!("page: {}", page_link(address.parse().unwrap(), false, token.secret()));
            assert!(line.len() <= 80, "{line}");
        }
    }

    #[test]
    fn a_link_with_a_host_name_has_two_addresses() {
        let other = |address: &str, tls| other_page_address(address.parse().unwrap(), tls).map(|it| it.to_string());
        assert_eq!(other("127.0.0.1:80", false).as_deref(), Some("[::1]:80"));
        assert_eq!(other("[::1]:80", false).as_deref(), Some("127.0.0.1:80"));
        for (address, tls) in [("127.0.0.1:80", true), ("127.0.0.2:80", false), ("0.0.0.0:80", true)] {
            assert_eq!(other(address, tls), None, "{address}");
        }
    }

    #[test]
    fn the_host_of_a_loopback_link_is_new_with_each_token() {
        let host = |address: &str, secret: &str| {
            let link = page_link(address.parse().unwrap(), false, secret);
            let host = link.strip_prefix("http://").unwrap().split_once(FRAGMENT).unwrap().0.to_owned();
            host.rsplit_once(':').unwrap().0.to_owned()
        };
        for address in ["127.0.0.1:80", "[::1]:80"] {
            assert!(is_page_host(&host(address, "a")), "{address}");
            assert_ne!(host(address, "a"), host(address, "b"), "{address}");
        }
        assert_ne!(host("127.0.0.1:80", "a"), host("[::1]:80", "a"));
        let label = page_label("a");
        for other in [
            "localhost",
            "x.localhost",
            &format!("{label}.localhost.example"),
            &format!("{label}.example"),
            &format!("{label}a.localhost"),
            &format!("a.{label}.localhost"),
            &label.to_uppercase(),
        ] {
            assert!(!is_page_host(other), "{other}");
        }
    }
}
