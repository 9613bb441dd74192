//! Corrects the streaming lists of kube's watcher, in the requests and in the answers.
//!
//! The watcher requests version 0, and a server may answer that from an old cache: a pod that was deleted would appear again. So a list
//! begins with the newest versions.
//!
//! The watcher also ignores the deletion of an object before the end of the list, and would then show the object for ever. A server sends
//! such a deletion: the end of the list is an event like any other, and the changes of the objects go on until then. So an answer ends
//! at such a deletion, and the watcher begins a new list.

use std::task::{Context, Poll};

use futures_util::future::{self, BoxFuture, FutureExt};
use futures_util::stream::StreamExt;
use http::{Request, Response, Uri};
use http_body_util::{BodyStream, StreamBody};
use kube::api::WatchEvent;
use kube::client::{Body, DynBody};
use serde::de::IgnoredAny;
use tower::Service;

/// The annotation of the bookmark at the end of a list (KEP-3157).
const END: &str = "k8s.io/initial-events-end";

/// The service of a client, with corrected lists.
#[derive(Clone, Debug)]
pub(super) struct StreamingLists<S>(pub(super) S);

impl<S> Service<Request<Body>> for StreamingLists<S>
where
    S: Service<Request<Body>, Response = Response<Box<DynBody>>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if !is_list(request.uri()) {
            return self.0.call(request).boxed();
        }
        let answer = self.0.call(list_newest(request));
        async { Ok(answer.await?.map(until_deletion)) }.boxed()
    }
}

fn is_list(uri: &Uri) -> bool {
    uri.query().unwrap_or_default().split('&').any(|option| option == "sendInitialEvents=true")
}

fn list_newest(mut request: Request<Body>) -> Request<Body> {
    let query = request.uri().query().unwrap_or_default();
    let options =
        query.split('&').map(|option| if option == "resourceVersion=0" { "resourceVersion=" } else { option });
    let path = format!("{}?{}", request.uri().path(), options.collect::<Vec<_>>().join("&"));
    let mut parts = request.uri().clone().into_parts();
    if let Ok(path) = path.parse() {
        parts.path_and_query = Some(path);
    }
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
    request
}

/// The answer up to the first deletion in the list.
fn until_deletion(answer: Box<DynBody>) -> Box<DynBody> {
    let mut events = ListEvents::default();
    let frames = BodyStream::new(answer).take_while(move |frame| {
        let data = frame.as_ref().ok().and_then(|frame| frame.data_ref());
        future::ready(data.is_none_or(|data| events.pass(data)))
    });
    Box::new(StreamBody::new(frames.boxed()))
}

/// The events of an answer, one in each line.
#[derive(Debug, Default)]
struct ListEvents {
    /// The current line, as far as it has come.
    line: Vec<u8>,
    /// Whether the list has ended. The events after it are those of a watch.
    is_over: bool,
}

impl ListEvents {
    /// Reads a part of the answer. Returns false if an object of the list was deleted.
    fn pass(&mut self, data: &[u8]) -> bool {
        for part in data.split_inclusive(|byte| *byte == b'\n') {
            if self.is_over {
                return true;
            }
            self.line.extend_from_slice(part);
            if !part.ends_with(b"\n") {
                continue;
            }
            // Read as the watcher reads it: the type of an event may stand before or after its object.
            match serde_json::from_slice::<WatchEvent<IgnoredAny>>(&self.line) {
                Ok(WatchEvent::Deleted(_)) => {
                    tracing::debug!("an object was deleted during a streaming list, listing again");
                    return false;
                }
                Ok(WatchEvent::Bookmark(bookmark)) => self.is_over = bookmark.metadata.annotations.contains_key(END),
                Ok(WatchEvent::Added(_) | WatchEvent::Modified(_) | WatchEvent::Error(_)) | Err(_) => {}
            }
            self.line.clear();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::stream;
    use k8s_openapi::api::core::v1::Pod;
    use kube::runtime::watcher::{Config, Event, watcher};
    use kube::{Api, Client};

    use super::*;

    fn event(kind: &str, name: &str, more: &str) -> String {
        let metadata = format!(r#""name":"{name}","namespace":"n","uid":"{name}","resourceVersion":"7"{more}"#);
        format!(
            "{{\"type\":\"{kind}\",\"object\":{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{{metadata}}}}}}}\n"
        )
    }

    fn end() -> String {
        event("BOOKMARK", "", r#","annotations":{"k8s.io/initial-events-end":"true"}"#)
    }

    /// The line of an event, with the type after the object.
    fn type_last(line: &str) -> String {
        let (kind, object) = line.trim_end().trim_start_matches('{').split_once(',').unwrap();
        format!("{{{},{kind}}}\n", object.strip_suffix('}').unwrap())
    }

    /// A client of a server that deletes a pod during its first list, and another pod after its second. Each event of its answers is
    /// written by `write`, and their frames have this length. Counts the lists.
    fn client(frame: usize, write: fn(&str) -> String) -> (Client, Arc<AtomicUsize>) {
        let lists = Arc::new(AtomicUsize::new(0));
        let counted = lists.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            assert!(query.contains("resourceVersion=&") || query.ends_with("resourceVersion="), "{query}");
            let is_first = counted.fetch_add(1, Ordering::Relaxed) == 0;
            let deletion = if is_first { event("DELETED", "a", "") } else { String::new() };
            let first = if is_first { event("ADDED", "a", "") } else { String::new() };
            let events = [
                first,
                event("ADDED", "b", ""),
                event("BOOKMARK", "", ""),
                deletion,
                event("ADDED", "c", ""),
                end(),
                event("DELETED", "b", ""),
            ];
            let text: String = events.iter().filter(|line| !line.is_empty()).map(|line| write(line)).collect();
            let parts: Vec<Vec<u8>> = text.into_bytes().chunks(frame).map(<[u8]>::to_vec).collect();
            let frames = stream::iter(parts).flat_map(|part| BodyStream::new(Body::from(part)));
            let frames = frames.chain(stream::pending()).map(|frame| frame.map_err(Into::into));
            let body: Box<DynBody> = Box::new(StreamBody::new(frames.boxed()));
            async { Ok::<_, std::io::Error>(Response::new(body)) }
        });
        (Client::new(StreamingLists(service), "n"), lists)
    }

    async fn assert_no_deletion_is_lost(frame: usize, write: fn(&str) -> String) {
        let (client, lists) = client(frame, write);
        let mut events = watcher(Api::<Pod>::all(client), Config::default().streaming_lists()).boxed();
        let (mut listed, mut deleted) = (Vec::new(), None);
        while deleted.is_none() {
            match events.next().await.unwrap().unwrap() {
                Event::Init => listed.clear(),
                Event::InitApply(pod) => listed.push(pod.metadata.name.unwrap()),
                Event::InitDone => assert_eq!(listed, ["b", "c"], "frames of {frame} bytes"),
                Event::Delete(pod) => deleted = pod.metadata.name,
                Event::Apply(pod) => panic!("{pod:?}"),
            }
        }
        assert_eq!((deleted.as_deref(), lists.load(Ordering::Relaxed)), (Some("b"), 2), "frames of {frame} bytes");
    }

    #[tokio::test]
    async fn deletion_during_a_streaming_list_is_not_lost() {
        for frame in [1, 7, 64, 1 << 20] {
            assert_no_deletion_is_lost(frame, str::to_owned).await;
        }
    }

    /// The members of a JSON object have no order.
    #[tokio::test]
    async fn deletion_is_not_lost_whose_type_comes_after_the_object() {
        assert_eq!(type_last(r#"{"type":"A","object":{"b":{}}}"#), "{\"object\":{\"b\":{}},\"type\":\"A\"}\n");
        for frame in [1, 7, 64, 1 << 20] {
            assert_no_deletion_is_lost(frame, type_last).await;
        }
    }

    #[tokio::test]
    async fn objects_are_listed_in_pages_after_a_list_began_again_three_times() {
        let lists = Arc::new(AtomicUsize::new(0));
        let counted = lists.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = if is_list(request.uri()) {
                counted.fetch_add(1, Ordering::Relaxed);
                event("DELETED", "a", "")
            } else {
                r#"{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"9"},"items":[]}"#.to_owned()
            };
            let frames = BodyStream::new(Body::from(answer.into_bytes())).map(|frame| frame.map_err(Into::into));
            let body: Box<DynBody> = Box::new(StreamBody::new(frames.boxed()));
            async { Ok::<_, std::io::Error>(Response::new(body)) }
        });
        let client = Client::new(StreamingLists(service), "n");
        let mut events = super::super::listing::watch(Api::<Pod>::all(client), None).boxed();
        while !matches!(events.next().await.unwrap().unwrap(), Event::InitDone) {}
        assert_eq!(lists.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn streaming_list_begins_with_the_newest_version() {
        let rewritten = |uri: &str| {
            let request = Request::get(uri).body(Body::empty()).unwrap();
            assert!(is_list(request.uri()));
            list_newest(request).uri().to_string()
        };
        let list = "https://host:6443/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersion=";
        assert_eq!(rewritten(&format!("{list}0")), list);
        assert_eq!(rewritten("/api/v1/pods?sendInitialEvents=true&resourceVersion=0&a=b").split('?').count(), 2);
        assert!(!is_list(&"https://host/api/v1/pods?watch=true&resourceVersion=0".parse().unwrap()));
    }
}
