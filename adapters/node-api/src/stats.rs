//! The usage of the node, its pods and their containers: `/stats/summary`, `/metrics/resource` and `/metrics/cadvisor`.

mod assembly;
mod cadvisor;
mod exposition;
mod fields;
mod machine;
mod network;
mod rates;
mod shared;
mod volumes;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;

use super::routes::NodeApi;
use super::served_node::ServedPod;
pub(super) use cadvisor::metrics as cadvisor_metrics;
use fields::{FsStats, NodeStats, PodReference, Summary};
use podwright_host::node_meter::booted;
use podwright_host::stats::{Depth, PodNetwork, RuntimeUsage};
use podwright_metrics::Format;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_ports::DiskMeter;
use rates::Consumer;
pub(super) use rates::CpuRates;
use shared::{Meter, PANIC, Shared};
pub(super) use volumes::VolumeMeter;

/// How long a request waits before it measures the CPU time a second time, if the previous measurement is too old. A kubelet measures every
/// 10 s, even if no client asks.
const SECOND_MEASUREMENT: Duration = Duration::from_secs(1);

/// The measurements of the node. Requests share them.
#[derive(Default)]
pub(super) struct Meters {
    cpu_and_memory: Meter<NodeMeasurement>,
    full: Meter<Summary>,
    /// The text of `/metrics/cadvisor`.
    cadvisor: Meter<Bytes>,
}

/// The answer of `/stats/summary`. With `only_cpu_and_memory=true`, it has nothing but CPU time, memory and swap space, as that of a
/// kubelet.
pub(super) async fn summary(State(api): State<NodeApi>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let is_short = query.iter().any(|(name, value)| name == "only_cpu_and_memory" && value == "true");
    let summary = match is_short {
        true => with_rates(&api).await.map(|measured| measured.summary.clone()),
        false => api.meters.full.measure(full(api.clone())).await,
    };
    match summary {
        Ok(summary) => api.blocking.answer(summary, move |summary| json(summary, is_short)).await,
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {error}")).into_response(),
    }
}

fn json(summary: &Summary, is_short: bool) -> Response {
    if !is_short {
        return Json(summary).into_response();
    }
    let mut short = summary.clone();
    short.shorten();
    Json(short).into_response()
}

pub(super) async fn resource_metrics(State(api): State<NodeApi>) -> Response {
    let measured = cpu_and_memory(&api).await;
    if let Err(error) = &measured {
        let error: &str = error;
        tracing::warn!(error, "cannot measure the containers for /metrics/resource");
    }
    let summary = measured.ok().map(|measured| measured.summary.clone());
    let answer = api.blocking.answer(summary, |summary| {
        ([(CONTENT_TYPE, Format::Classic.content_type())], exposition::text(summary.as_deref()))
    });
    answer.await
}

/// One measurement of the node.
struct NodeMeasurement {
    /// The CPU time and the memory of the node, its pods and their containers.
    summary: Arc<Summary>,
    /// The objects of these pods.
    pods: Vec<Arc<PodObject>>,
    /// Whether the cores in use are known, and not only the CPU time.
    has_rates: bool,
}

async fn cpu_and_memory(api: &NodeApi) -> Shared<NodeMeasurement> {
    api.meters.cpu_and_memory.measure(measure(api.clone())).await
}

/// A measurement with the cores in use.
async fn with_rates(api: &NodeApi) -> Shared<NodeMeasurement> {
    let measured = cpu_and_memory(api).await?;
    if measured.has_rates {
        return Ok(measured);
    }
    tokio::time::sleep(SECOND_MEASUREMENT).await;
    cpu_and_memory(api).await
}

/// Measures the CPU time and the memory.
///
/// # Errors
/// The text of the error of the runtime.
async fn measure(api: NodeApi) -> Result<NodeMeasurement, String> {
    let queries = api.queries.clone();
    let pods = api.blocking.compute(move || queries.pods()).await.ok_or(PANIC)?;
    let objects: Vec<Arc<PodObject>> = pods.iter().filter_map(|pod| pod.object.clone()).collect();
    let usage = api.stats.usage(&objects, Depth::Usage).await.map_err(|error| error_chain(&error).to_string())?;
    let node = api.clone();
    let measured = api.blocking.compute(move || assemble(&node, pods, usage)).await;
    measured.ok_or_else(|| PANIC.to_owned())
}

/// Blocking: reads the usage of the node and of the agent.
fn assemble(api: &NodeApi, listed: Vec<ServedPod>, mut usage: RuntimeUsage) -> NodeMeasurement {
    let (mut node, mut agent) = (machine::node(Depth::Usage), machine::agent(Depth::Usage));
    api.rates.set_all(&mut usage);
    if let Some(agent) = &mut agent {
        api.rates.set(Consumer::Agent, agent);
    }
    let has_rates = api.rates.set(Consumer::Node, &mut node);
    api.rates.forget_old(node.at);
    let (mut pods, mut objects) = (Vec::new(), Vec::new());
    let containers = assembly::by_id(&usage);
    for pod in listed {
        let Some(status) = api.queries.runtime_status(&pod.uid) else { continue };
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
        start_time: booted(api.clock.now()).to_timestamp().to_string(),
        used: assembly::resources(&node),
        rlimit: machine::process_ids(),
        ..NodeStats::default()
    };
    NodeMeasurement { summary: Arc::new(Summary { node, pods }), pods: objects, has_rates }
}

/// Measures also the disks and the networks of the node and its pods. What cannot be measured is left out.
///
/// # Errors
/// As [`measure`].
async fn full(api: NodeApi) -> Result<Summary, String> {
    let measured = with_rates(&api).await.map_err(|error| error.to_string())?;
    let fs = api.storage.node_file_system().await.ok().map(|space| FsStats {
        time: Timestamp::now().to_string(),
        used_bytes: Some(space.capacity.saturating_sub(space.available)),
        inodes_used: Some(space.inodes.saturating_sub(space.inodes_free)),
        ..volumes::of_file_system(&space)
    });
    let images = api.stats.image_file_system().await.unwrap_or_else(|error| {
        let error = error_chain(&error).to_string();
        tracing::debug!(error, "cannot measure the file system of images for /stats/summary");
        None
    });
    let networks = api.stats.networks().await.unwrap_or_else(|error| {
        let error = error_chain(&error).to_string();
        tracing::debug!(error, "cannot measure the networks of the pods for /stats/summary");
        Vec::new()
    });
    let spaces = api.volumes.measure(&measured.pods).await;
    let add = move || {
        let mut summary = Summary::clone(&measured.summary);
        summary.node.network = network::node();
        summary.node.fs = fs;
        summary.node.runtime = images.as_ref().map(assembly::image_stats);
        let mut networks = networks_of_their_own(networks, &measured.pods);
        for pod in &mut summary.pods {
            let uid = PodUid::new(&pod.pod_ref.uid);
            pod.network = networks.remove(&uid);
            if let Some(measured) = spaces.get(&uid) {
                volumes::add(pod, measured, summary.node.fs.as_ref());
            }
        }
        summary
    };
    api.blocking.compute(add).await.ok_or_else(|| PANIC.to_owned())
}

/// The networks of the pods that do not share the network of the node.
fn networks_of_their_own(networks: Vec<PodNetwork>, pods: &[Arc<PodObject>]) -> HashMap<PodUid, network::NetworkStats> {
    let host_network = pods.iter().filter(|pod| pod.spec().host_network == Some(true)).map(|pod| pod.uid());
    let host_network: HashSet<&PodUid> = host_network.collect();
    let own = networks.into_iter().filter(|network| !host_network.contains(&network.pod));
    own.map(|network| (network.pod.clone(), network::of_pod(network))).collect()
}

#[cfg(test)]
mod tests;
