//! Finds the permission that a request needs. Pure.
//!
//! The permissions are those of a kubelet with fine-grained authorization (`NewNodeAuthorizerAttributesGetter`,
//! `pkg/kubelet/server/auth.go`, kubelet 1.36): verbs on the subresources of the node. Streams can need another verb.

use axum::http::Method;

/// The permission that a request needs: the verb on one of the subresources of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    /// The verb. Empty for a method that no endpoint has.
    pub(super) verb: &'static str,
    /// The subresources, the one with the fewest rights first.
    pub(super) subresources: Vec<&'static str>,
}

/// The verb that commands, attached terminals and forwarded ports need.
///
/// A WebSocket begins with the method GET. A kubelet takes the verb from the method, so everybody who may `get` the subresource `proxy`
/// of a node, for example to read logs, can run commands in its pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamVerb {
    /// `create`, whatever the method is.
    #[default]
    Create,
    /// The verb of the method: `get` over WebSocket.
    OfMethod,
}

/// The subresource of every path that has no subresource of its own.
const PROXY: &str = "proxy";
/// Paths with a subresource of their own. `nodes/proxy` permits them too.
const FINE_GRAINED: &[(&str, &str)] =
    &[("/pods", "pods"), ("/runningpods", "pods"), ("/healthz", "healthz"), ("/configz", "configz")];
/// Paths with a subresource of their own. `nodes/proxy` does not permit them.
const SEPARATE: &[(&str, &str)] =
    &[("/stats", "stats"), ("/metrics", "metrics"), ("/logs", "log"), ("/checkpoint", "checkpoint")];

/// Paths that run commands in containers or connect to them.
const STREAMS: &[&str] = &["/exec", "/attach", "/portForward", "/run"];

/// The permission that a request with this method and path needs. The path is the undecoded path that also selects the endpoint.
pub(super) fn attributes(method: &Method, path: &str, streams: StreamVerb) -> Attributes {
    let verb = match *method {
        _ if streams == StreamVerb::Create && STREAMS.iter().any(|prefix| is_below(path, prefix)) => "create",
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    };
    let subresource = |table: &[(&str, &'static str)]| {
        table.iter().find(|(prefix, _)| is_below(path, prefix)).map(|(_, subresource)| *subresource)
    };
    let subresources = match subresource(SEPARATE) {
        Some(separate) => vec![separate],
        None => subresource(FINE_GRAINED).into_iter().chain([PROXY]).collect(),
    };
    Attributes { verb, subresources }
}

/// Whether `path` is `prefix` or is below it.
fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_selects_the_subresource() {
        let of = |path: &str| attributes(&Method::GET, path, StreamVerb::Create).subresources;
        for (path, expected) in [
            ("/pods", &["pods", "proxy"][..]),
            ("/pods/", &["pods", "proxy"]),
            ("/runningpods/", &["pods", "proxy"]),
            ("/healthz", &["healthz", "proxy"]),
            ("/healthz/syncloop", &["healthz", "proxy"]),
            ("/configz", &["configz", "proxy"]),
            ("/stats/summary", &["stats"]),
            ("/metrics", &["metrics"]),
            ("/metrics/resource", &["metrics"]),
            ("/metrics/cadvisor", &["metrics"]),
            ("/logs/", &["log"]),
            ("/checkpoint/a/b/c", &["checkpoint"]),
            ("/exec/ns/pod/container", &["proxy"]),
            ("/containerLogs/ns/pod/container", &["proxy"]),
            ("/podsx", &["proxy"]),
            ("/metricsx", &["proxy"]),
            ("//metrics", &["proxy"]),
            ("/%6detrics", &["proxy"]),
            ("/", &["proxy"]),
            ("", &["proxy"]),
        ] {
            assert_eq!(of(path), expected, "{path}");
        }
    }

    #[test]
    fn the_method_selects_the_verb() {
        let of = |method: Method| attributes(&method, "/containerLogs/a/b/c", StreamVerb::Create).verb;
        assert_eq!([Method::GET, Method::POST, Method::PUT].map(of), ["get", "create", "update"]);
        assert_eq!([Method::PATCH, Method::DELETE, Method::HEAD].map(of), ["patch", "delete", ""]);
    }

    #[test]
    fn streams_need_the_right_to_create_unless_the_method_counts() {
        let of = |method: Method, path: &str| {
            [StreamVerb::Create, StreamVerb::OfMethod].map(|streams| attributes(&method, path, streams).verb)
        };
        for path in ["/exec/a/b/c", "/exec/a/b/u/c", "/attach/a/b/c", "/portForward/a/b", "/run/a/b/c"] {
            assert_eq!(of(Method::GET, path), ["create", "get"], "{path}");
            assert_eq!(of(Method::HEAD, path), ["create", ""], "{path}");
            assert_eq!(of(Method::POST, path), ["create", "create"], "{path}");
        }
        for path in ["/containerLogs/a/b/c", "/pods", "/execute/a/b/c", "/runningpods/", "/"] {
            assert_eq!(of(Method::GET, path), ["get", "get"], "{path}");
        }
    }
}
