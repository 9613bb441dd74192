mod in_memory;
mod objects;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::mounts;
use podwright_model::text::error_chain;

struct Node {
    root: TempDir,
    storage: FileStorage,
}

impl Node {
    fn new() -> Node {
        let root = TempDir::new().unwrap();
        let allocatable = BTreeMap::from([("memory".to_owned(), Quantity("1Gi".into()))]);
        Node { storage: FileStorage::new(&root.path().join("node"), allocatable), root }
    }

    async fn set_up(&self, pod: &Arc<PodObject>) -> VolumeMounts {
        self.storage.set_up(pod).await.unwrap()
    }

    fn dir(&self) -> PathBuf {
        self.storage.pod_dir(&uid())
    }
}

fn uid() -> PodUid {
    PodUid::new("uid-1")
}

fn pod(volumes: Value) -> Arc<PodObject> {
    pod_with(json!({"tier": "front"}), volumes)
}

fn pod_with(labels: Value, volumes: Value) -> Arc<PodObject> {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "uid-1", "labels": labels},
        "spec": {"containers": [{"name": "c"}], "volumes": volumes},
    });
    PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
}

fn memory(more: Value) -> Value {
    json!([{"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}, more])
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// The sticky bit, if the volume is a mounted tmpfs.
fn sticky(volume: &Path) -> u32 {
    if mounts::exactly_at(volume).unwrap().is_some() { 0o1000 } else { 0 }
}

#[tokio::test]
async fn pod_directories_exist_until_the_pod_is_removed() {
    let node = Node::new();
    let pod = pod(
        json!([{"name": "data", "emptyDir": {}}, {"name": "ram", "emptyDir": {"medium": "Memory"}}, {"name": "x"}]),
    );
    let mounts = node.set_up(&pod).await;
    let data = node.dir().join("volumes/kubernetes.io~empty-dir/data");
    assert_eq!(mounts["data"], data);
    assert_eq!(mounts.len(), 3);
    assert_eq!((mode(&node.dir()), mode(&node.dir().join("volumes")), mode(&data)), (0o700, 0o751, 0o777));
    assert_eq!(node.storage.pods().await, Ok(vec![uid()]));

    fs::write(data.join("file"), "kept").unwrap();
    node.set_up(&pod).await;
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "kept");

    fs::create_dir_all(node.dir().join("containers/c")).unwrap();
    node.storage.remove_pod(&uid(), Box::new(|| false)).await.unwrap();
    assert_eq!(fs::read_to_string(data.join("file")).unwrap(), "kept");

    for _ in 0..2 {
        node.storage.tear_down(&uid()).await.unwrap();
        assert!(!data.exists());
    }
    for _ in 0..2 {
        node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
        assert_eq!(node.storage.pods().await, Ok(vec![]));
    }
}

#[tokio::test]
async fn pod_directory_is_passable_only_for_the_pods_own_group() {
    let node = Node::new();
    let is_root = rustix::process::geteuid().is_root();
    for (of_pod, of_container, own_group) in [
        (json!(null), json!(null), false),
        (json!({"runAsNonRoot": true}), json!({"privileged": false}), false),
        (json!({"runAsUser": 65534}), json!(null), is_root),
        (json!(null), json!({"runAsGroup": 65534}), is_root),
        (json!({"runAsUser": 65534, "fsGroup": 65534}), json!({"runAsUser": 1}), is_root),
    ] {
        let mut pod = pod(json!([{"name": "data", "emptyDir": {}}])).pod().clone();
        let spec = pod.spec.as_mut().unwrap();
        spec.security_context = serde_json::from_value(of_pod.clone()).unwrap();
        spec.containers[0].security_context = serde_json::from_value(of_container.clone()).unwrap();
        let pod = PodObject::new(pod).unwrap();
        let mounts = node.set_up(&pod).await;
        let group = fs::metadata(node.dir()).unwrap().gid();
        let found = (mode(&node.dir()), pod_group::RANGE.contains(&group));
        assert_eq!(found, (if own_group { 0o710 } else { 0o700 }, own_group), "{of_pod} {of_container}");
        let below = mounts["data"].ancestors().skip(1).take_while(|dir| *dir != node.dir());
        assert!(below.map(mode).all(|mode| mode & 1 == 1), "the pod's users reach the volume");
        assert_eq!(mode(&node.root.path().join("node/pods")), 0o751);
        node.storage.clone().for_mounted_volumes().set_up(&pod).await.unwrap();
        assert_eq!(mode(&node.dir()), 0o750, "containers with mounted volumes do not use the path");
        node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
    }
}

#[tokio::test]
async fn removal_follows_no_link_and_keeps_foreign_volumes() {
    let node = Node::new();
    let outside = node.root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "").unwrap();
    let host = json!({"name": "host", "hostPath": {"path": outside, "type": "Directory"}});
    let mounts = node.set_up(&pod(json!([{"name": "data"}, host]))).await;
    assert_eq!(mounts["host"], outside);

    symlink(&outside, mounts["data"].join("link")).unwrap();
    let locked = mounts["data"].join("locked");
    fs::create_dir(&locked).unwrap();
    fs::write(locked.join("file"), "").unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    // The working directory of a process container links to its volumes.
    let work = node.dir().join("containers/c");
    fs::create_dir_all(&work).unwrap();
    symlink(&outside, work.join("host")).unwrap();
    let foreign = node.dir().join("volumes/example.com~other/v");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("file"), "").unwrap();

    node.storage.tear_down(&uid()).await.unwrap();
    assert!(!mounts["data"].exists());
    let error = node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap_err();
    assert!(error.to_string().contains("example.com~other/v"), "{error}");
    assert!(foreign.join("file").exists() && work.exists());

    fs::remove_file(foreign.join("file")).unwrap();
    node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
    assert!(!node.dir().exists());
    assert!(outside.join("precious").exists());
}

fn downward() -> Value {
    json!([{"name": "info", "downwardAPI": {"defaultMode": 0o440, "items": [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "meta/labels", "mode": 0o400, "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "memory", "resourceFieldRef": {"containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}},
    ]}}])
}

#[tokio::test]
async fn downward_api_volume_changes_atomically_with_the_pod() {
    let node = Node::new();
    let mounts = node.set_up(&pod(downward())).await;
    let dir = &mounts["info"];
    assert_eq!(*dir, node.dir().join("volumes/kubernetes.io~downward-api/info"));
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    assert_eq!(
        (read("name"), read("meta/labels"), read("memory")),
        ("web".into(), "tier=\"front\"".into(), "1024".into())
    );
    assert_eq!(fs::metadata(dir.join("name")).unwrap().mode() & 0o7777, 0o440);
    assert_eq!(fs::metadata(dir.join("meta/labels")).unwrap().mode() & 0o7777, 0o400);
    assert_eq!(fs::read_link(dir.join("meta")).unwrap(), Path::new("..data/meta"));

    let set = fs::read_link(dir.join("..data")).unwrap();
    node.set_up(&pod(downward())).await;
    assert_eq!(fs::read_link(dir.join("..data")).unwrap(), set, "nothing changed, nothing is written");

    // A changed label gives a new set.
    node.set_up(&pod_with(json!({"tier": "back"}), downward())).await;
    assert_ne!(fs::read_link(dir.join("..data")).unwrap(), set);
    assert_eq!(read("meta/labels"), "tier=\"back\"");
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names.len(), 5, "links, ..data and one set: {names:?}");
    node.storage.tear_down(&uid()).await.unwrap();
    assert!(!dir.exists());
}

#[tokio::test]
async fn projected_volume_supports_downward_api_sources_only() {
    let node = Node::new();
    let part = json!({"downwardAPI": {"items": [{"path": "./m//n", "fieldRef": {"fieldPath": "metadata.namespace"}}]}});
    let mounts = node.set_up(&pod(json!([{"name": "p", "projected": {"sources": [part]}}]))).await;
    assert_eq!(fs::read_to_string(mounts["p"].join("m/n")).unwrap(), "shop");

    let static_only = "use emptyDir, hostPath, downwardAPI, or projected with downwardAPI sources only";
    for (volume, kind, remedy) in [
        (
            json!({"name": "p", "projected": {"sources": [part, {"secret": {"name": "s"}}]}}),
            "projected (source secret)",
            static_only,
        ),
        (json!({"name": "p", "secret": {"secretName": "s"}}), "secret", static_only),
        (
            json!({"name": "p", "nfs": {"server": "s", "path": "/"}}),
            "nfs",
            "use emptyDir, hostPath, configMap, secret, projected or downwardAPI",
        ),
        (json!({"name": "p", "image": {"reference": "i"}}), "image", "run the pod with a container runtime"),
    ] {
        let error = node.storage.set_up(&pod(json!([volume]))).await.unwrap_err();
        assert!(matches!(&error, StorageError::Unsupported { volume, .. } if volume == "p"), "{error}");
        let text = format!("volume \"p\": {kind} volumes are not supported: {remedy}");
        assert!(error.to_string().starts_with(&text), "{error}");
    }
    // A runtime that mounts volumes mounts images too.
    let Node { storage, root: _root } = node;
    let storage = storage.for_mounted_volumes();
    let image = pod(json!([{"name": "p", "image": {"reference": "i"}}]));
    assert_eq!(storage.set_up(&image).await, Ok(VolumeMounts::new()));
    let error = storage.set_up(&pod(json!([{"name": "p", "nfs": {"server": "s", "path": "/"}}]))).await.unwrap_err();
    assert!(error.to_string().ends_with("use emptyDir, hostPath, image, configMap, secret, projected or downwardAPI"));
}

#[tokio::test]
async fn host_path_volume_must_have_its_declared_type() {
    let node = Node::new();
    let at = |name: &str| node.root.path().join(name);
    fs::create_dir(at("dir")).unwrap();
    fs::write(at("file"), "x").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    let cases = [
        ("dir", "", true),
        ("none", "", true),
        ("dir", "Directory", true),
        ("file", "Directory", false),
        ("none", "Directory", false),
        ("file", "File", true),
        ("dir", "File", false),
        ("socket", "Socket", true),
        ("file", "Socket", false),
        ("file", "CharDevice", false),
        ("file", "BlockDevice", false),
        ("file", "Unheard", false),
        ("file", "DirectoryOrCreate", false),
        ("made/dir", "DirectoryOrCreate", true),
        ("made/dir", "DirectoryOrCreate", true),
        ("made/file", "FileOrCreate", true),
        ("made/file", "FileOrCreate", true),
        ("missing/file", "FileOrCreate", false),
        ("dir", "FileOrCreate", false),
    ];
    for (name, kind, good) in cases {
        let volume = json!({"name": "h", "hostPath": {"path": at(name), "type": kind}});
        let result = node.storage.set_up(&pod(json!([volume]))).await;
        assert_eq!(result.is_ok(), good, "{name} as {kind}: {result:?}");
        if let Err(error) = result {
            let text = error_chain(&error).to_string();
            let path = at(name).display().to_string();
            let what = match kind {
                "DirectoryOrCreate" | "Directory" => "directory",
                "FileOrCreate" | "File" => "file",
                "Socket" => "socket file",
                "CharDevice" => "character device",
                _ => "block device",
            };
            let expected = match (name, kind) {
                (_, "Unheard") => "Unheard is an invalid volume type".to_owned(),
                ("missing/file", _) => format!("hostPath {path} of type {kind} cannot be created"),
                _ => format!("hostPath type check failed: {path} is not a {what}"),
            };
            assert!(text.starts_with(&format!("volume \"h\": {expected}")), "{text}");
        }
    }
    let device = json!({"name": "h", "hostPath": {"path": "/dev/null", "type": "CharDevice"}});
    assert!(node.storage.set_up(&pod(json!([device]))).await.is_ok());
    assert!(at("made/dir").is_dir() && at("made/file").is_file() && !at("none").exists());
}

#[tokio::test]
async fn restart_count_is_read_from_the_log_directory() {
    let node = Node::new();
    let pod = pod(json!([]));
    node.set_up(&pod).await;
    assert_eq!(node.storage.restarts_by_log(&pod, "c").await, None);
    let logs = node.dir().join("logs/c");
    fs::create_dir_all(&logs).unwrap();
    assert_eq!(node.storage.restarts_by_log(&pod, "c").await, None);
    for name in ["0.log", "9.log", "10.log.20260101-000000", "x.log", "7.txt"] {
        fs::write(logs.join(name), "").unwrap();
    }
    assert_eq!(node.storage.restarts_by_log(&pod, "c").await, Some(11));
    assert_eq!(node.storage.restarts_by_log(&pod, "..").await, None);

    let elsewhere = node.root.path().join("log");
    let storage =
        node.storage.clone().with_logs(PodLogs { pods: elsewhere.clone(), links: elsewhere.with_extension("links") });
    assert_eq!(storage.restarts_by_log(&pod, "c").await, None);
    let name = pod.full_name();
    let logs = elsewhere.join(format!("{}_{}_{}/c", name.namespace(), name.name(), pod.uid()));
    fs::create_dir_all(&logs).unwrap();
    fs::write(logs.join("2.log"), "").unwrap();
    assert_eq!(storage.restarts_by_log(&pod, "c").await, Some(3));
}

// A kubelet, or an agent with another root, may log to the same place.
#[tokio::test]
async fn pod_logs_are_removed_with_the_pod_and_others_stay() {
    let node = Node::new();
    let log = node.root.path().join("log");
    let logs = PodLogs { pods: log.join("pods"), links: log.join("containers") };
    let storage = node.storage.clone().with_logs(logs.clone());
    storage.set_up(&pod(json!([{"name": "data"}]))).await.unwrap();
    fs::create_dir_all(&logs.links).unwrap();
    let put = |dir: &str| {
        fs::create_dir_all(logs.pods.join(dir).join("c")).unwrap();
        fs::write(logs.pods.join(dir).join("c/0.log"), "x").unwrap();
        // A link to a log that exists, and a broken link.
        for run in 0..2 {
            let link = logs.links.join(format!("{dir}-{run}.log"));
            let _ = fs::remove_file(&link);
            symlink(logs.pods.join(dir).join(format!("c/{run}.log")), link).unwrap();
        }
    };
    let names = |dir: &Path| {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let others = ["shop_web_uid-2", "shop_x-uid-1", "a_b_c_uid-1"];
    others.iter().for_each(|dir| put(dir));
    symlink(logs.pods.join("gone/c/0.log"), logs.links.join("kubelet.log")).unwrap();
    let (before, links) = (names(&logs.pods), names(&logs.links));
    put("shop_web_uid-1");
    assert_eq!(storage.pods().await, Ok(vec![uid()]), "a pod that has only logs here belongs to another agent");

    // While the logs cannot be removed, the pod's directory stays, because it shows that the logs are this agent's.
    let stuck = logs.pods.join("shop_web_uid-1/stuck");
    fs::create_dir(&stuck).unwrap();
    let bound = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&stuck).output();
    if bound.is_ok_and(|output| output.status.success()) {
        let (removed, left) = (storage.remove_pod(&uid(), Box::new(|| true)).await, storage.pods().await);
        assert!(Command::new("umount").arg(&stuck).status().unwrap().success());
        let error = removed.unwrap_err();
        assert!(error_chain(&error).to_string().contains("stuck"), "{error:?}");
        assert_eq!(left, Ok(vec![uid()]));
    }
    for _ in 0..2 {
        storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
        assert_eq!((names(&logs.pods), names(&logs.links)), (before.clone(), links.clone()));
        assert_eq!(storage.pods().await, Ok(vec![]));
        // The runtime removes the logs with the sandbox, but not the links.
        storage.set_up(&pod(json!([]))).await.unwrap();
        put("shop_web_uid-1");
        fs::remove_dir_all(logs.pods.join("shop_web_uid-1")).unwrap();
    }
}

#[tokio::test]
async fn volume_modes_changed_by_a_container_are_kept() {
    let node = Node::new();
    let own = rustix::process::getegid().as_raw();
    for group in [None, Some(own)] {
        let mut pod = pod(memory(json!({"name": "data", "emptyDir": {}}))).pod().clone();
        let context = serde_json::from_value(json!({"fsGroup": group})).unwrap();
        pod.spec.as_mut().unwrap().security_context = Some(context);
        let pod = PodObject::new(pod).unwrap();
        // An interrupted setup left an unfinished directory.
        let unfinished = node.dir().join("volumes/kubernetes.io~empty-dir/data.new");
        fs::create_dir_all(&unfinished).unwrap();
        fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o700)).unwrap();
        let first = node.set_up(&pod).await;
        for volume in first.values() {
            let expected = if group.is_some() { 0o2777 } else { 0o777 };
            assert_eq!(mode(volume), expected | sticky(volume), "{}", volume.display());
            fs::set_permissions(volume, fs::Permissions::from_mode(0o1700)).unwrap();
        }
        assert!(!unfinished.exists());
        assert_eq!(node.set_up(&pod).await, first);
        assert!(first.values().all(|volume| mode(volume) == 0o1700), "the container's mode");
        node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
    }
}

#[tokio::test]
async fn pod_uid_cannot_lead_out_of_the_root_directory() {
    let node = Node::new();
    for uid in ["..", ".", "", "a/b", "/etc"] {
        let uid = PodUid::new(uid);
        assert!(node.storage.tear_down(&uid).await.is_err());
        assert!(node.storage.remove_pod(&uid, Box::new(|| true)).await.is_err());
    }
    assert!(node.root.path().exists());
}

// The setup of a cancelled call must not go on after the pod was removed.
#[tokio::test]
async fn cancelled_setup_ends_before_the_next_storage_call() {
    let node = Node::new();
    let pod = pod(downward());
    for _ in 0..50 {
        let _ = node.storage.set_up(&pod).now_or_never();
        node.storage.tear_down(&uid()).await.unwrap();
        node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
        assert_eq!(node.storage.pods().await, Ok(vec![]));
    }
}

#[tokio::test]
async fn fs_group_or_mode_that_is_not_valid_is_refused() {
    let node = Node::new();
    let with_group = |volumes: Value, group: i64| {
        let mut pod = pod(volumes).pod().clone();
        pod.spec.as_mut().unwrap().security_context = serde_json::from_value(json!({"fsGroup": group})).unwrap();
        PodObject::new(pod).unwrap()
    };
    for bad in [-1, 1 << 31, 1 << 32] {
        for volumes in [json!([{"name": "data", "emptyDir": {}}]), downward()] {
            let error = node.storage.set_up(&with_group(volumes, bad)).await.unwrap_err();
            let error = error_chain(&error).to_string();
            assert!(error.contains(&format!("`fsGroup` {bad} is not")), "{error}");
        }
    }
    for bad in [-1, 0o1000] {
        let items = json!([{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]);
        let volume = json!([{"name": "info", "downwardAPI": {"defaultMode": bad, "items": items}}]);
        let error = node.storage.set_up(&pod(volume)).await.unwrap_err();
        assert!(error_chain(&error).to_string().contains("mode"), "{error:?}");
    }
}

#[tokio::test]
async fn fs_group_owns_the_volumes_of_its_pod() {
    let node = Node::new();
    if chown(node.root.path(), None, Some(2000)).is_err() {
        eprintln!("skipped: not allowed to give files away");
        return;
    }
    let volumes = [memory(json!({"name": "data", "emptyDir": {}})), downward()];
    let volumes: Vec<_> = volumes.into_iter().flat_map(|list| list.as_array().unwrap().clone()).collect();
    let mut pod = pod(json!(volumes)).pod().clone();
    pod.spec.as_mut().unwrap().security_context = serde_json::from_value(json!({"fsGroup": 2000})).unwrap();
    let pod = PodObject::new(pod).unwrap();
    let mut set = None;
    for _ in 0..2 {
        let mounts = node.set_up(&pod).await;
        for (name, volume) in &mounts {
            let expected = if name == "info" { 0o750 } else { 0o2777 | sticky(volume) };
            assert_eq!((fs::metadata(volume).unwrap().gid(), mode(volume)), (2000, expected), "{}", volume.display());
        }
        let labels = fs::metadata(mounts["info"].join("meta/labels")).unwrap();
        assert_eq!((labels.gid(), labels.mode() & 0o7777), (2000, 0o440), "the group may read the file");
        let current = fs::read_link(mounts["info"].join("..data")).unwrap();
        assert_eq!(set.replace(current.clone()).unwrap_or(current.clone()), current, "it is not written again");
    }
    node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
}
