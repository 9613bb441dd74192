//! Requests to the admin endpoints, and the answers they may get.

/// The pods of the node `n1` that gets the requests. They wait, because their containers have no command.
pub const PODS: &str = "apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: a, image: i}, {name: b, image: i}]}
---
apiVersion: v1
kind: Pod
metadata: {name: other, namespace: shop}
spec: {initContainers: [{name: a, image: i}], containers: [{name: b, image: i}]}
";

/// The content type of an event stream. The stream has no end, so only its first event is read.
pub const EVENTS: &str = "text/event-stream";

/// A request.
pub struct Request {
    /// The method, such as `GET`.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Names and values.
    pub headers: Vec<(String, String)>,
}

/// The answer to a request.
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The content type, empty if there is none.
    pub content_type: String,
    /// The body.
    pub body: Vec<u8>,
}

impl Request {
    /// Parses a line with method and target, and a line for each header. `None` if they make no valid request.
    pub fn parse(bytes: &[u8]) -> Option<Request> {
        let mut lines = std::str::from_utf8(bytes).ok()?.lines();
        let (method, target) = lines.next()?.split_once(' ')?;
        let token = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        let visible = |text: &str| text.bytes().all(|b| b > b' ' && b != 0x7f);
        if !token(method) || !target.starts_with('/') || !visible(target) {
            return None;
        }
        let mut headers = Vec::new();
        for line in lines {
            let (name, value) = line.split_once(": ")?;
            let framing = ["connection", "content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade"];
            let ok = token(name) && !framing.contains(&name.to_ascii_lowercase().as_str());
            if !ok || value.trim() != value || value.bytes().any(|b| b < b' ' || b == 0x7f) {
                return None;
            }
            headers.push((name.to_owned(), value.to_owned()));
        }
        Some(Request { method: method.to_owned(), target: target.to_owned(), headers })
    }
}

/// The answer has an expected status and a valid body, and its text is safe to print on a terminal.
pub fn check(request: &Request, answer: &Answer) {
    let Answer { status, content_type, body } = answer;
    let path = request.target.split(['?', '#']).next().unwrap_or_default();
    let what = format!("{} {} answers {status}", request.method, request.target);
    let expected = match *status {
        200 | 400 | 403 | 404 | 405 | 406 | 414 | 431 => true,
        304 => path == "/",
        429 => path == "/recording" || path.starts_with("/logs/"),
        503 => ["/readyz", "/watch"].contains(&path),
        _ => false,
    };
    assert!(expected, "{what}");
    if !["GET", "HEAD"].contains(&request.method.as_str()) {
        assert_ne!(*status, 200, "{what}");
    }
    let mut hosts = request.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host"));
    let foreign = |host: &str| {
        let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
        name.ends_with(".example") || (!host.ends_with(']') && port.bytes().any(|b| !b.is_ascii_digit()))
    };
    if hosts.any(|(_, host)| foreign(host)) {
        assert_ne!(*status, 200, "{what} to a foreign host name");
    }
    let site = request.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("sec-fetch-site"));
    if path != "/" && site.is_some_and(|(_, site)| ["cross-site", "same-site"].contains(&site.as_str())) {
        assert_ne!(*status, 200, "{what} to another site");
    }
    if request.method == "HEAD" {
        // The server drops the body after the router has made it.
        return;
    }
    if content_type.starts_with("application/json") {
        serde_json::from_slice::<serde_json::Value>(body).expect(&what);
    } else if content_type == EVENTS {
        let event = std::str::from_utf8(body).expect(&what).strip_prefix("event: ").expect(&what);
        let (_, data) = event.split_once("\ndata: ").expect(&what);
        serde_json::from_str::<serde_json::Value>(data.strip_suffix("\n\n").expect(&what)).expect(&what);
    } else if content_type.starts_with("text/plain") {
        let text = std::str::from_utf8(body).expect(&what);
        text.lines().for_each(|line| super::assert_plain(line, 4000));
    }
    if *status != 200 {
        assert!(!body.is_empty() || content_type.is_empty(), "{what} without a reason");
        assert!(body.len() <= 8000, "{what} with {} bytes", body.len());
    }
}
