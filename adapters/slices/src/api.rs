//! The slices of a driver in the API server.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DeleteParams, DynamicObject, PostParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use podwright_kube_api::KubeError;
use podwright_kube_api::resource_api::{ServedVersion, Version, from_v1, is_not_served, resource, to_v1};
use tokio::time::timeout;

/// The timeout of one call. The server may still perform the call later, and the watch then reports its result.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A call to the API server failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server refused the call, or cannot be reached.
    #[error("the API server did not perform the call")]
    Failed(#[source] KubeError),
    /// The server did not answer in time.
    #[error("the API server did not answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    /// The node of the driver has no UID.
    #[error("the node {0} has no UID")]
    NoUid(String),
}

impl CallError {
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, CallError::Failed(error) if error.code() == Some(404))
    }
}

pub(super) type Answer<'a, T> = BoxFuture<'a, Result<T, CallError>>;
pub(super) type Events = BoxStream<'static, Result<Event<ResourceSlice>, KubeError>>;

/// Reads and writes slices. Each call has a timeout of its own.
pub(super) trait SliceApi: Send + Sync + 'static {
    /// Watches the slices. After an error the stream goes on, with delays.
    fn watch(&self) -> Events;
    /// Creates a slice. Returns what the server stored, as the other writes do.
    fn create<'a>(&'a self, slice: &'a ResourceSlice) -> Answer<'a, ResourceSlice>;
    /// Replaces a slice, unless it has changed in the API server.
    fn update<'a>(&'a self, slice: &'a ResourceSlice) -> Answer<'a, ResourceSlice>;
    /// Deletes exactly this version of a slice.
    fn delete<'a>(&'a self, slice: &'a ResourceSlice) -> Answer<'a, ()>;
    /// The UID of a node.
    fn node_uid<'a>(&'a self, node: &'a str) -> Answer<'a, String>;
}

/// The API server.
pub(super) struct KubeSlices {
    client: Client,
    version: Arc<ServedVersion>,
    selector: String,
}

impl KubeSlices {
    /// The slices of a driver for this node, or for no node.
    pub(super) fn new(client: Client, driver: &str, node: Option<&str>) -> Arc<Self> {
        let selector = format!("spec.driver={driver},spec.nodeName={}", node.unwrap_or_default());
        Arc::new(KubeSlices { client, version: Arc::default(), selector })
    }

    /// Makes a call in the version that the server serves.
    async fn call<'a, T>(
        &'a self,
        call: impl Fn(Api<DynamicObject>, Version) -> BoxFuture<'a, kube::Result<T>>,
    ) -> Result<T, CallError> {
        let call = |version| call(Api::all_with(self.client.clone(), &resource::<ResourceSlice>(version)), version);
        limited(self.version.call(call)).await
    }
}

impl SliceApi for KubeSlices {
    fn watch(&self) -> Events {
        let watched =
            Watched { client: self.client.clone(), version: self.version.clone(), selector: self.selector.clone() };
        let events = stream::unfold(
            (watched.start(), watched, 0),
            |((mut version, mut events), watched, mut missing)| async move {
                loop {
                    let event = events.next().await?;
                    if let Err(watcher::Error::InitialListFailed(error)) = &event
                        && is_not_served(error)
                        && missing + 1 < Version::COUNT
                    {
                        missing += 1;
                        watched.version.is_missing(version);
                        (version, events) = watched.start();
                        continue;
                    }
                    missing = 0;
                    if is_expired(&event) {
                        // The watcher of kube would try the same version again and again.
                        (version, events) = watched.start();
                    }
                    return Some((event, ((version, events), watched, missing)));
                }
            },
        );
        events.default_backoff().map_err(KubeError::from).boxed()
    }

    fn create<'a>(&'a self, slice: &'a ResourceSlice) -> Answer<'a, ResourceSlice> {
        let create = move |api: Api<DynamicObject>, version| -> BoxFuture<'a, kube::Result<ResourceSlice>> {
            Box::pin(
                async move { to_v1(version, &api.create(&PostParams::default(), &from_v1(version, slice)?).await?) },
            )
        };
        Box::pin(self.call(create))
    }

    fn update<'a>(&'a self, slice: &'a ResourceSlice) -> Answer<'a, ResourceSlice> {
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        let update = move |api: Api<DynamicObject>, version| -> BoxFuture<'a, kube::Result<ResourceSlice>> {
            Box::pin(async move {
                to_v1(version, &api.replace(name, &PostParams::default(), &from_v1(version, slice)?).await?)
            })
        };
        Box::pin(self.call(update))
    }

    fn delete<'a>(&'a self, slice: &'a ResourceSlice) -> Answer<'a, ()> {
        let metadata = &slice.metadata;
        let name = metadata.name.as_deref().unwrap_or_default();
        let (uid, resource_version) = (metadata.uid.clone(), metadata.resource_version.clone());
        let options = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
        let delete = move |api: Api<DynamicObject>, _| -> BoxFuture<'a, kube::Result<()>> {
            let options = options.clone();
            Box::pin(async move { api.delete(name, &options).await.map(drop) })
        };
        Box::pin(self.call(delete))
    }

    fn node_uid<'a>(&'a self, node: &'a str) -> Answer<'a, String> {
        let nodes = Api::<Node>::all(self.client.clone());
        Box::pin(async move {
            let found = limited(async { nodes.get(node).await }).await?;
            found.metadata.uid.ok_or_else(|| CallError::NoUid(node.to_owned()))
        })
    }
}

/// The events of one version of the API.
type VersionEvents = BoxStream<'static, watcher::Result<Event<ResourceSlice>>>;

/// What a watch needs to start again.
struct Watched {
    client: Client,
    version: Arc<ServedVersion>,
    selector: String,
}

impl Watched {
    fn start(&self) -> (Version, VersionEvents) {
        let version = self.version.current();
        let api = Api::<DynamicObject>::all_with(self.client.clone(), &resource::<ResourceSlice>(version));
        let events = watcher(api, watcher::Config::default().fields(&self.selector));
        (version, events.map(move |event| converted(version, event?).map_err(watcher::Error::WatchFailed)).boxed())
    }
}

fn converted(version: Version, event: Event<DynamicObject>) -> kube::Result<Event<ResourceSlice>> {
    Ok(match event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(slice) => Event::InitApply(to_v1(version, &slice)?),
        Event::Apply(slice) => Event::Apply(to_v1(version, &slice)?),
        Event::Delete(slice) => Event::Delete(to_v1(version, &slice)?),
    })
}

async fn limited<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|error| CallError::Failed(error.into())),
        Err(_) => Err(CallError::Timeout),
    }
}

/// Whether the server no longer has the version at which the watch starts.
fn is_expired(event: &watcher::Result<Event<ResourceSlice>>) -> bool {
    matches!(event, Err(watcher::Error::WatchStartFailed(kube::Error::Api(status))) if status.code == 410)
}
