//! The usage of containers and the networks of pods, as the runtime reports them.

use podwright_actors::ids::PodUid;
use podwright_actors::ports::{RuntimeError, UsedSpace};
use podwright_actors::time::Time;

use super::config::labels;
use super::inner::CriRuntimeInner;
use super::v1;
use crate::adapters::stats::{ContainerUsage, InterfaceUsage, MemoryUsage, PodNetwork};

impl CriRuntimeInner {
    /// The usage of all containers of this agent.
    pub(super) async fn usage(&self) -> Result<Vec<ContainerUsage>, RuntimeError> {
        let label_selector = labels::selector(self.facts.layout(), None);
        let filter = Some(v1::ContainerStatsFilter { label_selector, ..Default::default() });
        let answer = self.client.list_container_stats(v1::ListContainerStatsRequest { filter }).await?;
        Ok(answer.stats.into_iter().filter_map(usage).collect())
    }

    /// The networks of all pods of this agent.
    pub(super) async fn networks(&self) -> Result<Vec<PodNetwork>, RuntimeError> {
        let label_selector = labels::selector(self.facts.layout(), None);
        let filter = Some(v1::PodSandboxStatsFilter { label_selector, ..Default::default() });
        let answer = self.client.list_pod_sandbox_stats(v1::ListPodSandboxStatsRequest { filter }).await?;
        Ok(answer.stats.into_iter().filter_map(network).collect())
    }
}

/// The network of one sandbox. The runtime reports none for a sandbox that shares the network of the node.
fn network(stats: v1::PodSandboxStats) -> Option<PodNetwork> {
    let pod = stats.attributes?.metadata?.uid;
    let v1::NetworkUsage { timestamp, default_interface, interfaces } = stats.linux?.network?;
    let default = default_interface.map(interface);
    // The runtime reports the default interface only once.
    let others =
        interfaces.into_iter().map(interface).filter(|found| Some(&found.name) != default.as_ref().map(|it| &it.name));
    let interfaces: Vec<_> = default.iter().cloned().chain(others).collect();
    if interfaces.is_empty() {
        return None;
    }
    let at = Time::from_nanos(u64::try_from(timestamp).unwrap_or(0));
    Some(PodNetwork { pod: PodUid::new(&pod), at, default, interfaces })
}

fn interface(usage: v1::NetworkInterfaceUsage) -> InterfaceUsage {
    let value = |number: Option<v1::UInt64Value>| number.map(|number| number.value);
    InterfaceUsage {
        name: usage.name,
        rx_bytes: value(usage.rx_bytes),
        rx_errors: value(usage.rx_errors),
        tx_bytes: value(usage.tx_bytes),
        tx_errors: value(usage.tx_errors),
    }
}

/// The usage of one container. The runtime reports neither CPU time nor memory of a container that has ended.
fn usage(stats: v1::ContainerStats) -> Option<ContainerUsage> {
    let value = |number: Option<v1::UInt64Value>| number.map(|number| number.value);
    let id = stats.attributes?.id;
    let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
    if cpu.timestamp == 0 && memory.timestamp == 0 {
        return None;
    }
    let nanos = u64::try_from(cpu.timestamp.max(memory.timestamp)).unwrap_or(0);
    let layer = stats
        .writable_layer
        .map(|layer| UsedSpace::new(value(layer.used_bytes).unwrap_or(0), value(layer.inodes_used).unwrap_or(0)));
    Some(ContainerUsage {
        id: id.into(),
        at: Time::from_nanos(nanos),
        cpu: value(cpu.usage_core_nano_seconds),
        nano_cores: value(cpu.usage_nano_cores),
        memory: MemoryUsage {
            working_set: value(memory.working_set_bytes),
            used: value(memory.usage_bytes),
            resident: value(memory.rss_bytes),
            available: value(memory.available_bytes),
            faults: value(memory.page_faults),
            major_faults: value(memory.major_page_faults),
            swap: stats.swap.and_then(|swap| value(swap.swap_usage_bytes)),
        },
        layer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_a_container_that_has_ended_is_left_out() {
        let number = |value| Some(v1::UInt64Value { value });
        let attributes = Some(v1::ContainerAttributes { id: "c".into(), ..Default::default() });
        let ended = v1::ContainerStats { attributes: attributes.clone(), ..Default::default() };
        assert_eq!(usage(ended), None);
        let cpu = v1::CpuUsage { timestamp: 7, usage_core_nano_seconds: number(5), ..Default::default() };
        let memory = v1::MemoryUsage { timestamp: 9, working_set_bytes: number(3), ..Default::default() };
        let runs = v1::ContainerStats { attributes, cpu: Some(cpu), memory: Some(memory), ..Default::default() };
        let found = usage(runs).unwrap();
        assert_eq!((found.id.as_str(), found.at, found.cpu), ("c", Time::from_nanos(9), Some(5)));
        assert_eq!((found.memory.working_set, found.nano_cores, found.layer), (Some(3), None, None));
    }

    #[test]
    fn default_interface_of_a_pod_is_listed_once() {
        let number = |value| Some(v1::UInt64Value { value });
        let interface = |name: &str, received| v1::NetworkInterfaceUsage {
            name: name.into(),
            rx_bytes: number(received),
            ..Default::default()
        };
        let sandbox = |network| {
            let metadata = Some(v1::PodSandboxMetadata { uid: "u".into(), ..Default::default() });
            let attributes = Some(v1::PodSandboxAttributes { metadata, ..Default::default() });
            v1::PodSandboxStats { attributes, linux: Some(v1::LinuxPodSandboxStats { network }) }
        };
        let usage = |default_interface, interfaces| v1::NetworkUsage { timestamp: 7, default_interface, interfaces };
        assert_eq!(network(sandbox(None)), None);
        assert_eq!(network(sandbox(Some(usage(None, vec![])))), None);
        let both = vec![interface("net1", 2), interface("eth0", 1)];
        for interfaces in [both, vec![interface("net1", 2)]] {
            let found = network(sandbox(Some(usage(Some(interface("eth0", 1)), interfaces)))).unwrap();
            assert_eq!((found.pod.to_string().as_str(), found.at), ("u", Time::from_nanos(7)));
            let names: Vec<_> =
                found.interfaces.iter().map(|it| (it.name.as_str(), it.rx_bytes, it.tx_bytes)).collect();
            assert_eq!(names, [("eth0", Some(1), None), ("net1", Some(2), None)]);
            assert_eq!(found.default.unwrap().name, "eth0");
        }
    }
}
