//! Watches of collections, with the first list that costs the server least.
//!
//! The objects of a streaming list arrive as events of the watch, so the server does not build the whole list in memory (KEP-3157,
//! `sendInitialEvents`). A server that refuses streaming lists, or that ignores the option and never reports the end of the list, is
//! listed in pages. In both cases, bookmarks keep the version of an idle watch young, so that the server still has it when the
//! watch is started again.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::Stream;
use futures_util::future;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Config, Error, Event, watcher};
use kube::{Api, Resource};
use podwright_kube_api::KubeError;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

/// The number of objects in one page of a list (client-go's default page size, 1.36).
const PAGE_SIZE: u32 = 500;
/// How long the next object or page, or the end, of a list may take. The server waits up to 3 s for its cache before it sends the first
/// object (KEP-3157).
const NEXT_OBJECT: Duration = Duration::from_secs(30);
/// How long a whole streaming list may take. The changes of a busy collection arrive more often than [`NEXT_OBJECT`], so they would
/// hide that a server ignores the option.
const WHOLE_LIST: Duration = Duration::from_secs(120);
/// How often a streaming list may begin again before the objects are listed in pages.
const RESTARTS: u32 = 3;

/// Watches the objects that `fields` selects. After an error, the stream continues with the delays of a client of the API server.
pub(super) fn watch<K>(
    api: Api<K>,
    fields: Option<&str>,
) -> impl Stream<Item = Result<Event<K>, KubeError>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = Config { field_selector: fields.map(str::to_owned), ..Config::default() };
    let streaming = watcher(api.clone(), config.clone().streaming_lists()).boxed();
    events(CollectionWatch { api, config, events: streaming, mode: ListMode::Streaming, list_began: None, restarts: 0 })
}

/// Watches one object. Yields each version of it, and `None` while it does not exist. After an error, the stream continues with the
/// delays of a client of the API server.
pub(super) fn watch_object<K>(
    api: Api<K>,
    name: &str,
) -> impl Stream<Item = Result<Option<K>, KubeError>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = Config::default().fields(&format!("metadata.name={name}"));
    // The list of one object costs little, and an old server would delay a streaming list.
    let listing = watcher(api.clone(), config.clone()).boxed();
    let mut is_listed = false;
    let watch = CollectionWatch { api, config, events: listing, mode: ListMode::Paged, list_began: None, restarts: 0 };
    events(watch).filter_map(move |event| {
        let version = match event {
            Ok(Event::Init) => {
                is_listed = false;
                None
            }
            Ok(Event::InitApply(object)) => {
                is_listed = true;
                Some(Ok(Some(object)))
            }
            Ok(Event::InitDone) => (!is_listed).then_some(Ok(None)),
            Ok(Event::Apply(object)) => Some(Ok(Some(object))),
            Ok(Event::Delete(_)) => Some(Ok(None)),
            Err(error) => Some(Err(error)),
        };
        future::ready(version)
    })
}

fn events<K>(watch: CollectionWatch<K>) -> impl Stream<Item = Result<Event<K>, KubeError>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = stream::unfold(watch, |mut watch| async { Some((watch.next().await?, watch)) });
    events.default_backoff().map_err(KubeError::from)
}

/// Watches all objects. After an error, the stream continues with the delays of a client of the API server. The first list is one of
/// pages, read from the storage of the server. kube-runtime ignores an object that is deleted before the end of a streaming list, and then
/// shows it for ever.
pub fn watch_in_pages<K>(api: Api<K>) -> impl Stream<Item = Result<Event<K>, KubeError>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = Config::default();
    let events = watcher(api.clone(), config.clone().page_size(PAGE_SIZE)).boxed();
    self::events(CollectionWatch { api, config, events, mode: ListMode::Paged, list_began: None, restarts: 0 })
}

struct CollectionWatch<K> {
    api: Api<K>,
    config: Config,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    mode: ListMode,
    /// When the list began, if it has not ended.
    list_began: Option<Instant>,
    /// How often the list was begun again before its end.
    restarts: u32,
}

/// How the objects are listed.
#[derive(Clone, Copy)]
enum ListMode {
    /// As events of the watch.
    Streaming,
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
            let Ok(event) = timeout(self.limit(), self.events.next()).await else {
                match self.mode {
                    ListMode::Streaming => self.list_in_pages("the server does not report the end of a streaming list"),
                    ListMode::Paged => {
                        self.start_again();
                        let message = format!("no page of the list has come within {} s", NEXT_OBJECT.as_secs());
                        return Some(Err(Error::InitialListFailed(kube::Error::Service(message.into()))));
                    }
                }
                continue;
            };
            match (&event, self.mode) {
                // The watcher begins again, without a delay, if the server ends the watch or an object is deleted during the list.
                (Some(Ok(Event::Init)), mode) if self.list_began.is_some() => {
                    self.restarts += 1;
                    if matches!(mode, ListMode::Streaming) && self.restarts >= RESTARTS {
                        self.list_in_pages("streaming lists end early");
                        continue;
                    }
                }
                (Some(Ok(Event::Init)), _) => self.list_began = Some(Instant::now()),
                (Some(Ok(Event::InitDone)), _) => (self.list_began, self.restarts) = (None, 0),
                (Some(Err(error)), ListMode::Streaming) if is_refusal(error) => {
                    self.list_in_pages("the server refuses streaming lists");
                    continue;
                }
                (Some(Ok(Event::InitApply(_) | Event::Apply(_) | Event::Delete(_)) | Err(_)) | None, _) => {}
            }
            return event;
        }
    }

    /// How long the next event may take. A watch without changes has no limit here: the server sends bookmarks, and kube-runtime expects
    /// them.
    fn limit(&self) -> Duration {
        match (self.list_began, self.mode) {
            (None, _) => Duration::MAX,
            (Some(began), ListMode::Streaming) => NEXT_OBJECT.min(WHOLE_LIST.saturating_sub(began.elapsed())),
            (Some(_), ListMode::Paged) => NEXT_OBJECT,
        }
    }

    fn list_in_pages(&mut self, why: &'static str) {
        tracing::info!(resource = %K::plural(&()), "{why}, listing in pages");
        self.mode = ListMode::Paged;
        self.start_again();
    }

    /// Starts with a new list.
    fn start_again(&mut self) {
        (self.list_began, self.restarts) = (None, 0);
        let config = match self.mode {
            ListMode::Streaming => self.config.clone().page_size(PAGE_SIZE).streaming_lists(),
            ListMode::Paged => self.config.clone().page_size(PAGE_SIZE),
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

    /// A client of a server that no longer has the version of its first list: each watch from there ends with status 410.
    fn forgetful_server() -> Client {
        let lists = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            assert!(query.contains("fieldSelector=metadata.name%3Dweb"), "{query}");
            let (code, body) = if !query.contains("watch=true") {
                let version = 1 + 4 * lists.fetch_add(1, Ordering::Relaxed);
                let list = json!({"apiVersion": "v1", "kind": "PodList",
                    "metadata": {"resourceVersion": version.to_string()}, "items": [pod(version)]});
                (200, Body::from(list.to_string().into_bytes()).boxed_unsync())
            } else if query.contains("resourceVersion=1") {
                let status = json!({"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 410,
                    "reason": "Expired", "message": "too old resource version"});
                (410, Body::from(status.to_string().into_bytes()).boxed_unsync())
            } else {
                let frames = stream::iter([event("DELETED", &pod(6))]);
                let frames = frames.flat_map(|text| BodyStream::new(Body::from(text.into_bytes())));
                (200, StreamBody::new(frames.chain(stream::pending())).boxed_unsync())
            };
            async move { Ok::<_, std::io::Error>(Response::builder().status(code).body(body).unwrap()) }
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn watch_of_one_object_starts_again_when_the_server_has_forgotten_its_version() {
        let mut versions = std::pin::pin!(watch_object(Api::<Pod>::all(forgetful_server()), "web"));
        let mut seen = Vec::new();
        // One version, one refusal, and the two versions of the next watch.
        for _ in 0..4 {
            if let Ok(object) = versions.next().await.unwrap() {
                seen.push(object.map_or("none".to_owned(), |pod| pod.metadata.resource_version.unwrap()));
            }
        }
        assert_eq!(seen, ["1", "5", "none"]);
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_ignores_streaming_lists_is_listed_in_pages_after_30_seconds() {
        let (client, lists) = old_server(&[]);
        let took = first_list(client).await;
        assert!((30..31).contains(&took.as_secs()), "{took:?}");
        assert_eq!(lists.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn list_without_an_answer_is_repeated() {
        let lists = Arc::new(AtomicUsize::new(0));
        let counted = lists.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::pending::<Result<Response<Body>, std::io::Error>>()
        });
        let mut events = std::pin::pin!(watch_in_pages(Api::<Pod>::all(Client::new(service, "default"))));
        let started = Instant::now();
        for lost in 1..=2 {
            assert!(matches!(events.next().await, Some(Ok(Event::Init))));
            let Some(Err(error)) = events.next().await else { panic!("no error") };
            assert_eq!(error.to_string(), "no page of the list has come within 30 s");
            assert_eq!(lists.load(Ordering::Relaxed), lost);
        }
        assert!((60..90).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn busy_server_that_ignores_streaming_lists_is_listed_in_pages_after_two_minutes() {
        let (client, lists) = old_server(&[2; 1000]);
        let took = first_list(client).await;
        assert!((119..123).contains(&took.as_secs()), "{took:?}");
        assert_eq!(lists.load(Ordering::Relaxed), 1);
    }
}
