//! The right to have one stream or one log open. Each pod, each namespace and the node have only a limited number of them.

mod table;

use std::fmt;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;

use podwright_metrics::{NodeApiLimit, NodeApiMetrics, NodeApiResource};
use podwright_model::ids::FullName;
pub use table::ShareLimits;
use table::ShareTable;

/// Gives the rights to have streams or logs open. Clones give the same ones.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    resource: NodeApiResource,
    limits: ShareLimits,
    table: Arc<Mutex<ShareTable>>,
    metrics: NodeApiMetrics,
}

/// The right to have one stream or one log of a pod open. The next client gets it when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    table: Arc<Mutex<ShareTable>>,
    pod: FullName,
}

/// The pod, its namespace or the node has as many streams or logs open as it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FullShare {
    resource: NodeApiResource,
    limit: NodeApiLimit,
    limits: ShareLimits,
    pod: FullName,
}

impl Shares {
    /// Shares of one resource. Refusals are counted in these metrics.
    pub(super) fn new(resource: NodeApiResource, limits: ShareLimits, metrics: NodeApiMetrics) -> Self {
        Shares { resource, limits, table: Arc::default(), metrics }
    }

    /// Takes the right to have one more stream or log of a pod open.
    ///
    /// # Errors
    /// [`FullShare`] if there is none left.
    pub(super) fn take(&self, pod: &FullName) -> Result<Share, FullShare> {
        let taken = self.table.lock().take(self.limits, pod);
        match taken {
            Ok(()) => Ok(Share { table: self.table.clone(), pod: pod.clone() }),
            Err(limit) => {
                self.metrics.refused(self.resource, limit);
                Err(FullShare { resource: self.resource, limit, limits: self.limits, pod: pod.clone() })
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.table.lock().give_back(&self.pod);
    }
}

impl fmt::Display for FullShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, ShareLimits { pod, namespace, node, reserve }) = (plural(self.resource), self.limits);
        match self.limit {
            NodeApiLimit::Pod => write!(f, "{pod} {what} of pod {} are open, which is the limit", self.pod)?,
            NodeApiLimit::Namespace => {
                let name = self.pod.namespace();
                write!(f, "{namespace} {what} of namespace {name} are open, which is the limit")?;
            }
            NodeApiLimit::Node | NodeApiLimit::Client if reserve == 0 => {
                write!(f, "{node} {what} are open on this node, which is the limit")?;
            }
            NodeApiLimit::Node | NodeApiLimit::Client => {
                let name = self.pod.namespace();
                write!(
                    f,
                    "none of the {node} {what} of this node is left for namespace {name} (the last {reserve} are for namespaces that have \
                     none open)"
                )?;
            }
        }
        f.write_str(": close one of them, or try again later")
    }
}

impl IntoResponse for FullShare {
    fn into_response(self) -> Response {
        (StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "1")], format!("{self}\n")).into_response()
    }
}

/// The words for what is open.
fn plural(resource: NodeApiResource) -> &'static str {
    match resource {
        NodeApiResource::Connection => "connections",
        NodeApiResource::Log => "logs",
        NodeApiResource::Review => "reviews",
        NodeApiResource::Stream => "commands and forwarded ports",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_share_is_free_for_the_next_client_and_a_refusal_names_the_limit() {
        let metrics = podwright_metrics::Metrics::new();
        let limits = ShareLimits { pod: 1, namespace: 2, node: 4, reserve: 1 };
        let shares = Shares::new(NodeApiResource::Log, limits, metrics.node_api.clone());
        let of = |namespace: &str, name: &str| shares.take(&FullName::new(namespace, name));
        let first = of("a", "web").unwrap();
        let why = of("a", "web").unwrap_err().to_string();
        assert_eq!(why, "1 logs of pod a/web are open, which is the limit: close one of them, or try again later");
        drop(first);
        let _held = (of("a", "web").unwrap(), of("a", "db").unwrap(), of("b", "web").unwrap());
        let why = of("a", "third").unwrap_err().to_string();
        assert!(why.starts_with("2 logs of namespace a are open, which is the limit: "), "{why}");
        let why = of("b", "db").unwrap_err().to_string();
        let expected = "none of the 4 logs of this node is left for namespace b (the last 1 are for namespaces that have none open): ";
        assert!(why.starts_with(expected), "{why}");
        // The last one is taken too, so the text holds for a namespace without any.
        let _last = of("c", "web").unwrap();
        let why = of("d", "web").unwrap_err().to_string();
        assert!(why.starts_with(&expected.replace("namespace b", "namespace d")), "{why}");
        let answer = of("b", "db").unwrap_err().into_response();
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.headers()[RETRY_AFTER], "1");
        let text = metrics.encode(podwright_metrics::Format::Classic);
        for (limit, count) in [("pod", 1), ("namespace", 1), ("node", 3)] {
            let series = format!("podwright_node_api_refusals_total{{limit=\"{limit}\",resource=\"log\"}} {count}\n");
            assert!(text.contains(&series), "{series}{text}");
        }
    }
}
