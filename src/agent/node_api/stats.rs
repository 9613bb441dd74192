//! The usage of the node, its pods and their containers: `/stats/summary` and `/metrics/resource`.

mod assembly;
mod exposition;
mod fields;
mod machine;
mod network;
mod rates;
mod volumes;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;

use super::routes::NodeApi;
use crate::actors::ids::PodUid;
use crate::actors::pod::PodObject;
use crate::actors::ports::{DiskMeter, RuntimeError};
use crate::actors::text::error_chain;
use crate::agent::machine::booted;
use crate::metrics::Format;
use fields::{FsStats, NodeStats, PodReference, Summary};
use rates::Consumer;
pub(super) use rates::CpuRates;
pub(super) use volumes::VolumeMeter;

/// How long a request waits before it measures the CPU time a second time, if the previous measurement is too old. A kubelet measures every
/// 10 s, even if no client asks.
const SECOND_MEASUREMENT: Duration = Duration::from_secs(1);

/// The answer of `/stats/summary`. With `only_cpu_and_memory=true`, it has nothing but CPU time, memory and swap space, as that of a
/// kubelet.
pub(super) async fn summary(State(api): State<NodeApi>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let is_short = query.iter().any(|(name, value)| name == "only_cpu_and_memory" && value == "true");
    let summary = async {
        let mut measured = measure(&api).await?;
        if !measured.has_rates {
            tokio::time::sleep(SECOND_MEASUREMENT).await;
            measured = measure(&api).await?;
        }
        let Measured { mut summary, pods, .. } = measured;
        if is_short {
            summary.shorten();
        } else {
            add_disks_and_networks(&api, &mut summary, &pods).await;
        }
        Ok::<_, RuntimeError>(summary)
    };
    match summary.await {
        Ok(summary) => Json(summary).into_response(),
        Err(error) => {
            let why = format!("Internal Error: {}", error_chain(&error));
            (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
        }
    }
}

pub(super) async fn resource_metrics(State(api): State<NodeApi>) -> Response {
    let measured = measure(&api).await.map(|measured| measured.summary);
    if let Err(error) = &measured {
        let error = error_chain(error).to_string();
        tracing::warn!(error, "cannot measure the containers for /metrics/resource");
    }
    ([(CONTENT_TYPE, Format::Classic.content_type())], exposition::text(measured.ok().as_ref())).into_response()
}

/// One measurement of the node.
struct Measured {
    /// The CPU time and the memory of the node, its pods and their containers.
    summary: Summary,
    /// The objects of these pods.
    pods: Vec<Arc<PodObject>>,
    /// Whether the cores in use are known, and not only the CPU time.
    has_rates: bool,
}

async fn measure(api: &NodeApi) -> Result<Measured, RuntimeError> {
    let objects: Vec<Arc<PodObject>> = api.view.pods().into_iter().filter_map(|pod| pod.object).collect();
    let mut usage = api.stats.usage(&objects).await?;
    let of_machine = tokio::task::spawn_blocking(|| (machine::node(), machine::agent()));
    let (mut node, mut agent) = of_machine.await.unwrap_or_default();
    api.rates.set_all(&mut usage);
    if let Some(agent) = &mut agent {
        api.rates.set(Consumer::Agent, agent);
    }
    let has_rates = api.rates.set(Consumer::Node, &mut node);
    api.rates.forget_old(node.at);
    let (mut pods, mut objects) = (Vec::new(), Vec::new());
    let containers = assembly::by_id(&usage);
    for pod in api.view.pods() {
        let Some(status) = api.view.node.observer().last(&pod.uid) else { continue };
        let start = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0.to_string());
        let pod_ref = PodReference {
            name: pod.full_name.name().to_owned(),
            namespace: pod.full_name.namespace().to_owned(),
            uid: pod.uid.to_string(),
        };
        let counted = usage.pods.get(&pod.uid);
        let Some(stats) = assembly::pod(pod_ref, start, &status.containers, &containers, counted) else { continue };
        objects.extend(pod.object);
        pods.push(stats);
    }
    let node = NodeStats {
        node_name: api.node.to_string(),
        system_containers: assembly::system_containers(agent.as_ref(), &usage, api.started, node.at),
        start_time: booted(api.view.now()).to_timestamp().to_string(),
        used: assembly::resources(&node),
        rlimit: machine::process_ids(),
        ..NodeStats::default()
    };
    Ok(Measured { summary: Summary { node, pods }, pods: objects, has_rates })
}

/// Adds the disks and the networks of the node and its pods. What cannot be measured is left out.
async fn add_disks_and_networks(api: &NodeApi, summary: &mut Summary, pods: &[Arc<PodObject>]) {
    summary.node.network = network::node();
    if let Ok(space) = api.view.logs.node_file_system().await {
        let used_bytes = Some(space.capacity.saturating_sub(space.available));
        let inodes_used = Some(space.inodes.saturating_sub(space.inodes_free));
        let time = Timestamp::now().to_string();
        summary.node.fs = Some(FsStats { time, used_bytes, inodes_used, ..volumes::of_file_system(&space) });
    }
    let images = api.stats.image_file_system().await.unwrap_or_else(|error| {
        let error = error_chain(&error).to_string();
        tracing::debug!(error, "cannot measure the file system of images for /stats/summary");
        None
    });
    summary.node.runtime = images.as_ref().map(assembly::image_stats);
    let mut networks = networks(api, pods).await;
    let spaces = api.volumes.measure(pods).await;
    for pod in &mut summary.pods {
        let uid = PodUid::new(&pod.pod_ref.uid);
        pod.network = networks.remove(&uid);
        if let Some(measured) = spaces.get(&uid) {
            volumes::add(pod, measured, summary.node.fs.as_ref());
        }
    }
}

/// The networks of the pods that do not share the network of the node.
async fn networks(api: &NodeApi, pods: &[Arc<PodObject>]) -> HashMap<PodUid, network::NetworkStats> {
    let measured = api.stats.networks().await.unwrap_or_else(|error| {
        let error = error_chain(&error).to_string();
        tracing::debug!(error, "cannot measure the networks of the pods for /stats/summary");
        Vec::new()
    });
    let host_network = pods.iter().filter(|pod| pod.spec().host_network == Some(true)).map(|pod| pod.uid());
    let host_network: HashSet<&PodUid> = host_network.collect();
    let own = measured.into_iter().filter(|network| !host_network.contains(&network.pod));
    own.map(|network| (network.pod.clone(), network::of_pod(network))).collect()
}

#[cfg(test)]
mod tests;
