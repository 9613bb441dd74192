use serde_json::json;

use super::super::config::fixtures::pod_with;
use super::*;

/// What the kernel would have made with each directory.
fn files(dir: &Path) {
    for file in ["cpu.shares", "cpu.weight", "cpu.max", "memory.max", "memory.limit_in_bytes"] {
        fs::write(dir.join(file), "").unwrap();
    }
}

fn pod(uid: &str, cpu: &str) -> std::sync::Arc<PodObject> {
    let container = json!({"name": "a", "resources": {"requests": {"cpu": cpu}}});
    pod_with(json!({"uid": uid}), json!({"containers": [container]}))
}

#[test]
fn a_class_shares_by_the_pods_in_it() {
    let root = tempfile::tempdir().unwrap();
    for (version, tree, file, shares) in [
        (Version::V1 { swap: false }, "v1/cpu", "cpu.shares", ["1024", "1536", "512", "2"]),
        (Version::V2 { swap: false }, "v2", "cpu.weight", ["39", "59", "20", "1"]),
    ] {
        let cgroups = Cgroups { version, driver: Driver::Cgroupfs, root: "/test".into() };
        let mount = root.path().join(tree.split('/').next().unwrap());
        let tree = root.path().join(tree);
        let burstable = tree.join("test/kubepods/burstable");
        fs::create_dir_all(&burstable).unwrap();
        files(&burstable);
        let trees = Trees::at(&mount);
        let share = || fs::read_to_string(burstable.join(file)).unwrap();
        let (one, other) = (pod("1", "1"), pod("2", "500m"));

        assert!(!trees.exists(&cgroups, &one));
        trees.make(&cgroups, 2000, &one).unwrap();
        assert!(trees.exists(&cgroups, &one));
        assert_eq!(share(), shares[0]);
        // Another agent made that one.
        fs::create_dir_all(burstable.join("pod2")).unwrap();
        assert!(trees.exists(&cgroups, &other));
        assert_eq!(share(), shares[1]);
        let pods = root.path().join("pods");
        fs::create_dir_all(pods.join("2")).unwrap();
        assert_eq!(trees.pods(&cgroups, &pods), [PodUid::new("2")], "the other is somebody else's");
        fs::write(burstable.join(file), "").unwrap();
        trees.remove(&cgroups, one.uid()).unwrap();
        assert_eq!(share(), shares[2]);
        trees.remove(&cgroups, other.uid()).unwrap();
        assert_eq!(share(), shares[3]);
        assert!(trees.pods(&cgroups, &pods).is_empty());
    }
}

#[test]
fn what_is_not_ours_to_make_is_taken_to_be_there() {
    let root = tempfile::tempdir().unwrap();
    let systemd = Cgroups { version: Version::V2 { swap: false }, driver: Driver::Systemd, root: "/".into() };
    let trees = Trees::at(root.path());
    let pod = pod("1", "1");
    assert!(trees.exists(&systemd, &pod));
    trees.make(&systemd, 1000, &pod).unwrap();
    trees.remove(&systemd, pod.uid()).unwrap();
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_pod_with_processes_left_has_them_killed_and_its_cgroup_removed() {
    // The tree of version 1 or 2 in which anybody may be put without limits.
    let tree = ["freezer", "unified", ""].map(|tree| Path::new(ROOT).join(tree));
    let Some(tree) = tree.into_iter().find(|tree| tree.join("cgroup.procs").exists()) else { return };
    let dir = tree.join(format!("podwright-test-{}", std::process::id()));
    if fs::create_dir_all(dir.join("container")).is_err() {
        eprintln!("skipped: not allowed to make cgroups");
        return;
    }
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let put = fs::write(dir.join("container/cgroup.procs"), child.id().to_string());
    let removed = remove_cgroup(&dir);
    let _ = child.kill();
    child.wait().unwrap();
    put.unwrap();
    removed.unwrap();
    assert!(!dir.exists());
}
