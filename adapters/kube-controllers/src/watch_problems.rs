//! The errors of the watches of a controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{Request, Uri};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use podwright_metrics::WatchMetrics;

/// The errors of the watches that fail, by the plural of their resources. Clones share their state.
#[derive(Clone, Debug)]
pub struct WatchProblems {
    controller: &'static str,
    metrics: WatchMetrics,
    problems: Arc<Mutex<BTreeMap<String, String>>>,
}

impl WatchProblems {
    pub(super) fn new(controller: &'static str, metrics: WatchMetrics) -> Self {
        WatchProblems { controller, metrics, problems: Arc::default() }
    }

    /// A line for each watch that fails now.
    pub fn lines(&self) -> Vec<String> {
        self.problems.lock().iter().map(|(plural, problem)| format!("cannot watch {plural}: {problem}")).collect()
    }

    /// Records the error of a watch. Returns whether the error is new: the watch worked before, or failed for another reason.
    pub(super) fn set(&self, plural: &str, problem: &str) -> bool {
        let mut problems = self.problems.lock();
        self.metrics.fails(self.controller, plural, true);
        let before = problems.insert(plural.to_owned(), problem.to_owned());
        before.as_deref() != Some(problem)
    }

    /// The watch works.
    pub(super) fn clear(&self, plural: &str) {
        let mut problems = self.problems.lock();
        self.metrics.fails(self.controller, plural, false);
        problems.remove(plural);
    }

    /// The watches have ended with their term.
    pub(super) fn reset(&self) {
        let mut problems = self.problems.lock();
        problems.keys().for_each(|plural| self.metrics.fails(self.controller, plural, false));
        problems.clear();
    }

    /// A client for the requests of one watch. When the server begins to answer a watch, the error is cleared. The events alone cannot do
    /// that, because there may be none for hours. The beginning of the answer to a list shows nothing: the list may break off.
    pub(super) fn client_of_watch(&self, client: &Client, plural: &str) -> Client {
        let namespace = client.default_namespace().to_owned();
        let (client, problems, plural) = (client.clone(), self.clone(), plural.to_owned());
        let service = tower::service_fn(move |request: Request<Body>| {
            let (client, problems, plural) = (client.clone(), problems.clone(), plural.clone());
            async move {
                let is_watch = is_watch(request.uri());
                let answer = client.send(request).await?;
                if is_watch && answer.status().is_success() {
                    problems.clear(&plural);
                }
                // The client over this service wraps the errors of the body again, as `client` has done.
                Ok::<_, kube::Error>(answer.map(|body| {
                    body.map_err(|error| match error {
                        kube::Error::Service(source) => source,
                        error => error.into(),
                    })
                }))
            }
        });
        Client::new(service, namespace)
    }
}

/// Whether a request is for the changes of objects, and not for a list of them.
fn is_watch(uri: &Uri) -> bool {
    uri.query().unwrap_or_default().split('&').any(|parameter| matches!(parameter, "watch=true" | "watch=1"))
}
