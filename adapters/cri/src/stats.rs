//! The usage of containers and pods, and the networks of pods.
//!
//! The runtime reports the usage of containers. The values that the kernel counts for their cgroups replace those of the runtime, as in a
//! kubelet (`listPodStatsPartiallyFromCRI`, `pkg/kubelet/stats/cri_stats_provider.go`, 1.36). The runtime reports neither the swap space,
//! nor the pressure, nor the absence of a memory limit, nor the usage of pods as a whole. Of a pod's network, it reports neither packets nor
//! what was dropped, so the network of a process of the pod is read for these.

mod network_images;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use podwright_host::disk_usage;
use podwright_host::stats::{
    CgroupFiles, CgroupTree, ContainerUsage, Depth, FileSystemUsage, InterfaceUsage, MemoryUsage, PodNetwork,
    RuntimeUsage, Usage, net_dev,
};
use podwright_model::ids::{ContainerId, PodUid, SandboxId};
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_model::time::Time;
use podwright_ports::{FileSystemSpace, RuntimeError, SandboxState, UsedSpace};

use super::config::{Cgroups, labels};
use super::inner::CriRuntimeInner;
use super::inspect::PodFilter;
use super::tasks::blocking;
use super::{read, v1};
pub(super) use network_images::NetworkImages;

/// How long a measurement waits for the image of a sandbox.
const IMAGE_WAIT: Duration = Duration::from_secs(1);

impl CriRuntimeInner {
    /// The usage of all containers of this agent, and of these pods.
    pub(super) async fn usage(&self, pods: &[Arc<PodObject>], depth: Depth) -> Result<RuntimeUsage, RuntimeError> {
        let stats = self.container_stats(PodFilter::Owned).await?;
        let sandboxes = match depth {
            Depth::Usage => HashMap::new(),
            Depth::Details => ready_sandboxes(self.sandboxes(PodFilter::Owned).await?),
        };
        let facts = self.facts.cached().await?;
        let (adopted, pods) = (self.adopted.uids(), pods.to_vec());
        let host_network = pods.iter().filter(|pod| shares_network(pod)).map(|pod| pod.uid().clone());
        let host_network: HashSet<PodUid> = host_network.collect();
        let owners = owners(&stats, &adopted);
        let tree = self.cgroups.tree();
        let is_shared = facts.cgroups.shared;
        let measured = blocking(move || {
            let mut found = reported(stats);
            if is_shared {
                add_counted(&mut found, (&tree, &facts.cgroups), &pods, &sandboxes, &owners, depth);
            }
            Ok(found)
        });
        let mut found = measured.await?;
        if depth == Depth::Details {
            if !is_shared || !adopted.is_empty() {
                self.add_reported_networks(&mut found, &host_network).await;
            }
            self.network_images.add(&self.client, &mut found.networks, IMAGE_WAIT).await;
        }
        Ok(found)
    }

    /// Adds the networks of the pods whose processes are not in a cgroup of the agent. What the runtime cannot report is left out. Some
    /// runtimes report the network of the node for the pods that share it.
    async fn add_reported_networks(&self, found: &mut RuntimeUsage, host_network: &HashSet<PodUid>) {
        match self.networks().await {
            Ok(reported) => {
                let known: HashSet<PodUid> = found.networks.iter().map(|network| network.pod.clone()).collect();
                let new = reported.into_iter();
                let new = new.filter(|network| !known.contains(&network.pod) && !host_network.contains(&network.pod));
                found.networks.extend(new);
            }
            Err(error) => tracing::debug!(error = %error_chain(&error), "the runtime reports no networks"),
        }
    }

    /// The networks of all pods of this agent.
    pub(super) async fn networks(&self) -> Result<Vec<PodNetwork>, RuntimeError> {
        Ok(self.sandbox_stats(PodFilter::Owned).await?.into_iter().filter_map(network).collect())
    }
}

/// Whether a pod shares the network of the node.
fn shares_network(pod: &PodObject) -> bool {
    pod.spec().host_network == Some(true)
}

/// The network of one sandbox. `None` if the runtime reports no interface of it.
fn network(stats: v1::PodSandboxStats) -> Option<PodNetwork> {
    let v1::PodSandboxAttributes { id, metadata, .. } = stats.attributes?;
    let pod = PodUid::new(&metadata?.uid);
    let v1::NetworkUsage { timestamp, default_interface, interfaces } = stats.linux?.network?;
    let default = default_interface.map(interface);
    // The runtime reports the default interface only once.
    let others =
        interfaces.into_iter().map(interface).filter(|found| Some(&found.name) != default.as_ref().map(|it| &it.name));
    let interfaces: Vec<_> = default.iter().cloned().chain(others).collect();
    if interfaces.is_empty() {
        return None;
    }
    Some(PodNetwork { pod, sandbox: id.into(), cgroup: None, image: None, at: time(timestamp), default, interfaces })
}

fn interface(usage: v1::NetworkInterfaceUsage) -> InterfaceUsage {
    let value = |number: Option<v1::UInt64Value>| number.map(|number| number.value);
    InterfaceUsage {
        name: usage.name,
        rx_bytes: value(usage.rx_bytes),
        rx_errors: value(usage.rx_errors),
        tx_bytes: value(usage.tx_bytes),
        tx_errors: value(usage.tx_errors),
        ..InterfaceUsage::default()
    }
}

/// What the runtime reports. Measures each file system of a writable layer once. Blocks.
fn reported(stats: Vec<v1::ContainerStats>) -> RuntimeUsage {
    let mut spaces: HashMap<PathBuf, Option<FileSystemSpace>> = HashMap::new();
    let mut layer = |usage: v1::FilesystemUsage| {
        let space = mountpoint(&usage).and_then(|path| {
            *spaces.entry(path.into()).or_insert_with_key(|path| disk_usage::of_file_system(path).ok())
        });
        file_system_usage(&usage, space)
    };
    let containers = stats.into_iter().filter_map(|mut stats| {
        let layer_of_container = stats.writable_layer.take();
        let container = usage(stats)?;
        Some(ContainerUsage { layer: layer_of_container.map(&mut layer), ..container })
    });
    RuntimeUsage { containers: containers.collect(), ..RuntimeUsage::default() }
}

/// The newest ready sandbox of each pod.
fn ready_sandboxes(listed: Vec<v1::PodSandbox>) -> HashMap<PodUid, SandboxId> {
    let of_pods = read::pods(listed, Vec::new()).into_iter().filter_map(|pod| {
        let ready = pod.sandboxes.into_iter().filter(|sandbox| sandbox.state == SandboxState::Ready);
        Some((pod.uid, ready.max_by_key(|sandbox| (sandbox.attempt, sandbox.created_at))?.id))
    });
    of_pods.collect()
}

/// The containers of adopted pods, with their pods.
fn owners(stats: &[v1::ContainerStats], adopted: &HashSet<PodUid>) -> HashMap<ContainerId, PodUid> {
    let owner = |stats: &v1::ContainerStats| {
        let of = stats.attributes.as_ref()?;
        let pod = adopted.get(&PodUid::new(v1::value(&of.labels, labels::POD_UID)?))?;
        Some((ContainerId::from(of.id.clone()), pod.clone()))
    };
    stats.iter().filter_map(owner).collect()
}

/// Adds what the kernel counts for the cgroups of pods and their containers, and with [`Depth::Details`] the networks of the pods with one
/// of these sandboxes. `owners` are the containers of adopted pods: those that a kubelet with another cgroup root started are not in the
/// cgroup of their pod, which then does not count the pod as a whole. Blocks.
fn add_counted(
    found: &mut RuntimeUsage,
    (tree, cgroups): (&CgroupTree, &Cgroups),
    pods: &[Arc<PodObject>],
    sandboxes: &HashMap<PodUid, SandboxId>,
    owners: &HashMap<ContainerId, PodUid>,
    depth: Depth,
) {
    let mut of_adopted: HashMap<&PodUid, Vec<&str>> = HashMap::new();
    for container in &found.containers {
        if let Some(pod) = owners.get(&container.id) {
            of_adopted.entry(pod).or_default().push(container.id.as_str());
        }
    }
    found.all_pods = tree.cgroup(&cgroups.all_pods()).usage(depth);
    let mut of_containers: HashMap<String, CgroupFiles> = HashMap::new();
    for pod in pods {
        let of_pod = tree.cgroup(&cgroups.of_pod(pod));
        let Some(usage) = of_pod.usage(depth) else { continue };
        let at = usage.at;
        let children = of_pod.children().into_iter();
        let named = children.filter_map(|(name, files)| Some((container_id(&name)?.to_owned(), files)));
        let named: Vec<(String, CgroupFiles)> = named.collect();
        let is_here = |id: &&str| named.iter().any(|(name, _)| name == id);
        if of_adopted.get(pod.uid()).is_none_or(|ids| ids.iter().all(is_here)) {
            found.pods.insert(pod.uid().clone(), usage);
        }
        let sandbox = sandboxes.get(pod.uid()).filter(|_| !shares_network(pod));
        if depth == Depth::Details {
            found.networks.extend(sandbox.and_then(|sandbox| network_of(pod.uid(), sandbox, at, &named)));
        }
        of_containers.extend(named);
    }
    for container in &mut found.containers {
        let Some(files) = of_containers.get(container.id.as_str()) else { continue };
        if let Some(counted) = files.usage(depth) {
            container.usage = counted.or(std::mem::take(&mut container.usage));
        }
        container.processes = files.processes();
    }
}

/// The network of a pod with these cgroups, read from one of its processes. The process of the sandbox comes first, because a container
/// may make a network of its own. Some runtimes start no process for a sandbox. Blocks.
fn network_of(pod: &PodUid, sandbox: &SandboxId, at: Time, cgroups: &[(String, CgroupFiles)]) -> Option<PodNetwork> {
    let (of_sandbox, of_containers): (Vec<_>, Vec<_>) =
        cgroups.iter().map(|(id, files)| (id == sandbox.as_str(), files)).partition(|(is_sandbox, _)| *is_sandbox);
    let cgroup = of_sandbox.first().map(|(_, files)| files.path());
    let mut processes = of_sandbox.into_iter().chain(of_containers).filter_map(|(_, files)| files.first_process());
    let interfaces = processes.find_map(net_dev::of_process)?;
    Some(PodNetwork { pod: pod.clone(), sandbox: sandbox.clone(), cgroup, image: None, at, default: None, interfaces })
}

/// The ID of the container that runs in a cgroup of this name: `ID`, `crio-ID` or `cri-containerd-ID.scope`.
fn container_id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let (prefix, id) = name.rsplit_once('-').unwrap_or(("", name));
    // CRI-O runs the monitor of a container in a cgroup of its own.
    (!prefix.ends_with("conmon")).then_some(id)
}

/// The directory whose file system a usage is about.
pub(super) fn mountpoint(usage: &v1::FilesystemUsage) -> Option<&str> {
    usage.fs_id.as_ref().map(|id| id.mountpoint.as_str()).filter(|path| !path.is_empty())
}

/// A usage that the runtime reports, of the file system `space`.
pub(super) fn file_system_usage(usage: &v1::FilesystemUsage, space: Option<FileSystemSpace>) -> FileSystemUsage {
    let value = |number: Option<&v1::UInt64Value>| number.map_or(0, |number| number.value);
    FileSystemUsage {
        at: time(usage.timestamp),
        used: UsedSpace::new(value(usage.used_bytes.as_ref()), value(usage.inodes_used.as_ref())),
        space,
    }
}

fn time(nanos: i64) -> Time {
    Time::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

/// The usage of one container. The runtime reports neither CPU time nor memory of a container that has ended.
fn usage(stats: v1::ContainerStats) -> Option<ContainerUsage> {
    let value = |number: Option<v1::UInt64Value>| number.map(|number| number.value);
    let id = stats.attributes?.id;
    let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
    if cpu.timestamp == 0 && memory.timestamp == 0 {
        return None;
    }
    let swap = stats.swap.unwrap_or_default();
    let usage = Usage {
        at: time(cpu.timestamp.max(memory.timestamp)),
        cpu: value(cpu.usage_core_nano_seconds),
        nano_cores: value(cpu.usage_nano_cores),
        memory: MemoryUsage {
            working_set: value(memory.working_set_bytes),
            used: value(memory.usage_bytes),
            resident: value(memory.rss_bytes),
            // containerd reports 0 for a container without a limit.
            available: value(memory.available_bytes).filter(|bytes| *bytes > 0),
            faults: value(memory.page_faults),
            major_faults: value(memory.major_page_faults),
            swap: value(swap.swap_usage_bytes),
            swap_available: value(swap.swap_available_bytes),
        },
        ..Usage::default()
    };
    Some(ContainerUsage { id: id.into(), usage, processes: None, layer: None })
}

#[cfg(test)]
mod tests;
