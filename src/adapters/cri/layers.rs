//! The disk space of the containers' writable layers, as the runtime reports it.

use std::cmp::Reverse;

use podwright_actors::ids::PodUid;
use podwright_actors::ports::{RuntimeError, UsedSpace, WritableLayer};

use super::config::labels;
use super::inner::CriRuntimeInner;
use super::v1;

impl CriRuntimeInner {
    /// The writable layer of the newest run of each of a pod's containers.
    pub(super) async fn writable_layers(&self, uid: &PodUid) -> Result<Vec<WritableLayer>, RuntimeError> {
        let label_selector = labels::selector(self.facts.layout(), Some(&uid.to_string()));
        let filter = Some(v1::ContainerStatsFilter { label_selector, ..Default::default() });
        let answer = self.client.list_container_stats(v1::ListContainerStatsRequest { filter }).await?;
        Ok(layers(answer.stats))
    }
}

/// The layers of the newest runs. A runtime measures a layer some seconds after its container was created, and leaves it out
/// until then.
fn layers(stats: Vec<v1::ContainerStats>) -> Vec<WritableLayer> {
    let mut runs: Vec<(v1::ContainerMetadata, v1::FilesystemUsage)> =
        stats.into_iter().filter_map(|run| Some((run.attributes?.metadata?, run.writable_layer?))).collect();
    runs.sort_by(|(one, _), (other, _)| (&one.name, Reverse(one.attempt)).cmp(&(&other.name, Reverse(other.attempt))));
    runs.dedup_by(|(older, _), (newer, _)| older.name == newer.name);
    let value = |number: Option<v1::UInt64Value>| number.map_or(0, |number| number.value);
    let layer = |(metadata, usage): (v1::ContainerMetadata, v1::FilesystemUsage)| WritableLayer {
        container: metadata.name,
        used: UsedSpace::new(value(usage.used_bytes), value(usage.inodes_used)),
    };
    runs.into_iter().map(layer).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layer_of_the_newest_run_counts() {
        let run = |name: &str, attempt, bytes: Option<u64>| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: format!("{name}{attempt}"),
                metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt }),
            }),
            writable_layer: bytes.map(|value| v1::FilesystemUsage {
                used_bytes: Some(v1::UInt64Value { value }),
                inodes_used: Some(v1::UInt64Value { value: 3 }),
                ..Default::default()
            }),
        };
        let stats = vec![run("b", 0, Some(1)), run("a", 2, Some(20)), run("a", 10, Some(30)), run("c", 0, None)];
        let layer = |name: &str, bytes| WritableLayer { container: name.to_owned(), used: UsedSpace::new(bytes, 3) };
        assert_eq!(layers(stats), [layer("a", 30), layer("b", 1)]);
    }
}
