//! Watches of collections, with the first list that costs the server least.
//!
//! The objects of a streaming list arrive as events of the watch, so the server does not build the whole list in memory (KEP-3157,
//! `sendInitialEvents`). A server that refuses streaming lists, or that ignores the option and never reports the end of the list, is
//! listed in pages. In both cases, bookmarks keep the version of an idle watch young, so that the server still has it when the
//! watch is started again.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::{self, BoxStream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, Error, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

/// The number of objects in one page of a list (client-go's default page size, 1.36).
const PAGE_SIZE: u32 = 500;
/// How long the next object, or the end, of a streaming list may take. The server waits up to 3 s for its cache before it sends the
/// first object (KEP-3157).
const NEXT_OBJECT: Duration = Duration::from_secs(30);
/// How long a whole streaming list may take. The changes of a busy collection arrive more often than [`NEXT_OBJECT`], so they would
/// hide that a server ignores the option.
const WHOLE_LIST: Duration = Duration::from_secs(120);

/// Watches the objects that `fields` selects. After an error, the stream continues with the delays of a client of the API server.
pub(super) fn watch<K>(
    api: Api<K>,
    fields: Option<&str>,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = Config { field_selector: fields.map(str::to_owned), ..Config::default() };
    let streaming = watcher(api.clone(), config.clone().streaming_lists()).boxed();
    let watch = CollectionWatch { api, config, events: streaming, list: ListMode::Streaming { since: None } };
    stream::unfold(watch, |mut watch| async { Some((watch.next().await?, watch)) }).default_backoff()
}

struct CollectionWatch<K> {
    api: Api<K>,
    config: Config,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    list: ListMode,
}

/// How the objects are listed.
enum ListMode {
    /// As events of the watch. `since` is when the list began, if it has not ended.
    Streaming { since: Option<Instant> },
    /// In pages.
    Paged,
}

impl<K> CollectionWatch<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// The next event. The stream of events never ends.
    async fn next(&mut self) -> Option<watcher::Result<Event<K>>> {
        let event = self.next_in_list().await;
        // The watcher of kube would resume at the same version for ever.
        if let Some(Err(Error::WatchStartFailed(kube::Error::Api(status)))) = &event
            && status.code == 410
        {
            self.start_again();
        }
        event
    }

    async fn next_in_list(&mut self) -> Option<watcher::Result<Event<K>>> {
        loop {
            let ListMode::Streaming { since } = &mut self.list else { return self.events.next().await };
            let limit =
                since.map_or(Duration::MAX, |since| NEXT_OBJECT.min(WHOLE_LIST.saturating_sub(since.elapsed())));
            let Ok(event) = timeout(limit, self.events.next()).await else {
                self.list_in_pages("the server does not report the end of a streaming list");
                continue;
            };
            match &event {
                // The watcher begins again if the server ends the watch.
                Some(Ok(Event::Init)) => *since = since.or_else(|| Some(Instant::now())),
                Some(Ok(Event::InitDone)) => *since = None,
                Some(Err(error)) if is_refusal(error) => {
                    self.list_in_pages("the server refuses streaming lists");
                    continue;
                }
                Some(Ok(Event::InitApply(_) | Event::Apply(_) | Event::Delete(_)) | Err(_)) | None => {}
            }
            return event;
        }
    }

    fn list_in_pages(&mut self, why: &'static str) {
        tracing::info!(resource = %K::plural(&()), "{why}, listing in pages");
        self.list = ListMode::Paged;
        self.start_again();
    }

    /// Starts with a new list.
    fn start_again(&mut self) {
        let config = self.config.clone().page_size(PAGE_SIZE);
        let config = match &mut self.list {
            ListMode::Streaming { since } => {
                *since = None;
                config.streaming_lists()
            }
            ListMode::Paged => config,
        };
        self.events = watcher(self.api.clone(), config).boxed();
    }
}

/// Whether the server does not serve streaming lists. The feature `WatchList` may be off.
fn is_refusal(error: &Error) -> bool {
    let code = match error {
        Error::WatchStartFailed(kube::Error::Api(status)) => status.code,
        Error::WatchError(status) => status.code,
        _ => return false,
    };
    matches!(code, 400 | 405 | 422)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use http_body_util::{BodyExt, BodyStream, StreamBody};
    use k8s_openapi::api::core::v1::Pod;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    fn pod(version: usize) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []},
            "metadata": {"name": "web", "namespace": "default", "uid": "u", "resourceVersion": version.to_string()}})
    }

    fn event(kind: &str, object: &Value) -> String {
        format!("{}\n", json!({"type": kind, "object": object}))
    }

    /// A client of a server that ignores `sendInitialEvents`, and changes a pod after each of these pauses. Counts the lists. It needs no
    /// connection, so that time can be paused.
    fn old_server(pauses: &'static [u64]) -> (Client, Arc<AtomicUsize>) {
        let lists = Arc::new(AtomicUsize::new(0));
        let counted = lists.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let body = if query.contains("watch=true") {
                let first = stream::iter([event("ADDED", &pod(1))]);
                let changes = stream::iter(pauses.iter().enumerate()).then(|(number, pause)| async move {
                    tokio::time::sleep(Duration::from_secs(*pause)).await;
                    event("MODIFIED", &pod(number + 2))
                });
                let is_list = query.contains("sendInitialEvents=true");
                let events = if is_list { first.chain(changes).boxed() } else { stream::empty().boxed() };
                let frames = events.flat_map(|text| BodyStream::new(Body::from(text.into_bytes())));
                StreamBody::new(frames.chain(stream::pending())).boxed_unsync()
            } else {
                assert!(query.contains("limit=500"), "{query}");
                counted.fetch_add(1, Ordering::Relaxed);
                let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "9"},
                    "items": [pod(9)]});
                Body::from(list.to_string().into_bytes()).boxed_unsync()
            };
            async { Ok::<_, std::io::Error>(Response::new(body)) }
        });
        (Client::new(service, "default"), lists)
    }

    /// How long the first list takes.
    async fn first_list(client: Client) -> Duration {
        let started = Instant::now();
        let mut events = std::pin::pin!(watch(Api::<Pod>::all(client), None));
        let mut versions = Vec::new();
        loop {
            match events.next().await.unwrap().unwrap() {
                Event::Init => versions.clear(),
                Event::InitApply(pod) => versions.push(pod.metadata.resource_version.unwrap()),
                Event::InitDone => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(versions, ["9"]);
        started.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_ignores_streaming_lists_is_listed_in_pages_after_30_seconds() {
        let (client, lists) = old_server(&[]);
        let took = first_list(client).await;
        assert!((30..31).contains(&took.as_secs()), "{took:?}");
        assert_eq!(lists.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn busy_server_that_ignores_streaming_lists_is_listed_in_pages_after_two_minutes() {
        let (client, lists) = old_server(&[2; 1000]);
        let took = first_list(client).await;
        assert!((119..123).contains(&took.as_secs()), "{took:?}");
        assert_eq!(lists.load(Ordering::Relaxed), 1);
    }
}
