//! The disk space and the memory of a pod's containers, as the runtime reports them.

use std::cmp::Reverse;

use podwright_model::ids::PodUid;
use podwright_ports::{ContainerProcesses, ProcessUsage, RuntimeError, UsedSpace, WritableLayer};

use super::inner::CriRuntimeInner;
use super::inspect::PodFilter;
use super::v1;

impl CriRuntimeInner {
    /// The writable layer of the newest run of each of a pod's containers.
    pub(super) async fn writable_layers(&self, uid: &PodUid) -> Result<Vec<WritableLayer>, RuntimeError> {
        Ok(layers(self.container_stats(PodFilter::OfPod(&uid.to_string())).await?))
    }

    /// The memory of the newest run of each of a pod's containers. The runtime does not report the number of processes.
    pub(super) async fn process_usage(&self, uid: &PodUid) -> Result<ProcessUsage, RuntimeError> {
        Ok(memory(self.container_stats(PodFilter::OfPod(&uid.to_string())).await?))
    }
}

/// The writable layers of the newest runs. A runtime measures a layer some seconds after the creation of its container, and does not
/// report the layer before that.
fn layers(stats: Vec<v1::ContainerStats>) -> Vec<WritableLayer> {
    let layer = |(container, usage): (String, v1::FilesystemUsage)| WritableLayer {
        container,
        used: UsedSpace::new(value(usage.used_bytes), value(usage.inodes_used)),
    };
    newest(stats, |run| run.writable_layer).into_iter().map(layer).collect()
}

/// The memory of the newest runs. The runtime reports no memory for a container that has ended.
fn memory(stats: Vec<v1::ContainerStats>) -> ProcessUsage {
    let memory = newest(stats, |run| run.memory?.working_set_bytes);
    let of_container = |bytes| ContainerProcesses { memory: value(Some(bytes)), processes: 0 };
    memory.into_iter().map(|(container, bytes)| (container, of_container(bytes))).collect()
}

/// The values of `of` for the newest runs that have one, by container name.
fn newest<T>(stats: Vec<v1::ContainerStats>, of: impl Fn(v1::ContainerStats) -> Option<T>) -> Vec<(String, T)> {
    let run = |mut run: v1::ContainerStats| Some((run.attributes.take()?.metadata?, of(run)?));
    let mut runs: Vec<(v1::ContainerMetadata, T)> = stats.into_iter().filter_map(run).collect();
    runs.sort_by(|(one, _), (other, _)| (&one.name, Reverse(one.attempt)).cmp(&(&other.name, Reverse(other.attempt))));
    runs.dedup_by(|(older, _), (newer, _)| older.name == newer.name);
    runs.into_iter().map(|(metadata, reported)| (metadata.name, reported)).collect()
}

fn value(number: Option<v1::UInt64Value>) -> u64 {
    number.map_or(0, |number| number.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_of_the_newest_run_counts() {
        let run = |name: &str, attempt, bytes: Option<u64>| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: format!("{name}{attempt}"),
                metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt }),
                ..Default::default()
            }),
            writable_layer: bytes.map(|value| v1::FilesystemUsage {
                used_bytes: Some(v1::UInt64Value { value }),
                inodes_used: Some(v1::UInt64Value { value: 3 }),
                ..Default::default()
            }),
            memory: bytes.map(|value| v1::MemoryUsage {
                working_set_bytes: Some(v1::UInt64Value { value }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let stats = vec![run("b", 0, Some(1)), run("a", 2, Some(20)), run("a", 10, Some(30)), run("c", 0, None)];
        let layer = |name: &str, bytes| WritableLayer { container: name.to_owned(), used: UsedSpace::new(bytes, 3) };
        assert_eq!(layers(stats.clone()), [layer("a", 30), layer("b", 1)]);
        let used = |memory| ContainerProcesses { memory, processes: 0 };
        assert_eq!(memory(stats), [("a".to_owned(), used(30)), ("b".to_owned(), used(1))].into());
    }
}
