//! The usage of the node, its pods and their containers: `/stats/summary` and `/metrics/resource`.

mod exposition;
mod fields;
mod machine;
mod network;
mod volumes;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;

use super::routes::NodeApi;
use crate::actors::ids::{ContainerId, PodUid};
use crate::actors::pod::PodObject;
use crate::actors::ports::{ContainerStatus, DiskMeter, RuntimeError};
use crate::actors::text::error_chain;
use crate::actors::time::Time;
use crate::adapters::stats::ContainerUsage;
use crate::metrics::Format;
use fields::{
    ContainerStats, CpuStats, FsStats, MemoryStats, NodeStats, PodReference, PodStats, ResourceUsage, RlimitStats,
    Summary, SwapStats,
};
pub(super) use volumes::VolumeMeter;

/// The answer of `/stats/summary`. With `only_cpu_and_memory=true`, it has nothing but CPU time and memory, as that of a kubelet.
pub(super) async fn summary(State(api): State<NodeApi>, Query(query): Query<Vec<(String, String)>>) -> Response {
    let is_short = query.iter().any(|(name, value)| name == "only_cpu_and_memory" && value == "true");
    let summary = async {
        let (mut summary, pods) = measure(&api).await?;
        if is_short {
            summary.node.rlimit = None;
            summary.pods.iter_mut().flat_map(|pod| &mut pod.containers).for_each(|container| container.rootfs = None);
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
    let measured = measure(&api).await.map(|(summary, _)| summary);
    if let Err(error) = &measured {
        let error = error_chain(error).to_string();
        tracing::warn!(error, "cannot measure the containers for /metrics/resource");
    }
    ([(CONTENT_TYPE, Format::Classic.content_type())], exposition::text(measured.ok().as_ref())).into_response()
}

/// The CPU time and the memory of the node, its pods and their containers, and the objects of these pods.
async fn measure(api: &NodeApi) -> Result<(Summary, Vec<Arc<PodObject>>), RuntimeError> {
    let usage = api.stats.usage().await?;
    let usage: HashMap<ContainerId, ContainerUsage> = usage.into_iter().map(|used| (used.id.clone(), used)).collect();
    let (mut pods, mut objects) = (Vec::new(), Vec::new());
    for pod in api.view.pods() {
        let Some(status) = api.view.node.observer().last(&pod.uid) else { continue };
        let containers = of_containers(&status.containers, &usage);
        let start = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0.to_string());
        let Some(first_start) = first_start(&containers) else { continue };
        objects.extend(pod.object);
        pods.push(PodStats {
            pod_ref: PodReference {
                name: pod.full_name.name().to_owned(),
                namespace: pod.full_name.namespace().to_owned(),
                uid: pod.uid.to_string(),
            },
            start_time: start.unwrap_or(first_start),
            used: sum_of(&containers),
            containers,
            ..PodStats::default()
        });
    }
    let mut node = machine::node(api.view.now());
    node.node_name = api.node.to_string();
    Ok((Summary { node, pods }, objects))
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

/// The containers with a usage, by name. Of two runs of a container, the one that was created last counts: two series with the same
/// labels would make the whole answer useless for Prometheus.
fn of_containers(runs: &[ContainerStatus], usage: &HashMap<ContainerId, ContainerUsage>) -> Vec<ContainerStats> {
    let mut newest = BTreeMap::new();
    // The newest run is the first one.
    for run in runs {
        if let Some(used) = usage.get(&run.id) {
            newest.entry(run.name.as_str()).or_insert((run, used));
        }
    }
    let newest = newest.into_iter();
    newest.map(|(name, (run, used))| of_container(name, run.started_at.unwrap_or(run.created_at), used)).collect()
}

/// When the first of the containers started. The pod of an agent that was restarted may have no status with a start time yet, and an
/// empty time would make the whole answer useless for programs in Go.
fn first_start(containers: &[ContainerStats]) -> Option<String> {
    let first = containers.iter().min_by(|a, b| a.started.total_cmp(&b.started))?;
    Some(first.start_time.clone())
}

fn of_container(name: &str, started: Time, used: &ContainerUsage) -> ContainerStats {
    let (time, at) = (used.at.to_timestamp().to_string(), used.at.to_timestamp().as_millisecond());
    let memory = &used.memory;
    ContainerStats {
        name: name.to_owned(),
        start_time: started.to_timestamp().to_string(),
        started: started.as_nanos() as f64 / 1e9,
        used: ResourceUsage {
            cpu: used.cpu.map(|nanos| CpuStats {
                time: time.clone(),
                usage_nano_cores: used.nano_cores,
                usage_core_nano_seconds: Some(nanos),
                at,
            }),
            memory: memory.working_set.map(|bytes| MemoryStats {
                time: time.clone(),
                available_bytes: memory.available,
                usage_bytes: memory.used,
                working_set_bytes: Some(bytes),
                rss_bytes: memory.resident,
                page_faults: memory.faults,
                major_page_faults: memory.major_faults,
                at,
            }),
            swap: memory.swap.map(|swap_usage_bytes| SwapStats { time: time.clone(), swap_usage_bytes, at }),
        },
        rootfs: used.layer.map(|layer| FsStats {
            time,
            used_bytes: Some(layer.bytes),
            inodes_used: Some(layer.inodes),
            ..FsStats::default()
        }),
        logs: None,
    }
}

/// The sum of the usage of a pod's containers.
fn sum_of(containers: &[ContainerStats]) -> ResourceUsage {
    let sum = |of: &dyn Fn(&ResourceUsage) -> Option<u64>| {
        let values: Vec<u64> = containers.iter().filter_map(|container| of(&container.used)).collect();
        (!values.is_empty()).then(|| values.iter().sum::<u64>())
    };
    let cpus = containers.iter().filter_map(|container| container.used.cpu.as_ref());
    let memories = containers.iter().filter_map(|container| container.used.memory.as_ref());
    let swaps = containers.iter().filter_map(|container| container.used.swap.as_ref());
    ResourceUsage {
        cpu: cpus.max_by_key(|cpu| cpu.at).map(|newest| CpuStats {
            time: newest.time.clone(),
            at: newest.at,
            usage_nano_cores: sum(&|used| used.cpu.as_ref()?.usage_nano_cores),
            usage_core_nano_seconds: sum(&|used| used.cpu.as_ref()?.usage_core_nano_seconds),
        }),
        memory: memories.max_by_key(|memory| memory.at).map(|newest| MemoryStats {
            time: newest.time.clone(),
            at: newest.at,
            available_bytes: None,
            usage_bytes: sum(&|used| used.memory.as_ref()?.usage_bytes),
            working_set_bytes: sum(&|used| used.memory.as_ref()?.working_set_bytes),
            rss_bytes: sum(&|used| used.memory.as_ref()?.rss_bytes),
            page_faults: sum(&|used| used.memory.as_ref()?.page_faults),
            major_page_faults: sum(&|used| used.memory.as_ref()?.major_page_faults),
        }),
        swap: swaps.max_by_key(|swap| swap.at).map(|newest| SwapStats {
            time: newest.time.clone(),
            at: newest.at,
            swap_usage_bytes: sum(&|used| Some(used.swap.as_ref()?.swap_usage_bytes)).unwrap_or(0),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::actors::ports::ContainerState;
    use crate::adapters::stats::MemoryUsage;

    pub(super) fn container(name: &str, cpu: u64, memory: u64) -> ContainerStats {
        let memory = MemoryUsage { working_set: Some(memory), ..MemoryUsage::default() };
        let at = Time::from_secs(10);
        let used = ContainerUsage { id: name.into(), at, cpu: Some(cpu), nano_cores: None, memory, layer: None };
        of_container(name, Time::from_nanos(1_500_000_000), &used)
    }

    fn run(id: &str, name: &str, started: u64) -> ContainerStatus {
        ContainerStatus {
            id: id.into(),
            sandbox: "s".into(),
            name: name.into(),
            restart_count: 0,
            state: ContainerState::Running,
            created_at: Time::from_secs(started - 1),
            started_at: Some(Time::from_secs(started)),
            finished_at: None,
            exit_code: 0,
            signal: None,
            reason: String::new(),
            message: String::new(),
            spec_hash: 0,
            image: String::new(),
            image_id: String::new(),
            applied: None,
        }
    }

    #[test]
    fn container_appears_once_and_a_pod_always_has_a_start_time() {
        let used = |id: &str, cpu| {
            let (at, memory) = (Time::from_secs(10), MemoryUsage::default());
            (id.into(), ContainerUsage { id: id.into(), at, cpu: Some(cpu), nano_cores: None, memory, layer: None })
        };
        let usage = HashMap::from([used("1", 10), used("2", 20), used("3", 30)]);
        let runs = [run("2", "main", 7), run("1", "main", 3), run("3", "first", 5), run("4", "unused", 1)];
        let stats = of_containers(&runs, &usage);
        let found: Vec<_> = stats
            .iter()
            .map(|stats| (stats.name.as_str(), stats.used.cpu.as_ref().unwrap().usage_core_nano_seconds.unwrap()))
            .collect();
        assert_eq!(found, [("first", 30), ("main", 20)]);
        assert_eq!(first_start(&stats).as_deref(), Some("1970-01-01T00:00:05Z"));
        assert_eq!(first_start(&[]), None);
    }

    #[test]
    fn pod_uses_what_its_containers_use() {
        let used = sum_of(&[container("a", 5, 100), container("b", 7, 200)]);
        assert_eq!(used.cpu.as_ref().unwrap().usage_core_nano_seconds, Some(12));
        assert_eq!(used.memory.as_ref().unwrap().working_set_bytes, Some(300));
        let json = serde_json::to_value(container("a", 5, 100)).unwrap();
        assert_eq!(json["memory"]["workingSetBytes"], 100);
        assert_eq!(json["cpu"], serde_json::json!({"time": "1970-01-01T00:00:10Z", "usageCoreNanoSeconds": 5}));
        assert!(json.get("swap").is_none() && json.get("rootfs").is_none(), "{json}");
    }
}
