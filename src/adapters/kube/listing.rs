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
use tokio::time::timeout;

/// The number of objects in one page of a list (client-go's default page size, 1.36).
const PAGE_SIZE: u32 = 500;
/// How long the next object, or the end, of a streaming list may take. The server waits up to 3 s for its cache before it sends the
/// first object (KEP-3157).
const NEXT_OBJECT: Duration = Duration::from_secs(30);

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
    let watch = CollectionWatch { api, config, events: streaming, list: ListMode::Streaming { is_active: false } };
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
    /// As events of the watch. `is_active` says whether the list has begun and has not ended.
    Streaming { is_active: bool },
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
            let ListMode::Streaming { is_active } = &mut self.list else { return self.events.next().await };
            let limit = if *is_active { NEXT_OBJECT } else { Duration::MAX };
            let Ok(event) = timeout(limit, self.events.next()).await else {
                self.list_in_pages("the server does not report the end of a streaming list");
                continue;
            };
            match &event {
                Some(Ok(Event::Init)) => *is_active = true,
                Some(Ok(Event::InitDone)) => *is_active = false,
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
            ListMode::Streaming { is_active } => {
                *is_active = false;
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
