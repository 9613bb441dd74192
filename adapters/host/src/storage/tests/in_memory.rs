//! Volumes in memory, and mounts of other programs.

use super::*;

/// The type of the file system that is mounted at a path.
fn mounted(path: &Path) -> Option<String> {
    mounts::exactly_at(path).unwrap().map(|mounted| mounted.kind)
}

#[tokio::test]
async fn memory_volume_has_its_size_limit_and_ends_with_its_pod() {
    let node = Node::new();
    let pod = pod(memory(json!({"name": "host", "hostPath": {"path": node.root.path()}})));
    let ram = node.set_up(&pod).await["ram"].clone();
    assert!(ram.starts_with(node.dir()));
    if mounted(&ram).is_none() {
        eprintln!("skipped: not allowed to mount");
        return;
    }
    // Only the owner of a file may delete it.
    assert_eq!((mounted(&ram).as_deref(), mode(&ram)), (Some("tmpfs"), 0o1777));
    assert!(fs::write(ram.join("file"), vec![1; 2 << 20]).is_err(), "it is full");
    fs::write(ram.join("file"), "kept").unwrap();

    // The next agent finds the mounted volume.
    let again = FileStorage::new(&node.root.path().join("node"), BTreeMap::new());
    again.set_up(&pod).await.unwrap();
    assert_eq!(fs::read_to_string(ram.join("file")).unwrap(), "kept");
    assert_eq!(mounts::below(&ram).unwrap().len(), 1);

    // The error names the process that uses the volume, and nothing is removed.
    let held = fs::File::open(ram.join("file")).unwrap();
    let error = again.tear_down(&uid()).await.unwrap_err();
    let own = format!("process {} (", std::process::id());
    let StorageError::Busy { volume, source } = &error else { panic!("{error}") };
    let reason = error_chain(&**source).to_string();
    assert!(volume == "ram" && reason.contains(ram.to_str().unwrap()) && reason.contains(&own), "{error}");
    assert_eq!(fs::read_to_string(ram.join("file")).unwrap(), "kept");
    drop(held);

    // An agent that crashed leaves nothing behind: the next one finds the mount and removes the pod.
    again.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
    assert!(!node.dir().exists() && mounts::below(&node.dir()).unwrap().is_empty());

    let plain = node.storage.clone().without_mounts();
    plain.set_up(&pod).await.unwrap();
    fs::write(ram.join("file"), "on disk").unwrap();
    node.set_up(&pod).await;
    assert_eq!((mounted(&ram), fs::read_to_string(ram.join("file")).unwrap()), (None, "on disk".to_owned()));
}

// KF21. The worst fault of an orphan's removal would be to empty a file system that is mounted in the pod's directory.
#[tokio::test]
async fn nothing_is_removed_through_a_foreign_mount() {
    let node = Node::new();
    let precious = node.root.path().join("precious");
    fs::create_dir(&precious).unwrap();
    fs::write(precious.join("file"), "").unwrap();
    let mounts = node.set_up(&pod(memory(json!({"name": "data", "emptyDir": {}})))).await;
    for below in ["volumes/kubernetes.io~empty-dir/data/in", "containers/c/in", "volumes/example.com~other/v", "in"] {
        let at = node.dir().join(below);
        fs::create_dir_all(&at).unwrap();
        let bound = Command::new("mount").arg("--bind").args([&precious, &at]).output();
        if !bound.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: not allowed to mount");
            return;
        }
        for _ in 0..2 {
            let _ = node.storage.tear_down(&uid()).await;
            let error = node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap_err();
            assert!(error_chain(&error).to_string().contains(below), "{below}: {error:?}");
        }
        assert!(Command::new("umount").arg(&at).status().unwrap().success());
        assert!(precious.join("file").exists(), "{below}");
        assert!(!mounts["ram"].exists() || below.starts_with("volumes/kubernetes.io~empty-dir"), "the rest is gone");
        if below.starts_with("volumes/example") {
            fs::remove_dir(&at).unwrap();
        }
    }
    node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
    assert!(!node.dir().exists() && precious.join("file").exists());
}

#[test]
fn memory_volume_limit_is_the_smallest_of_volume_pod_and_node() {
    let limit = |size: Value, of_containers: &[&str], node: Option<&str>| {
        let containers: Vec<_> = of_containers
            .iter()
            .map(|limit| if limit.is_empty() { json!({}) } else { json!({"limits": {"memory": limit}}) })
            .map(|resources| json!({"name": "c", "resources": resources}))
            .collect();
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": containers}});
        let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
        let source = serde_json::from_value(json!({"medium": "Memory", "sizeLimit": size})).unwrap();
        empty_dir::limit(&source, &pod, node.map(|node| Quantity(node.into())).as_ref())
    };
    for bad in ["1Mib", "-1", ""] {
        let error = limit(json!(bad), &[""], Some("1Gi")).unwrap_err();
        assert!(error.contains("sizeLimit") && error.contains(bad), "{error}");
    }
    assert_eq!(limit(json!("1Mi"), &[""], Some("1Gi")), Ok(Some(1 << 20)));
    assert_eq!(limit(json!("2Gi"), &[""], Some("1Gi")), Ok(Some(1 << 30)));
    assert_eq!(limit(json!("0"), &[""], Some("1Gi")), Ok(Some(1 << 30)));
    assert_eq!(limit(json!(null), &[""], Some("1Gi")), Ok(Some(1 << 30)));
    assert_eq!(limit(json!(null), &["1Mi", "2Mi"], Some("1Gi")), Ok(Some(3 << 20)));
    assert_eq!(limit(json!("1Mi"), &["1Mi", "2Mi"], Some("1Gi")), Ok(Some(1 << 20)));
    assert_eq!(limit(json!(null), &["1Mi", ""], Some("1Gi")), Ok(Some(1 << 30)));
    assert_eq!(limit(json!(null), &[""], None), Ok(None));
}

fn huge_pages(medium: &str, size: &str, group: Option<i64>) -> Arc<PodObject> {
    let mut pod = pod(json!([{"name": "h", "emptyDir": {"medium": medium, "sizeLimit": "1Gi"}}])).pod().clone();
    let spec = pod.spec.as_mut().unwrap();
    let limits = json!({"limits": {(format!("hugepages-{size}")): "1Gi"}});
    spec.containers[0].resources = serde_json::from_value(limits).unwrap();
    spec.security_context = serde_json::from_value(json!({"fsGroup": group})).unwrap();
    PodObject::new(pod).unwrap()
}

#[tokio::test]
async fn huge_pages_volume_that_cannot_be_mounted_is_refused_with_a_remedy() {
    let node = Node::new();
    for (pod, says) in [
        (huge_pages("HugePages-2Mi", "1Gi", None), "requests hugepages-2Mi"),
        // No kernel has pages of this size. Without the right to mount, the remedy is another one.
        (huge_pages("HugePages", "3Ki", None), "cannot mount huge pages"),
        (pod(json!([{"name": "h", "emptyDir": {"medium": "Disk"}}])), "use the medium Memory or HugePages"),
    ] {
        let error = error_chain(&node.storage.set_up(&pod).await.unwrap_err()).to_string();
        assert!(error.contains("\"h\"") && error.contains(says), "{error}");
        assert_eq!(mounts::below(&node.dir()).unwrap(), []);
    }
    // Nothing uses the volumes of simulated pods.
    let simulated = Node::new().storage.without_mounts();
    simulated.set_up(&huge_pages("HugePages", "3Ki", None)).await.unwrap();
}

#[tokio::test]
async fn huge_pages_volume_has_the_mode_of_a_volume_and_ends_with_its_pod() {
    let kibibytes = |entry: io::Result<fs::DirEntry>| {
        let name = entry.ok()?.file_name().into_string().ok()?;
        Some(format!("{}Ki", name.strip_prefix("hugepages-")?.strip_suffix("kB")?))
    };
    let mut sizes = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().filter_map(kibibytes);
    let Some(size) = sizes.next() else { return eprintln!("skipped: the kernel has no huge pages") };
    for (group, expected) in [(None, 0o777), (Some(4242), 0o2777)] {
        let node = Node::new();
        let pod = huge_pages("HugePages", &size, group);
        let Ok(mounts) = node.storage.set_up(&pod).await else { return eprintln!("skipped: not allowed to mount") };
        let volume = &mounts["h"];
        assert_eq!((mounted(volume).as_deref(), mode(volume)), (Some("hugetlbfs"), expected));
        assert_eq!(fs::metadata(volume).unwrap().gid(), group.map_or(0, |group| u32::try_from(group).unwrap()));
        // The next agent finds the mounted volume, and the mode that a container has set.
        fs::set_permissions(volume, fs::Permissions::from_mode(0o700)).unwrap();
        node.set_up(&pod).await;
        assert_eq!((mounts::below(volume).unwrap().len(), mode(volume)), (1, 0o700));
        // The volume is not a part of the pod's local storage.
        assert!(!node.storage.pod_space(&pod).await.unwrap().volumes[0].is_local_storage);
        node.storage.remove_pod(&uid(), Box::new(|| true)).await.unwrap();
        assert!(!node.dir().exists() && mounts::below(&node.dir()).unwrap().is_empty());
    }
}
