//! Refuses requests of web pages. A browser may have a client certificate of a cluster, and sends it for the requests of any page. Pure.
//!
//! A page cannot read answers of the node API. But it can open a WebSocket to `/exec`, or send a form to `/run`. A browser then names the
//! page in `Origin`. The API server passes this header on, for consoles in a browser, and adds `X-Forwarded-For`, which a page cannot set
//! (upstream `UpgradeAwareHandler`, apimachinery 1.36).

use axum::http::header::{HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The answer to a request that a page of another site sent directly to this node.
pub(super) fn refusal(headers: &HeaderMap) -> Option<Response> {
    let origin = headers.get(ORIGIN).filter(|_| !headers.contains_key(X_FORWARDED_FOR))?;
    let site = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, site)| site);
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    if let (Some(site), Some(host)) = (site, host)
        && site.eq_ignore_ascii_case(host)
    {
        return None;
    }
    let why = "the node API answers no requests of web pages (the request has the header Origin): send it to the API server\n";
    let head = [(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))];
    Some((StatusCode::FORBIDDEN, head, why).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_another_site_reaches_the_node_only_through_the_api_server() {
        let is_refused = |headers: &[(&'static str, &'static str)]| {
            let headers =
                headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            refusal(&HeaderMap::from_iter(headers)).is_some_and(|answer| answer.status() == StatusCode::FORBIDDEN)
        };
        let host = ("host", "node:10250");
        for origin in
            ["https://evil.example", "https://node", "https://node:443", "null", "https://node:10250.evil.example"]
        {
            assert!(is_refused(&[host, ("origin", origin)]), "{origin}");
            assert!(!is_refused(&[host, ("origin", origin), ("x-forwarded-for", "192.0.2.1")]), "{origin}");
        }
        assert!(!is_refused(&[host]), "no browser");
        assert!(!is_refused(&[host, ("origin", "https://Node:10250")]), "a client that names the server as its origin");
    }
}
