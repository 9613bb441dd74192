//! The page at `/`: pods, their waits and their transitions, in a browser.
//!
//! ```text
//!  GET /        one document with its styles and script; its content security policy allows no other script
//!               The script sends the token of the page's link with the other requests.
//!  GET /watch   server-sent events: every row once, then changes    node ──> rows ──> watchers (browser tabs)
//!  GET /explain/NAMESPACE/NAME   the details of one pod; the page fetches them again when the pod's row changes
//! ```
//!
//! [`row`] and [`rows`] compute the rows and find changed ones; both are pure. [`watch`] inspects the node once for all
//! watchers, and only while there are any. Text of pods, containers and manifests enters the document as text, never as
//! markup.

mod agent_info;
mod row;
mod rows;
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

use podwright_actors::explain::PodFacts;

use super::view::NodeView;

use agent_info::AgentState;
pub use agent_info::{AgentInfo, ManifestLocation};
use row::RowWait;
pub(super) use watch::MAX_WATCHERS;
use watch::{InspectNode, NodeSnapshot, NodeWatch};

const STYLE: &str = concat!(include_str!("page/page.css"), include_str!("page/detail.css"));
/// One script module. It is split into files only for readers.
const SCRIPT: &str = concat!(
    include_str!("page/helpers.js"),
    include_str!("page/link.js"),
    include_str!("page/pods.js"),
    include_str!("page/list.js"),
    include_str!("page/timeline.js"),
    include_str!("page/detail.js"),
    include_str!("page/node.js"),
    include_str!("page/live.js"),
);
const DOCUMENT: &str = include_str!("page/page.html");
const STYLE_PLACEHOLDER: &str = "/* page.css */";
const SCRIPT_PLACEHOLDER: &str = "/* page.js */";

/// The document and the values of its headers.
struct PageDocument {
    html: String,
    etag: String,
    policy: String,
}

static PAGE: LazyLock<PageDocument> = LazyLock::new(|| {
    let html = DOCUMENT.replacen(STYLE_PLACEHOLDER, STYLE, 1).replacen(SCRIPT_PLACEHOLDER, SCRIPT, 1);
    let hash = |text: &str| BASE64_STANDARD.encode(digest(&SHA256, text.as_bytes()));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash(SCRIPT),
        hash(STYLE)
    );
    let etag = BASE64_URL_SAFE_NO_PAD.encode(&digest(&SHA256, html.as_bytes()).as_ref()[..12]);
    PageDocument { html, etag: format!("\"{etag}\""), policy }
});

/// Inspects a real node.
struct NodeInspector {
    view: NodeView,
    info: AgentInfo,
}

impl InspectNode for NodeInspector {
    fn inspect(&self) -> NodeSnapshot<'_> {
        let NodeInspector { view, info } = self;
        let inspection = view.inspect();
        let (now, node, pods) = (inspection.at(), inspection.node().clone(), inspection.pods());
        let nearest_wait = Box::new(move |pod: &PodFacts| {
            let (wait, short) = inspection.nearest(pod);
            RowWait::new(pod, wait, short, now)
        });
        NodeSnapshot { now, agent: AgentState::new(view, info, &node, &PAGE.etag), node, pods, nearest_wait }
    }
}

/// The routes `/` and `/watch`.
pub(crate) fn router(view: NodeView, info: AgentInfo) -> Router {
    let changes = view.node.status_changes();
    let inspector = NodeInspector { view, info };
    Router::new()
        .route("/", get(page))
        .route("/watch", get(watch))
        .with_state(Arc::new(NodeWatch::new(inspector, changes)))
}

async fn page(headers: HeaderMap) -> Response {
    let page = &*PAGE;
    let head = [
        (CONTENT_SECURITY_POLICY, page.policy.as_str()),
        (ETAG, page.etag.as_str()),
        (CACHE_CONTROL, "no-cache"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    let tags = headers.get(IF_NONE_MATCH).and_then(|tags| tags.to_str().ok()).unwrap_or_default();
    if tags.split(',').any(|tag| tag.trim().trim_start_matches("W/") == page.etag) {
        return (StatusCode::NOT_MODIFIED, head).into_response();
    }
    (head, Html(page.html.as_str())).into_response()
}

async fn watch(State(watch): State<Arc<NodeWatch>>) -> Response {
    let Some(events) = watch.events() else {
        let why = format!("{} pages are open, which is the limit: close one of them\n", MAX_WATCHERS);
        return (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "10")], why).into_response();
    };
    ([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], Body::from_stream(events)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_document_without_external_resources() {
        let html = &PAGE.html;
        assert!(html.contains(&format!("<style>{STYLE}</style>")));
        assert!(html.contains(&format!("<script type=\"module\">{SCRIPT}</script>")));
        assert_eq!((html.matches("<style").count(), html.matches("<script").count()), (1, 1));
        for word in [" onclick=", " onload=", " style=", "innerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!html.contains(word), "{word}");
        }
        let external = html.match_indices("http").filter(|(at, _)| {
            let rest = &html[*at..];
            // The SVG namespace is a name and is never fetched.
            (rest.starts_with("http://") || rest.starts_with("https://"))
                && !rest.starts_with("http://www.w3.org/2000/svg")
        });
        assert_eq!(external.count(), 0);
    }
}
