//! The API server, and the streams of instances.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::{Api, Client};
use podwright_dra_api::node_resources::node_resources_client::NodeResourcesClient;
use podwright_dra_api::node_resources::{NodeListAndWatchResourcesRequest, NodeListAndWatchResourcesResponse};
use podwright_kube_api::resource_api::{ServedVersion, Version, resource};
use podwright_metrics::{SliceMetrics, SliceWrite};
use podwright_model::ids::DriverName;
use podwright_model::text::{error_text, plain};
use podwright_slices::{Owner, SliceEngine, SliceError, SliceOptions, Write};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::warn;

use super::ports::{Answer, ApiError, SlicePorts};
use super::queues::{NodePublisher, SliceQueues};
use super::state::Target;
use crate::MAX_TEXT;
use crate::registry::Instance;

/// The timeout of a call to the API server.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the agent lists the slices of a driver, in case the watch has missed a change (upstream's kubelet of 2024).
const RELIST_PERIOD: Duration = Duration::from_secs(10 * 60);
/// The slices of an answer when the drivers are listed.
const PAGE: u32 = 500;

/// An instance of a driver. Two are equal if they are the same registration.
#[derive(Clone, Debug)]
pub(super) struct InstanceRef(pub(super) Arc<Instance>);

impl PartialEq for InstanceRef {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The API server and the instances that are registered.
pub(super) struct KubePorts {
    client: Client,
    node: String,
    version: ServedVersion,
    metrics: SliceMetrics,
    queues: SliceQueues,
}

impl KubePorts {
    pub(super) fn new(client: Client, node: &str, metrics: SliceMetrics, queues: SliceQueues) -> Self {
        KubePorts { client, node: node.to_owned(), version: ServedVersion::default(), metrics, queues }
    }

    fn slices(&self, version: Version) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &resource::<ResourceSlice>(version))
    }

    async fn find_node(&self) -> Result<(), ApiError> {
        let nodes = Api::<Node>::all(self.client.clone());
        match limited(nodes.get_opt(&self.node)).await? {
            Some(_) => Ok(()),
            None => Err(ApiError::NoNode(self.node.clone())),
        }
    }

    /// Selects the slices of the node, which is all that a node may select.
    fn selector(&self, target: &Target) -> String {
        let node = format!("spec.nodeName={}", self.node);
        match target {
            Target::AllDrivers => node,
            Target::Driver(driver) => format!("{node},spec.driver={driver}"),
        }
    }

    async fn delete(&self, target: &Target, stop: &CancellationToken) -> Result<bool, ApiError> {
        // The API server authorizes the agent to delete slices only when the Node object exists.
        let Some(found) = stop.run_until_cancelled(self.find_node()).await else { return Ok(false) };
        found?;
        let selected = ListParams::default().fields(&self.selector(target));
        let delete = |version| {
            let (slices, selected) = (self.slices(version), selected.clone());
            async move { slices.delete_collection(&DeleteParams::default(), &selected).await.map(drop) }.boxed()
        };
        match limited(self.version.call(delete)).await {
            // The server has no version of the resource, and so no slices.
            Err(ApiError::Failed(error)) if error.code() == Some(404) => Ok(true),
            answer => answer.map(|()| true),
        }
    }

    async fn list(&self) -> Result<BTreeSet<DriverName>, ApiError> {
        let mut page = ListParams::default().fields(&self.selector(&Target::AllDrivers)).limit(PAGE);
        let mut drivers = BTreeSet::new();
        loop {
            let list = |version| {
                let (slices, page) = (self.slices(version), page.clone());
                async move { slices.list(&page).await }.boxed()
            };
            let slices = limited(self.version.call(list)).await?;
            // The field of the driver has the same place in all versions.
            drivers.extend(
                slices.items.iter().filter_map(|slice| slice.data["spec"]["driver"].as_str()).map(DriverName::from),
            );
            match slices.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(drivers),
            }
        }
    }
}

impl SlicePorts for KubePorts {
    type Instance = InstanceRef;
    type Publisher = NodePublisher;

    fn node(&self) -> Answer<'_, ()> {
        Box::pin(self.find_node())
    }

    fn wipe<'a>(&'a self, target: &'a Target, stop: &'a CancellationToken) -> Answer<'a, bool> {
        Box::pin(self.delete(target, stop))
    }

    fn drivers(&self) -> Answer<'_, BTreeSet<DriverName>> {
        Box::pin(self.list())
    }

    fn stream(&self, instance: &InstanceRef) -> BoxStream<'static, Result<NodeListAndWatchResourcesResponse, Status>> {
        let instance = instance.0.clone();
        let open = async move {
            let Some(channel) = instance.connected().await else {
                // The removal of the instance closes this stream.
                return std::future::pending().await;
            };
            let mut client = NodeResourcesClient::new(channel);
            let request = NodeListAndWatchResourcesRequest {};
            client.node_list_and_watch_resources(request).await.map(tonic::Response::into_inner)
        };
        stream::once(open).try_flatten().boxed()
    }

    fn publisher(&self, driver: &DriverName) -> NodePublisher {
        let (name, metrics, queues) = (driver.clone(), self.metrics.clone(), self.queues.clone());
        let failed = move |error: SliceError| {
            let error = plain(&error_text(&error), MAX_TEXT).into_owned();
            warn!(driver = %name, error, "cannot publish the devices of a driver");
        };
        let options = SliceOptions::new(driver.as_str(), failed)
            .owner(Owner::node(self.node.clone(), None))
            .reads_owner_again()
            .relist_every(RELIST_PERIOD)
            .on_sync(move |waited, worked| queues.synced(waited, worked))
            .on_write(move |write| {
                metrics.wrote(match write {
                    Write::Update => SliceWrite::Update,
                    Write::Create => SliceWrite::Create,
                    Write::Delete => SliceWrite::Delete,
                });
            });
        self.queues.publisher(SliceEngine::start(self.client.clone(), options))
    }
}

async fn limited<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, ApiError> {
    match timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|error| ApiError::Failed(error.into())),
        Err(_) => Err(ApiError::Timeout),
    }
}
