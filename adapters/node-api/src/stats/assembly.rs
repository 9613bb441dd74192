//! Assembles the answer of `/stats/summary` from measurements. Pure.

use std::collections::{BTreeMap, HashMap};

use super::fields::{
    ContainerStats, CpuStats, FsStats, ImageStats, IoStats, MemoryStats, PodReference, PodStats, ProcessStats, PsiData,
    PsiStats, ResourceUsage, SwapStats,
};
use super::volumes::of_file_system;
use podwright_host::stats::{ContainerUsage, FileSystemUsage, MemoryUsage, RuntimeUsage, Stall, StallTime, Usage};
use podwright_model::ids::ContainerId;
use podwright_model::time::Time;
use podwright_ports::ContainerStatus;

/// The measured containers of a runtime, by their IDs.
pub(super) type Containers<'a> = HashMap<&'a ContainerId, &'a ContainerUsage>;

pub(super) fn by_id(usage: &RuntimeUsage) -> Containers<'_> {
    usage.containers.iter().map(|container| (&container.id, container)).collect()
}

/// A pod with running containers; `None` if it has none. The sum of its containers replaces the values that the kernel does not count for
/// its cgroup.
pub(super) fn pod(
    pod_ref: PodReference,
    start_time: Option<String>,
    runs: &[ContainerStatus],
    usage: &Containers<'_>,
    counted: Option<&Usage>,
) -> Option<PodStats> {
    let runs = newest(runs, usage);
    let containers: Vec<_> = runs.iter().map(|(run, used)| container(run, used)).collect();
    let start_time = start_time.or_else(|| first_start(&containers))?;
    let of_containers: Vec<&Usage> = runs.iter().map(|(_, used)| &used.usage).collect();
    let used = with_sum(counted, sum(&of_containers)?);
    let processes: Vec<u64> = runs.iter().filter_map(|(_, used)| used.processes).collect();
    Some(PodStats {
        pod_ref,
        start_time,
        containers,
        used: resources(&used),
        processes: (!processes.is_empty()).then(|| ProcessStats { process_count: total(&processes) }),
        ..PodStats::default()
    })
}

/// The containers of the system that a kubelet reports if nothing else is configured: the agent itself, which started at `started`,
/// and all pods together. A kubelet reports the cgroups of the runtime and of the rest of the system only if it has their names
/// (`GetSystemContainersStats`, `pkg/kubelet/server/stats/summary_sys_containers.go`, 1.36).
pub(super) fn system_containers(
    agent: Option<&Usage>,
    usage: &RuntimeUsage,
    started: Time,
    now: Time,
) -> Vec<ContainerStats> {
    let of_containers: Vec<&Usage> = usage.containers.iter().map(|container| &container.usage).collect();
    let pods = with_sum(usage.all_pods.as_ref(), sum(&of_containers).unwrap_or_else(|| nothing(now)));
    let of_system = |name: &str, started: Time, usage: &Usage| ContainerStats {
        name: name.to_owned(),
        start_time: started.to_timestamp().to_string(),
        started: seconds(started),
        used: resources(usage),
        ..ContainerStats::default()
    };
    let agent = agent.map(|usage| of_system("kubelet", started, usage));
    agent.into_iter().chain([of_system("pods", pods.created.unwrap_or(started), &pods)]).collect()
}

/// The file systems of the runtime. Images and writable layers share one.
pub(super) fn image_stats(usage: &FileSystemUsage) -> ImageStats {
    ImageStats { image_fs: disk(usage), container_fs: disk(usage) }
}

/// The newest runs of the containers with a usage, by name. Two series with the same labels would make the whole answer useless for
/// Prometheus.
pub(super) fn newest<'r, 'u>(
    runs: &'r [ContainerStatus],
    usage: &Containers<'u>,
) -> Vec<(&'r ContainerStatus, &'u ContainerUsage)> {
    let mut newest = BTreeMap::new();
    // The newest run is the first one.
    for run in runs {
        if let Some(used) = usage.get(&run.id) {
            newest.entry(run.name.as_str()).or_insert((run, *used));
        }
    }
    newest.into_values().collect()
}

/// When the first of the containers started. The pod of an agent that was restarted may have no status with a start time yet, and an
/// empty time would make the whole answer useless for programs in Go.
fn first_start(containers: &[ContainerStats]) -> Option<String> {
    let first = containers.iter().min_by(|a, b| a.started.total_cmp(&b.started))?;
    Some(first.start_time.clone())
}

fn container(run: &ContainerStatus, used: &ContainerUsage) -> ContainerStats {
    let started = run.started_at.unwrap_or(run.created_at);
    ContainerStats {
        name: run.name.to_string(),
        start_time: started.to_timestamp().to_string(),
        started: seconds(started),
        used: resources(&used.usage),
        rootfs: used.layer.as_ref().map(disk),
        logs: None,
    }
}

fn seconds(time: Time) -> f64 {
    time.as_nanos() as f64 / 1e9
}

fn disk(usage: &FileSystemUsage) -> FsStats {
    FsStats {
        time: usage.at.to_timestamp().to_string(),
        used_bytes: Some(usage.used.bytes),
        inodes_used: Some(usage.used.inodes),
        ..usage.space.as_ref().map(of_file_system).unwrap_or_default()
    }
}

/// The usage of a cgroup. The sum of the containers replaces the values that the kernel does not count.
fn with_sum(counted: Option<&Usage>, sum: Usage) -> Usage {
    match counted {
        Some(counted) => counted.clone().or(sum),
        None => sum,
    }
}

/// The sum of usages; `None` if there are none. It has a limit only if all of them have one. Waiting times have no sum.
fn sum(usages: &[&Usage]) -> Option<Usage> {
    let at = usages.iter().map(|usage| usage.at).max()?;
    let known = |of: fn(&Usage) -> Option<u64>| {
        let values: Vec<u64> = usages.iter().filter_map(|usage| of(usage)).collect();
        (!values.is_empty()).then(|| total(&values))
    };
    let all = |of: fn(&Usage) -> Option<u64>| {
        let values: Option<Vec<u64>> = usages.iter().map(|usage| of(usage)).collect();
        values.map(|values| total(&values))
    };
    Some(Usage {
        at,
        cpu: known(|usage| usage.cpu),
        nano_cores: known(|usage| usage.nano_cores),
        memory: MemoryUsage {
            working_set: known(|usage| usage.memory.working_set),
            used: known(|usage| usage.memory.used),
            resident: known(|usage| usage.memory.resident),
            available: all(|usage| usage.memory.available),
            faults: known(|usage| usage.memory.faults),
            major_faults: known(|usage| usage.memory.major_faults),
            swap: known(|usage| usage.memory.swap),
            swap_available: all(|usage| usage.memory.swap_available),
        },
        ..Usage::default()
    })
}

/// The sum of numbers. Those of the kernel and of a runtime may be too large for one.
fn total(values: &[u64]) -> u64 {
    values.iter().fold(0, |sum, value| sum.saturating_add(*value))
}

/// The usage without any process: zero.
fn nothing(now: Time) -> Usage {
    let zero = Some(0);
    Usage {
        at: now,
        cpu: zero,
        nano_cores: zero,
        memory: MemoryUsage {
            working_set: zero,
            used: zero,
            resident: zero,
            faults: zero,
            major_faults: zero,
            swap: zero,
            ..MemoryUsage::default()
        },
        ..Usage::default()
    }
}

pub(super) fn resources(usage: &Usage) -> ResourceUsage {
    let (time, at) = (usage.at.to_timestamp().to_string(), usage.at.to_timestamp().as_millisecond());
    let memory = &usage.memory;
    ResourceUsage {
        cpu: usage.cpu.map(|nanos| CpuStats {
            time: time.clone(),
            usage_nano_cores: usage.nano_cores,
            usage_core_nano_seconds: Some(nanos),
            psi: usage.pressure.cpu.as_ref().map(psi),
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
            psi: usage.pressure.memory.as_ref().map(psi),
            at,
        }),
        io: usage.pressure.io.as_ref().map(|stall| IoStats { time: time.clone(), psi: psi(stall) }),
        swap: memory.swap.map(|swap_usage_bytes| SwapStats {
            time: time.clone(),
            swap_available_bytes: memory.swap_available,
            swap_usage_bytes,
            at,
        }),
    }
}

fn psi(stall: &Stall) -> PsiStats {
    let data =
        |time: &StallTime| PsiData { total: time.total, avg10: time.avg10, avg60: time.avg60, avg300: time.avg300 };
    PsiStats { full: data(&stall.full), some: data(&stall.some) }
}

#[cfg(test)]
pub(super) mod tests;
