//! The checks of each request before it is routed. Any process of this machine and any page in a browser on it can send a
//! request to a loopback port.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::{HOST, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::agent::client::is_page_host;
use crate::agent::program::Program;
use podwright_http_server::{Access, MAX_ECHO_BYTES};
use podwright_model::text::plain;

/// The checks of one listener.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    /// Whether `Host` must be a loopback name. With TLS, the certificate already proves the name.
    pub(super) is_loopback: bool,
    /// The paths that a client without a token may read. `None` on a listener that authenticates its clients itself.
    pub(super) public: Option<&'static [&'static str]>,
    /// The program that answers.
    pub(super) program: Program,
}

/// What a client may read on loopback without a token: nothing that shows a pod's spec, logs or recordings. `/` is the page
/// without its data.
pub(super) const PUBLIC_ON_LOOPBACK: &[&str] = &["/", "/healthz", "/readyz", "/metrics"];
/// What a client on another machine may read without a token: the page without its data.
pub(super) const PUBLIC_ELSEWHERE: &[&str] = &["/"];

/// Whether the page of this agent or a page of another site sent the request (W3C Fetch Metadata).
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Whether the request is a navigation by the user or a fetch by a script.
const SEC_FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// Where the browser shows the answer: `document` is a tab or a window, and a frame in another page is not.
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Refuses a request that a listener with these checks does not admit.
pub(super) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut response = match guard.refusal(&request) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    // A browser must not interpret the text of a pod as a page or a script.
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

impl Guard {
    fn refusal(&self, request: &Request) -> Option<Response> {
        let (headers, path) = (request.headers(), request.uri().path());
        if is_of_other_site(headers, path) {
            return Some((StatusCode::FORBIDDEN, self.program.refusal_of_other_site()).into_response());
        }
        if self.is_loopback
            && let Some(host) = foreign_host(headers)
        {
            let host = plain(host, MAX_ECHO_BYTES);
            let why = format!("host {host:?} is not a loopback name: use 127.0.0.1 or localhost\n");
            return Some((StatusCode::FORBIDDEN, why).into_response());
        }
        if self.public.is_none_or(|public| public.contains(&path)) {
            return None;
        }
        let why = match request.extensions().get() {
            Some(Access::Full) => return None,
            Some(Access::WrongToken) => self.program.refusal_of_wrong_token(),
            Some(Access::Public) | None => self.program.refusal_without_token(),
        };
        let head = [(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))];
        Some((StatusCode::UNAUTHORIZED, head, why).into_response())
    }
}

/// Whether a page of another site sent the request from a browser on this machine. Such a page cannot read the answer, but it
/// could occupy connections. A link may lead to the page at `/` only, because a frame or window that another page opens also
/// counts as navigation (W3C Fetch Metadata).
fn is_of_other_site(headers: &HeaderMap, path: &str) -> bool {
    let is = |name: &HeaderName, word: &str| headers.get(name).is_some_and(|value| value == word);
    let other_site = is(&SEC_FETCH_SITE, "cross-site") || is(&SEC_FETCH_SITE, "same-site");
    let link = is(&SEC_FETCH_MODE, "navigate") && is(&SEC_FETCH_DEST, "document");
    other_site && !(link && path == "/")
}

/// A `Host` that is not a loopback name. A page of another site can make its own host name resolve to this machine (DNS
/// rebinding) and then read answers; such requests carry that host name.
fn foreign_host(headers: &HeaderMap) -> Option<&str> {
    headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default()).find(|host| !is_local(host))
}

/// Whether a host, with or without a port, is a loopback name or address, or the host of a link to the page. A page that an earlier
/// agent has served gets an answer too, so that it can ask for the new link. A port is digits, or nothing after the colon
/// (RFC 3986, section 3.2).
fn is_local(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or_default(),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let port = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    let is_address = || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    port && (name.eq_ignore_ascii_case("localhost") || is_page_host(name) || is_address())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    #[test]
    fn only_loopback_hosts_are_accepted() {
        for host in ["127.0.0.1:10255", "localhost:80", "LOCALHOST", "[::1]:80", "[::1]", "127.1.2.3", "localhost:"] {
            assert!(is_local(host), "{host}");
        }
        let page = "0011223344556677";
        for (host, expected) in [
            (format!("{page}.localhost:10255"), true),
            (format!("{page}.ip6.localhost:10255"), true),
            (format!("{page}.localhost.evil.example"), false),
            ("app.localhost:10255".to_owned(), false),
        ] {
            assert_eq!(is_local(&host), expected, "{host}");
        }
        let foreign =
            ["evil.example:10255", "", "10.0.0.1", "[fe80::1]:80", "localhost.evil.example", "127.0.0.1.nip.io"];
        let junk =
            ["127.0.0.1:junk", "127.0.0.1:80:80", "localhost:80.evil.example", "[::1]80", "[::1", "[::1].evil.example"];
        for host in foreign.into_iter().chain(junk) {
            assert!(!is_local(host), "{host}");
        }
    }

    #[test]
    fn a_path_outside_the_public_list_needs_the_token() {
        let status = |guard: Guard, path: &str, access: Option<Access>| {
            let mut request = Request::builder().uri(path).header(HOST, "node.example").body(Body::empty()).unwrap();
            if let Some(access) = access {
                request.extensions_mut().insert(access);
            }
            guard.refusal(&request).map(|refusal| refusal.status().as_u16())
        };
        let program = Program::Agent;
        let elsewhere = Guard { is_loopback: false, public: Some(PUBLIC_ELSEWHERE), program };
        let public = Guard { is_loopback: false, public: Some(PUBLIC_ON_LOOPBACK), program };
        for path in ["/pods", "/explain", "/explain/a/b", "/logs/a/b", "/recording", "/watch", "//healthz", "/healthz/"]
        {
            for guard in [elsewhere, public] {
                assert_eq!(status(guard, path, Some(Access::Full)), None, "{path}");
                for access in [None, Some(Access::Public), Some(Access::WrongToken)] {
                    assert_eq!(status(guard, path, access), Some(401), "{path} {access:?}");
                }
            }
        }
        for path in ["/healthz", "/readyz", "/metrics", "/metrics?x=y"] {
            assert_eq!(status(public, path, Some(Access::WrongToken)), None, "{path}");
            assert_eq!(status(elsewhere, path, Some(Access::Public)), Some(401), "{path}");
        }
        assert_eq!(status(elsewhere, "/", Some(Access::Public)), None);
        assert_eq!(
            status(Guard { is_loopback: true, public: None, program }, "/pods", None),
            Some(403),
            "the host is foreign"
        );
        assert_eq!(status(Guard { is_loopback: false, public: None, program }, "/pods", None), None);
    }
}
