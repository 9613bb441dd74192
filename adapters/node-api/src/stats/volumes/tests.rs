use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::advance;

use super::super::fields::ContainerStats;
use super::*;
use podwright_ports::PodStorage;

fn pod(name: &str) -> Arc<PodObject> {
    let pod = json!({
        "metadata": {"name": name, "namespace": "shop", "uid": name},
        "spec": {
            "containers": [{"name": "c"}],
            "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "ram", "emptyDir": {"medium": "Memory"}}],
        },
    });
    PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
}

struct Rig {
    _root: TempDir,
    storage: FileStorage,
    meter: VolumeMeter,
}

impl Rig {
    fn new() -> Self {
        let root = TempDir::new().unwrap();
        let storage = FileStorage::new(root.path(), BTreeMap::new()).without_mounts();
        Rig { meter: VolumeMeter::new(storage.clone()), storage, _root: root }
    }

    async fn set_up(&self, pod: &Arc<PodObject>) {
        self.storage.set_up(pod).await.unwrap();
    }

    fn cache(&self, pod: &Arc<PodObject>) -> std::path::PathBuf {
        self.storage.pod_dir(pod.uid()).join("volumes/kubernetes.io~empty-dir/cache")
    }

    /// The inodes of the volume `cache` of each pod.
    async fn inodes(&self, pods: &[Arc<PodObject>]) -> BTreeMap<String, u64> {
        let measured = self.meter.measure(pods).await;
        measured.iter().map(|(uid, pod)| (uid.to_string(), pod.space.volumes[0].used.inodes)).collect()
    }
}

fn add_file(dir: &Path, name: &str) {
    fs::write(dir.join(name), "x").unwrap();
}

/// Time is not paused from the start: a paused clock would advance to the end of the wait while a blocking thread measures.
#[tokio::test]
async fn a_measurement_is_kept_for_a_minute_at_least_and_two_at_most() {
    let (rig, pod) = (Rig::new(), pod("a"));
    rig.set_up(&pod).await;
    let pods = [pod.clone()];
    let start = Instant::now();
    assert_eq!(rig.inodes(&pods).await["a"], 1);
    add_file(&rig.cache(&pod), "one");
    tokio::time::pause();
    advance((PERIOD - Duration::from_secs(1)).saturating_sub(start.elapsed())).await;
    assert_eq!(rig.inodes(&pods).await["a"], 1, "the measurement is kept");
    advance(2 * PERIOD).await;
    tokio::time::resume();
    assert_eq!(rig.inodes(&pods).await["a"], 2, "the measurement is old");
    // The measurement of a pod that is not listed is forgotten.
    add_file(&rig.cache(&pod), "two");
    assert!(rig.inodes(&[]).await.is_empty());
    assert_eq!(rig.inodes(&pods).await["a"], 3);
}

#[tokio::test]
async fn requests_at_one_time_share_a_measurement() {
    let rig = Rig::new();
    let pods: Vec<_> = ["a", "b"].map(pod).into();
    for pod in &pods {
        rig.set_up(pod).await;
    }
    let first = rig.meter.running_pass(&pods).unwrap();
    assert!(!first.is_cancelled());
    // The task has had no turn yet.
    let second = rig.meter.running_pass(&pods).unwrap();
    first.cancel();
    assert!(second.is_cancelled(), "a second pass was started");
}

#[tokio::test]
async fn a_failed_measurement_is_not_repeated_at_once_and_keeps_the_previous_one() {
    let (rig, pod) = (Rig::new(), pod("a"));
    rig.set_up(&pod).await;
    let pods = [pod.clone()];
    assert_eq!(rig.inodes(&pods).await["a"], 1);
    // A file in the place of the directory of all volumes.
    let volumes = rig.storage.pod_dir(pod.uid()).join("volumes");
    fs::remove_dir_all(&volumes).unwrap();
    fs::write(&volumes, "").unwrap();
    tokio::time::pause();
    advance(2 * PERIOD).await;
    tokio::time::resume();
    assert_eq!(rig.inodes(&pods).await["a"], 1);
    assert!(rig.meter.running_pass(&pods).is_none(), "a failed measurement is repeated at once");
}

#[tokio::test]
async fn a_request_does_not_wait_for_a_slow_measurement() {
    let (rig, pod) = (Rig::new(), pod("a"));
    rig.set_up(&pod).await;
    let pods = [pod];
    // A pass that does not end.
    let pass = MeasuringPass { done: CancellationToken::new(), _task: JoinSet::new() };
    *rig.meter.pass.lock() = Some(pass);
    tokio::time::pause();
    let start = Instant::now();
    assert!(rig.meter.measure(&pods).await.is_empty());
    assert_eq!(start.elapsed().as_secs(), WAIT.as_secs());
}

#[test]
fn local_storage_of_a_pod_is_its_layers_logs_and_volumes_on_disk() {
    let volume = |name: &str, bytes, is_local_storage| VolumeSpace {
        name: name.into(),
        used: UsedSpace::new(bytes, 2),
        file_system: FileSystemSpace { device: 1, capacity: 900, available: 800, inodes: 70, inodes_free: 60 },
        is_local_storage,
    };
    let volumes = vec![volume("cache", 100, true), volume("token", 1000, false)];
    let space = PodSpace { volumes, logs: BTreeMap::from([("c".to_owned(), UsedSpace::new(10, 1))]) };
    let measured = MeasuredSpace { at: Timestamp::UNIX_EPOCH, space };
    let rootfs = Some(FsStats { used_bytes: Some(1), inodes_used: Some(4), ..FsStats::default() });
    let container =
        |name: &str| ContainerStats { name: name.into(), rootfs: rootfs.clone(), ..ContainerStats::default() };
    let mut pod = PodStats { containers: vec![container("c"), container("d")], ..PodStats::default() };
    let node = FsStats { time: "later".into(), used_bytes: Some(7), capacity_bytes: Some(5000), ..FsStats::default() };
    add(&mut pod, &measured, Some(&node));
    let found: Value = serde_json::to_value(&pod).unwrap();
    let at = "1970-01-01T00:00:00Z";
    assert_eq!(
        found["volume"],
        json!([
            {"name": "cache", "time": at, "usedBytes": 100, "inodesUsed": 2, "capacityBytes": 900, "availableBytes": 800,
                "inodes": 70, "inodesFree": 60},
            {"name": "token", "time": at, "usedBytes": 1000, "inodesUsed": 2, "capacityBytes": 900, "availableBytes": 800,
                "inodes": 70, "inodesFree": 60},
        ])
    );
    let of_node =
        |bytes: u64, inodes: u64| json!({"time": at, "usedBytes": bytes, "inodesUsed": inodes, "capacityBytes": 5000});
    assert_eq!(found["ephemeral-storage"], of_node(112, 11));
    assert_eq!(found["containers"][0]["logs"], of_node(10, 1));
    assert!(found["containers"][1].get("logs").is_none());
}
