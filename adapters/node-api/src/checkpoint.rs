//! `/checkpoint`: writes a checkpoint of a container that runs to a file of the node.

use std::path::PathBuf;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use podwright_model::ids::ContainerId;
use podwright_model::text::error_chain;
use podwright_model::texts::node_api as texts;
use podwright_model::time::Time;
use podwright_ports::RuntimeError;
use serde_json::json;

use super::find;
use super::routes::NodeApi;
use super::served_node::ServedNode;

/// A runtime that writes checkpoints of its containers.
pub trait Checkpoints: Send + Sync + 'static {
    /// Writes a checkpoint of a container to a file of this name, in a directory that only the agent's user may read. Returns its path.
    /// The runtime gives up after `timeout` if that is longer than its default.
    ///
    /// # Errors
    /// [`RuntimeError`]. [`RuntimeError::Unsupported`] if the runtime writes no checkpoints.
    fn checkpoint<'a>(
        &'a self,
        container: &'a ContainerId,
        file: &'a str,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<PathBuf, RuntimeError>>;
}

/// The namespace and the name of a pod, and the name of a container.
type Names = (String, String, String);

pub(super) async fn checkpoint(
    State(api): State<NodeApi>,
    Path(names): Path<Names>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    answer(&*api.queries, api.checkpoints.as_deref(), &names, &query, api.clock.now()).await
}

/// The answer of a kubelet (`checkpoint`, `pkg/kubelet/server/server.go`, 1.36).
async fn answer(
    node: &dyn ServedNode,
    runtime: Option<&dyn Checkpoints>,
    (namespace, name, container): &Names,
    query: &[(String, String)],
    now: Time,
) -> Response {
    let Some(runtime) = runtime else {
        let why = "this runtime writes no checkpoints: use a container runtime that does (--runtime cri=ENDPOINT)\n";
        return (StatusCode::NOT_FOUND, why).into_response();
    };
    let Some(pod) = find::pod(node, namespace, name) else {
        return (StatusCode::NOT_FOUND, texts::NO_POD).into_response();
    };
    if pod.has_terminal(container).is_none() {
        return (StatusCode::NOT_FOUND, texts::no_such_container(container)).into_response();
    }
    let Some(timeout) = timeout(query) else {
        let why = "the parameter timeout is not a number of seconds: use one such as 300\n";
        return (StatusCode::BAD_REQUEST, why).into_response();
    };
    let failed = |why: &str| {
        let text = texts::checkpoint_failed(namespace, name, container, why);
        (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
    };
    let Some(id) = pod.running(container) else { return failed(&texts::container_to_checkpoint(container)) };
    let file = file_name(pod.object.full_name().as_str(), container, now);
    match runtime.checkpoint(&id, &file, timeout).await {
        Ok(path) => Json(json!({"items": [path.display().to_string()]})).into_response(),
        Err(error) => failed(&error_chain(&error).to_string()),
    }
}

/// The time limit of a request, zero by default. The last value counts. `None` if it is not a number of seconds.
fn timeout(query: &[(String, String)]) -> Option<Duration> {
    let last = query.iter().rev().find(|(name, _)| name == "timeout");
    last.map_or(Some(Duration::ZERO), |(_, seconds)| seconds.parse().ok().map(Duration::from_secs))
}

/// The name of the file. It has milliseconds, unlike that of a kubelet, so that two requests in one second have two files.
fn file_name(pod: &str, container: &str, now: Time) -> String {
    format!("checkpoint-{pod}-{container}-{now}.tar")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use futures_util::future::ready;
    use k8s_openapi::api::core::v1::PodStatus;
    use parking_lot::Mutex;
    use podwright_fixtures::containers::{Running, status};
    use podwright_model::ids::{FullName, PodUid};
    use podwright_model::pod::PodObject;
    use podwright_ports::PodRuntimeStatus;

    use super::super::served_node::ServedPod;
    use super::*;

    /// A node with the pod `web` in the namespace `shop`. Its container `main` runs, and `late` does not.
    struct OnePod;

    impl ServedNode for OnePod {
        fn pods(&self) -> Vec<ServedPod> {
            let object = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u"},
                "spec": {"containers": [{"name": "main"}, {"name": "late"}]}});
            let object = PodObject::new(serde_json::from_value(object).unwrap()).unwrap();
            let (uid, full_name) = (object.uid().clone(), object.full_name().clone());
            vec![ServedPod { uid, full_name, object: Some(object), status: None }]
        }

        fn named(&self, name: &FullName) -> Option<ServedPod> {
            self.pods().into_iter().find(|pod| pod.full_name == *name)
        }

        fn known_uid(&self, _: &PodUid) -> Option<PodUid> {
            None
        }

        fn status(&self, _: &PodUid) -> Option<Arc<PodStatus>> {
            None
        }

        fn runtime_status(&self, _: &PodUid) -> Option<Arc<PodRuntimeStatus>> {
            Some(Arc::new(status(&[("main", Running)])))
        }

        fn adopted(&self) -> BoxFuture<'_, ()> {
            ready(()).boxed()
        }

        fn is_housekeeping_late(&self) -> bool {
            false
        }
    }

    /// A runtime that writes checkpoints unless it has an error, and records the calls.
    #[derive(Default)]
    struct Runtime {
        error: Option<RuntimeError>,
        calls: Mutex<Vec<(String, Duration)>>,
    }

    impl Checkpoints for Runtime {
        fn checkpoint<'a>(
            &'a self,
            container: &'a ContainerId,
            file: &'a str,
            timeout: Duration,
        ) -> BoxFuture<'a, Result<PathBuf, RuntimeError>> {
            self.calls.lock().push((container.as_str().to_owned(), timeout));
            let answer = self.error.clone().map_or_else(|| Ok(PathBuf::from("/checkpoints").join(file)), Err);
            ready(answer).boxed()
        }
    }

    async fn ask(runtime: Option<&Runtime>, pod: &str, container: &str, query: &[(&str, &str)]) -> (u16, String) {
        let names = ("shop".to_owned(), pod.to_owned(), container.to_owned());
        let query: Vec<_> = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let runtime = runtime.map(|runtime| runtime as &dyn Checkpoints);
        let answer = answer(&OnePod, runtime, &names, &query, Time::from_secs(1_800_000_000)).await;
        let code = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await.unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn checkpoint_of_a_running_container_is_a_file_of_the_node() {
        let runtime = Runtime::default();
        let (code, body) = ask(Some(&runtime), "web", "main", &[]).await;
        let path = "/checkpoints/checkpoint-web_shop-main-2027-01-15T08:00:00.000Z.tar";
        assert_eq!((code, body), (200, json!({"items": [path]}).to_string()));
        ask(Some(&runtime), "web", "main", &[("timeout", "1"), ("timeout", "300")]).await;
        let call = |seconds| ("main".to_owned(), Duration::from_secs(seconds));
        assert_eq!(*runtime.calls.lock(), [call(0), call(300)]);
    }

    #[tokio::test]
    async fn request_that_cannot_be_performed_gets_the_answer_of_a_kubelet() {
        let runtime = Runtime::default();
        for (pod, container, query, expected) in [
            ("other", "main", &[][..], (404, "pod does not exist")),
            ("web", "other", &[], (404, "container other does not exist")),
            ("web", "late", &[], (500, "checkpointing of shop/web/late failed (container late not found)")),
            (
                "web",
                "main",
                &[("timeout", "soon")],
                (400, "the parameter timeout is not a number of seconds: use one such as 300\n"),
            ),
            (
                "web",
                "main",
                &[("timeout", "-1")],
                (400, "the parameter timeout is not a number of seconds: use one such as 300\n"),
            ),
        ] {
            let (code, body) = ask(Some(&runtime), pod, container, query).await;
            assert_eq!((code, body.as_str()), expected);
        }
        assert!(runtime.calls.lock().is_empty());
        let (code, body) = ask(None, "web", "main", &[]).await;
        assert!(code == 404 && body.contains("--runtime cri=ENDPOINT"), "{body}");
        let unable = Runtime { error: Some(RuntimeError::unsupported("unknown method")), ..Runtime::default() };
        let (code, body) = ask(Some(&unable), "web", "main", &[]).await;
        assert!(
            code == 500
                && body.starts_with("checkpointing of shop/web/main failed (")
                && body.contains("unknown method"),
            "{body}"
        );
    }
}
