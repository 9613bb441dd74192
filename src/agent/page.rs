//! The page at `/`: the pods, what each waits for, and how it came there, in a browser.
//!
//! ```text
//!  GET /        one document with its styles and script; the policy it is sent with lets nothing else run
//!  GET /watch   server-sent events: every row once, then what changed    node ──> board ──> many clients
//!  GET /explain/NAMESPACE/NAME   what the page shows of one pod; fetched again when its row changes
//! ```
//!
//! [`board`] decides what a row says and which rows changed, and is pure; [`watch`] looks for all who watch, and only
//! while somebody does. Whatever a pod, a container or a manifest says reaches the document as text, never as markup.

mod about;
mod board;
mod nearest;
mod watch;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, RETRY_AFTER,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use ring::digest::{SHA256, digest};

use crate::actors::explain::PodFacts;

use super::view::View;

use about::Agent;
pub use about::{About, Place};
pub(super) use watch::SEATS;
use watch::{Eyes, Seen, Watch};

const STYLE: &str = concat!(include_str!("page/page.css"), include_str!("page/detail.css"));
/// One module: its parts are files only for who reads them.
const SCRIPT: &str = concat!(
    include_str!("page/words.js"),
    include_str!("page/pods.js"),
    include_str!("page/list.js"),
    include_str!("page/timeline.js"),
    include_str!("page/detail.js"),
    include_str!("page/node.js"),
    include_str!("page/live.js"),
);
const DOCUMENT: &str = include_str!("page/page.html");
const STYLE_GOES_HERE: &str = "/* page.css */";
const SCRIPT_GOES_HERE: &str = "/* page.js */";

/// The document as it is sent, and what is said of it.
struct Page {
    html: String,
    etag: String,
    policy: String,
}

static PAGE: LazyLock<Page> = LazyLock::new(|| {
    let html = DOCUMENT.replacen(STYLE_GOES_HERE, STYLE, 1).replacen(SCRIPT_GOES_HERE, SCRIPT, 1);
    let hash = |text: &str| BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    let etag = BASE64_URL_SAFE_NO_PAD.encode(&digest(&SHA256, html.as_bytes()).as_ref()[..12]);
    Page { html, etag: format!("\"{etag}\""), policy }
});

/// Looks at the node.
struct Looker {
    view: View,
    about: About,
}

impl Eyes for Looker {
    fn look(&self) -> Seen<'_> {
        let Looker { view, about } = self;
        let look = view.look();
        let (at, node, pods) = (look.now(), look.node().clone(), look.pods());
        let nearest = Box::new(move |pod: &PodFacts| {
            let (wait, words) = look.nearest(pod);
            nearest::nearest(pod, wait, words, at)
        });
        Seen { at, agent: Agent::now(view, about, &node, &PAGE.etag), node, pods, nearest }
    }
}

/// `/` and `/watch`.
pub(crate) fn router(view: View, about: About) -> Router {
    let changes = view.node.statuses.subscribe();
    let eyes = Looker { view, about };
    Router::new().route("/", get(page)).route("/watch", get(watch)).with_state(Arc::new(Watch::new(eyes, changes)))
}

async fn page(headers: HeaderMap) -> Response {
    let page = &*PAGE;
    let told = [
        (CONTENT_SECURITY_POLICY, page.policy.as_str()),
        (ETAG, page.etag.as_str()),
        (CACHE_CONTROL, "no-cache"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    let has = headers.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok()).unwrap_or_default();
    if has.split(',').any(|tag| tag.trim().trim_start_matches("W/") == page.etag) {
        return (StatusCode::NOT_MODIFIED, told).into_response();
    }
    (told, Html(page.html.as_str())).into_response()
}

async fn watch(State(watch): State<Arc<Watch>>) -> Response {
    let Some(events) = watch.events() else {
        let why = format!("{} others watch already: close a page\n", SEATS);
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "10")], why).into_response();
    };
    ([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], Body::from_stream(events)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_whole_and_brings_nothing_from_elsewhere() {
        let html = &PAGE.html;
        assert!(html.contains(&format!("<style>{STYLE}</style>")));
        assert!(html.contains(&format!("<script type=\"module\">{SCRIPT}</script>")));
        assert_eq!((html.matches("<style").count(), html.matches("<script").count()), (1, 1));
        for word in [" onclick=", " onload=", " style=", "innerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!html.contains(word), "{word}");
        }
        let elsewhere = html.match_indices("http").filter(|(at, _)| {
            let rest = &html[*at..];
            // The names of SVG's elements, which nobody fetches.
            (rest.starts_with("http://") || rest.starts_with("https://"))
                && !rest.starts_with("http://www.w3.org/2000/svg")
        });
        assert_eq!(elsewhere.count(), 0);
    }
}
