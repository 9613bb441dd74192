//! The usage of containers, as the runtime reports it.

use podwright_actors::ports::{RuntimeError, UsedSpace};
use podwright_actors::time::Time;

use super::config::labels;
use super::inner::CriRuntimeInner;
use super::v1;
use crate::adapters::stats::{ContainerUsage, MemoryUsage};

impl CriRuntimeInner {
    /// The usage of all containers of this agent.
    pub(super) async fn usage(&self) -> Result<Vec<ContainerUsage>, RuntimeError> {
        let label_selector = labels::selector(self.facts.layout(), None);
        let filter = Some(v1::ContainerStatsFilter { label_selector, ..Default::default() });
        let answer = self.client.list_container_stats(v1::ListContainerStatsRequest { filter }).await?;
        Ok(answer.stats.into_iter().filter_map(usage).collect())
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
}
