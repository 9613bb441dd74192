use std::collections::BTreeMap;
use std::fs;

use podwright_ports::{PodStorage, UsedSpace};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::storage::PodLogs;

fn pod() -> Arc<PodObject> {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "uid-1"},
        "spec": {
            "containers": [{"name": "c"}, {"name": "silent"}],
            "initContainers": [{"name": "init"}],
            "volumes": [
                {"name": "cache", "emptyDir": {"sizeLimit": "1Mi"}},
                {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "host", "hostPath": {"path": "/"}},
            ],
        },
    });
    PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
}

#[tokio::test]
async fn a_pod_uses_the_space_of_its_volumes_and_logs() {
    let root = TempDir::new().unwrap();
    let of_runtime = PodLogs { pods: root.path().join("logs"), links: root.path().join("links") };
    let own = FileStorage::new(&root.path().join("node"), BTreeMap::new());
    let outside = FileStorage::new(&root.path().join("other"), BTreeMap::new()).with_logs(of_runtime);
    for storage in [own, outside] {
        let pod = pod();
        assert_eq!(storage.pod_usage(&pod).await.unwrap().volumes["cache"], UsedSpace::default(), "before set-up");
        let paths = storage.set_up(&pod).await.unwrap();
        let write = |volume: &str| {
            fs::write(paths[volume].join("file"), vec![1; 100_000]).unwrap();
            fs::File::open(paths[volume].join("file")).unwrap().sync_all().unwrap();
        };
        ["cache", "ram"].into_iter().for_each(write);
        let log = storage.log_dir(pod.full_name(), pod.uid(), "c").unwrap().path();
        fs::create_dir_all(&log).unwrap();
        for file in ["0.log", "1.log", "1.log.20260101-000000"] {
            fs::write(log.join(file), vec![1; 10_000]).unwrap();
            fs::File::open(log.join(file)).unwrap().sync_all().unwrap();
        }
        let usage = storage.pod_usage(&pod).await.unwrap();
        storage.tear_down(pod.uid()).await.unwrap();
        let names: Vec<_> = usage.volumes.keys().map(String::as_str).collect();
        assert_eq!(names, ["cache", "ram"], "a hostPath is not measured");
        for (volume, used) in &usage.volumes {
            assert!((100_000..150_000).contains(&used.bytes) && used.inodes == 2, "{volume}: {used:?}");
        }
        let logs: Vec<_> = usage.logs.iter().map(|(name, used)| (name.as_str(), used.inodes)).collect();
        assert_eq!(logs, [("c", 4), ("init", 0), ("silent", 0)]);
        assert!((30_000..60_000).contains(&usage.logs["c"].bytes), "{usage:?}");
        let node = storage.node_file_system().await.unwrap();
        assert!(node.capacity > node.available && node.available > 0, "{node:?}");
    }
}

#[tokio::test]
async fn each_volume_of_a_pod_has_its_space_and_its_file_system() {
    let (root, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(other.path().join("big"), vec![1; 1_000_000]).unwrap();
    let pod = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "uid-1"},
        "spec": {
            "containers": [{"name": "c"}],
            "volumes": [
                {"name": "cache", "emptyDir": {}},
                {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                {"name": "host", "hostPath": {"path": other.path()}},
                {"name": "info", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"name": "plain"},
            ],
        },
    });
    let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
    let storage = FileStorage::new(root.path(), BTreeMap::new());
    assert_eq!(storage.pod_space(&pod).await.unwrap().volumes, [], "before set-up");
    let paths = storage.set_up(&pod).await.unwrap();
    fs::write(paths["cache"].join("file"), vec![1; 100_000]).unwrap();
    fs::File::open(paths["cache"].join("file")).unwrap().sync_all().unwrap();
    std::os::unix::fs::symlink(other.path(), paths["cache"].join("link")).unwrap();
    fs::write(paths["ram"].join("file"), vec![1; 10_000]).unwrap();
    let space = storage.pod_space(&pod).await.unwrap();
    let is_mounted = crate::mounts::exactly_at(&paths["ram"]).unwrap().is_some();
    storage.tear_down(pod.uid()).await.unwrap();
    let found: Vec<_> = space.volumes.iter().map(|it| (it.name.as_str(), it.is_local_storage)).collect();
    assert_eq!(found, [("cache", true), ("ram", false), ("info", false), ("plain", true)]);
    let [cache, ram, info, plain] = &space.volumes[..] else { panic!("{space:?}") };
    assert!((100_000..150_000).contains(&cache.used.bytes) && cache.used.inodes == 3, "{cache:?}");
    assert!(info.used.inodes > 1 && plain.used.inodes == 1, "{space:?}");
    let node = storage.node_file_system().await.unwrap();
    assert_eq!((cache.file_system.device, cache.file_system.capacity), (node.device, node.capacity));
    if is_mounted {
        assert_eq!(ram.file_system.capacity, 1 << 20, "{ram:?}");
        assert!((10_000..20_000).contains(&ram.used.bytes), "{ram:?}");
    }
    assert_eq!(space.logs.keys().collect::<Vec<_>>(), ["c"]);
}
