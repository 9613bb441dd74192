//! Lists sandboxes and containers, and reads their status.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all, try_join};
use jiff::Timestamp;
use podwright_model::ids::PodUid;
use podwright_model::time::Time;
use podwright_ports::{ContainerState, ContainerStatus, PodRuntimeStatus, RuntimeError, RuntimePod, SandboxStatus};

use super::config::labels;
use super::inner::CriRuntimeInner;
use super::layout::Layout;
use super::tasks::blocking;
use super::{files, read, v1};
use crate::adoption::KubeletPod;

/// How often, and at what interval, the status of a killed container is read again while its reason may still change.
const REASON_RETRIES: u32 = 5;
const REASON_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Which sandboxes or containers to list.
#[derive(Clone, Copy, Debug)]
pub(super) enum PodFilter<'a> {
    /// The objects of one pod of this agent, by the pod's UID.
    OfPod(&'a str),
    /// The objects that this agent created or adopted.
    Owned,
    /// All objects, also those of other users of the runtime.
    All,
}

/// How to list the objects of a [`PodFilter`].
struct Listing<'a> {
    /// The labels that the runtime selects by.
    selector: HashMap<String, String>,
    /// The adopted pods, if the selector also finds objects that do not belong to this agent.
    adopted: Option<Arc<HashSet<PodUid>>>,
    layout: &'a Layout,
}

impl Listing<'_> {
    fn includes(&self, labels: &[v1::LabelEntry]) -> bool {
        self.adopted.as_ref().is_none_or(|adopted| labels::is_of_agent(self.layout, labels, adopted))
    }
}

impl CriRuntimeInner {
    /// Lists the agent's pods.
    pub(super) async fn pods(&self) -> Result<Vec<RuntimePod>, RuntimeError> {
        let (sandboxes, containers) =
            try_join(self.sandboxes(PodFilter::Owned), self.containers(PodFilter::Owned)).await?;
        Ok(read::pods(sandboxes, containers))
    }

    /// Reads the status of all sandboxes and containers of a pod.
    pub(super) async fn pod_status(&self, uid: &PodUid) -> Result<PodRuntimeStatus, RuntimeError> {
        let uid = uid.to_string();
        let listed = try_join(self.sandboxes(PodFilter::OfPod(&uid)), self.containers(PodFilter::OfPod(&uid)));
        let (sandboxes, containers) = listed.await?;
        let sandboxes = join_all(sandboxes.into_iter().map(|sandbox| self.sandbox_status(sandbox.id)));
        let containers = join_all(containers.into_iter().map(|container| self.container_status(container)));
        let (sandboxes, containers) = join(sandboxes, containers).await;
        Ok(read::status(present(sandboxes)?, present(containers)?))
    }

    async fn sandbox_status(&self, pod_sandbox_id: String) -> Result<Option<SandboxStatus>, RuntimeError> {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id, verbose: false };
        Ok(self.client.pod_sandbox_status(request).await?.status.as_ref().map(read::sandbox))
    }

    async fn container_status(&self, listed: v1::Container) -> Result<Option<ContainerStatus>, RuntimeError> {
        let request = v1::ContainerStatusRequest { container_id: listed.id, verbose: false };
        let Some(status) = self.status_with_reason(request).await? else { return Ok(None) };
        let mut run = read::container(&status, listed.pod_sandbox_id.into());
        if run.state == ContainerState::Exited {
            let layout = self.facts.layout().clone();
            if let Some(message) = blocking(move || Ok(files::termination_message(&layout, &status))).await? {
                // As upstream, the runtime's own message comes first.
                run.message = if run.message.is_empty() { message } else { format!("{}: {message}", run.message) };
            }
        }
        Ok(Some(run))
    }

    /// The status of a container. If a container was killed without a stop by this agent, waits up to half a second for the
    /// runtime to report the reason.
    async fn status_with_reason(
        &self,
        request: v1::ContainerStatusRequest,
    ) -> Result<Option<v1::ContainerStatus>, RuntimeError> {
        let stopped = self.stopped.lock().contains(&request.container_id);
        let mut status = self.client.container_status(request.clone()).await?.status;
        for _ in 0..REASON_RETRIES {
            let now = Time::from_timestamp(Timestamp::now());
            if stopped || !status.as_ref().is_some_and(|status| read::may_gain_reason(status, now)) {
                break;
            }
            tokio::time::sleep(REASON_RETRY_INTERVAL).await;
            // If a later call fails, the first status is still valid.
            let Ok(again) = self.client.container_status(request.clone()).await else { break };
            status = again.status;
        }
        Ok(status)
    }

    /// Lists sandboxes.
    pub(super) async fn sandboxes(&self, filter: PodFilter<'_>) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        let listing = self.listing(filter);
        let filter = Some(v1::PodSandboxFilter { label_selector: listing.selector.clone(), ..Default::default() });
        let mut items = self.client.list_pod_sandbox(v1::ListPodSandboxRequest { filter }).await?.items;
        items.retain(|sandbox| listing.includes(&sandbox.labels));
        Ok(items)
    }

    /// Lists containers.
    pub(super) async fn containers(&self, filter: PodFilter<'_>) -> Result<Vec<v1::Container>, RuntimeError> {
        let listing = self.listing(filter);
        let filter = Some(v1::ContainerFilter { label_selector: listing.selector.clone(), ..Default::default() });
        let mut containers = self.client.list_containers(v1::ListContainersRequest { filter }).await?.containers;
        containers.retain(|container| listing.includes(&container.labels));
        Ok(containers)
    }

    /// Lists what containers use.
    pub(super) async fn container_stats(&self, filter: PodFilter<'_>) -> Result<Vec<v1::ContainerStats>, RuntimeError> {
        let listing = self.listing(filter);
        let filter = Some(v1::ContainerStatsFilter { label_selector: listing.selector.clone(), ..Default::default() });
        let mut stats = self.client.list_container_stats(v1::ListContainerStatsRequest { filter }).await?.stats;
        stats.retain(|stats| stats.attributes.as_ref().is_some_and(|of| listing.includes(&of.labels)));
        Ok(stats)
    }

    /// Lists what sandboxes use.
    pub(super) async fn sandbox_stats(&self, filter: PodFilter<'_>) -> Result<Vec<v1::PodSandboxStats>, RuntimeError> {
        let listing = self.listing(filter);
        let filter = Some(v1::PodSandboxStatsFilter { label_selector: listing.selector.clone(), ..Default::default() });
        let mut stats = self.client.list_pod_sandbox_stats(v1::ListPodSandboxStatsRequest { filter }).await?.stats;
        stats.retain(|stats| stats.attributes.as_ref().is_some_and(|of| listing.includes(&of.labels)));
        Ok(stats)
    }

    /// The runtime cannot select objects without a label, so the objects of a kubelet are listed with all others.
    fn listing(&self, filter: PodFilter<'_>) -> Listing<'_> {
        let (layout, adopted) = (self.facts.layout(), self.adopted.uids());
        let (selector, adopted) = match filter {
            PodFilter::All => (HashMap::new(), None),
            PodFilter::OfPod(uid) if adopted.contains(&PodUid::new(uid)) => {
                (labels::selector_of_all(Some(uid)), Some(adopted))
            }
            PodFilter::Owned if !adopted.is_empty() => (labels::selector_of_all(None), Some(adopted)),
            PodFilter::OfPod(uid) => (labels::selector(layout, Some(uid)), None),
            PodFilter::Owned => (labels::selector(layout, None), None),
        };
        Listing { selector, adopted, layout }
    }

    /// Lists the pods that a kubelet started, adopted or not.
    pub(super) async fn kubelet_pods(&self) -> Result<Vec<KubeletPod>, RuntimeError> {
        let (mut sandboxes, mut containers) =
            try_join(self.sandboxes(PodFilter::All), self.containers(PodFilter::All)).await?;
        sandboxes.retain(|sandbox| labels::owner(&sandbox.labels).is_none());
        containers.retain(|container| labels::owner(&container.labels).is_none());
        let of_pod = |pod: RuntimePod| KubeletPod {
            is_running: pod.is_running(),
            created_at: pod.sandboxes.iter().map(|sandbox| sandbox.created_at).max().unwrap_or(Time::ZERO),
            uid: pod.uid,
            full_name: pod.full_name,
        };
        // Another program may have written the labels. A kubelet never writes an empty UID.
        let pods = read::pods(sandboxes, containers).into_iter().filter(|pod| !pod.uid.to_string().is_empty());
        Ok(pods.map(of_pod).collect())
    }
}

/// Drops the statuses of objects that were removed after they were listed.
fn present<T>(statuses: Vec<Result<Option<T>, RuntimeError>>) -> Result<Vec<T>, RuntimeError> {
    let statuses = statuses.into_iter().map(|status| match status {
        Err(RuntimeError::NotFound(_)) => Ok(None),
        status => status,
    });
    statuses.filter_map(Result::transpose).collect()
}
