//! Tests of the cgroup file system, in temporary directories and in the real tree.

mod slices;

use std::num::NonZeroU64;

use podwright_model::text::error_chain;
use podwright_ports::CgroupLimits;
use serde_json::json;

use super::super::config::fixtures::pod_with;
use super::*;

const V2: CgroupVersion = CgroupVersion::V2 { swap: false };

/// Creates the files that the kernel creates with each cgroup.
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
fn burstable_cgroup_shares_follow_the_pods_in_it() {
    let root = tempfile::tempdir().unwrap();
    for (version, tree, file, shares) in [
        (CgroupVersion::V1 { swap: false }, "v1/cpu", "cpu.shares", ["1024", "1536", "512", "2"]),
        (CgroupVersion::V2 { swap: false }, "v2", "cpu.weight", ["39", "59", "20", "1"]),
    ] {
        let cgroups = Cgroups { version, driver: CgroupDriver::Cgroupfs, root: "/test".into(), shared: true };
        let mount = root.path().join(tree.split('/').next().unwrap());
        let tree = root.path().join(tree);
        let burstable = tree.join("test/kubepods/burstable");
        fs::create_dir_all(&burstable).unwrap();
        files(&burstable);
        let trees = CgroupTrees::at(&mount);
        let share = || fs::read_to_string(burstable.join(file)).unwrap();
        let (one, other) = (pod("1", "1"), pod("2", "500m"));

        assert!(!trees.exists(&cgroups, &one));
        trees.create(&cgroups, Bounds::of_class(2000), &one).unwrap();
        assert!(trees.exists(&cgroups, &one));
        assert_eq!(share(), shares[0]);
        // An earlier agent process created this cgroup.
        fs::create_dir_all(burstable.join("pod2")).unwrap();
        assert!(trees.exists(&cgroups, &other));
        assert_eq!(share(), shares[1]);
        fs::write(burstable.join(file), "").unwrap();
        trees.remove(&cgroups, one.uid()).unwrap();
        assert_eq!(share(), shares[2]);
        trees.remove(&cgroups, other.uid()).unwrap();
        assert_eq!(share(), shares[3]);
    }
}

#[test]
fn cgroups_that_the_agent_cannot_create_count_as_existing() {
    let root = tempfile::tempdir().unwrap();
    let ours = Cgroups { version: V2, driver: CgroupDriver::Cgroupfs, root: "/".into(), shared: true };
    let pod = pod("1", "1");
    // With a runtime in another cgroup namespace the agent creates no cgroups.
    for driver in [CgroupDriver::Systemd, CgroupDriver::Cgroupfs] {
        let others = Cgroups { shared: false, driver, ..ours.clone() };
        let trees = CgroupTrees::at(root.path());
        assert!(trees.exists(&others, &pod));
        trees.create(&others, Bounds::of_class(1000), &pod).unwrap();
        trees.remove(&others, pod.uid()).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
    // The check whether the kernel allows a cgroup removes what it created.
    assert!(!CgroupTrees::at(root.path()).exists(&ours, &pod));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    // No process may create a directory in /sys.
    let sealed = CgroupTrees::at(Path::new("/sys"));
    for _ in 0..2 {
        assert!(sealed.exists(&ours, &pod));
        sealed.create(&ours, Bounds::of_class(1000), &pod).unwrap();
    }
}

#[test]
fn new_parent_cgroups_get_the_shares_of_all_pods() {
    let v2 = Path::new(ROOT).join("cgroup.controllers").exists();
    let (version, file, share) =
        if v2 { (V2, "cpu.weight", "59") } else { (CgroupVersion::V1 { swap: false }, "cpu/cpu.shares", "1536") };
    let root = format!("podwright-test-{}-root", std::process::id());
    let cgroups = Cgroups { version, driver: CgroupDriver::Cgroupfs, root: format!("/{root}/in"), shared: true };
    let trees = CgroupTrees::default();
    let made = trees.create(&cgroups, Bounds::of_class(1500), &pod("1", "1"));
    let (controller, name) = file.rsplit_once('/').unwrap_or(("", file));
    let share_of =
        |below: &str| fs::read_to_string(Path::new(ROOT).join(controller).join(&root).join(below).join(name));
    let shares = ["", "in", "in/kubepods"].map(|below| share_of(below).unwrap_or_default().trim_end().to_owned());
    for tree in trees.all(version) {
        let _ = remove_cgroup(&tree.join(&root));
    }
    made.unwrap();
    if shares.iter().all(String::is_empty) {
        eprintln!("skipped: not allowed to create cgroups with CPU shares");
        return;
    }
    assert_eq!(shares, [share; 3]);
}

#[test]
fn shares_of_the_default_cgroup_root_are_set_even_if_it_exists() {
    for (root, weight) in [(CGROUP_ROOT, "59"), ("/theirs", "100")] {
        let mount = tempfile::tempdir().unwrap();
        let of_root = below(mount.path(), root);
        fs::create_dir(&of_root).unwrap();
        // The kernel's default.
        fs::write(of_root.join("cpu.weight"), "100").unwrap();
        let cgroups = Cgroups { version: V2, driver: CgroupDriver::Cgroupfs, root: root.into(), shared: true };
        CgroupTrees::at(mount.path()).create(&cgroups, Bounds::of_class(1500), &pod("1", "1")).unwrap();
        assert_eq!(fs::read_to_string(of_root.join("cpu.weight")).unwrap(), weight, "{root}");
    }
}

// KF23
#[test]
fn cgroup_removal_kills_the_processes_left_in_it() {
    // A tree of version 1 or 2 to which a process can be moved without limits.
    let tree = ["freezer", "unified", ""].map(|tree| Path::new(ROOT).join(tree));
    let Some(tree) = tree.into_iter().find(|tree| tree.join("cgroup.procs").exists()) else { return };
    let dir = tree.join(format!("podwright-test-{}", std::process::id()));
    if fs::create_dir_all(dir.join("container")).is_err() {
        eprintln!("skipped: not allowed to create cgroups");
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

#[test]
fn parent_cgroups_are_removed_with_the_last_pod_and_limited_by_the_allocatable_resources() {
    for root in [CGROUP_ROOT, "/theirs"] {
        let mount = tempfile::tempdir().unwrap();
        let of_root = below(mount.path(), root);
        fs::create_dir_all(of_root.join("kubepods/burstable")).unwrap();
        fs::write(of_root.join("kubepods/memory.max"), "max").unwrap();
        let cgroups = Cgroups { version: V2, driver: CgroupDriver::Cgroupfs, root: root.into(), shared: true };
        let trees = CgroupTrees::at(mount.path());
        let all = Bounds { cpu_request: 2000, cpu_limit: None, memory_limit: Some(1 << 30) };
        trees.create(&cgroups, all, &pod("1", "1")).unwrap();
        trees.create(&cgroups, all, &pod("2", "1")).unwrap();
        assert_eq!(fs::read_to_string(of_root.join("kubepods/memory.max")).unwrap(), "1073741824");
        fs::remove_file(of_root.join("kubepods/memory.max")).unwrap();

        trees.remove(&cgroups, pod("1", "1").uid()).unwrap();
        assert!(of_root.join("kubepods/burstable/pod2").is_dir());
        trees.remove(&cgroups, pod("2", "1").uid()).unwrap();
        assert!(!of_root.join("kubepods").exists());
        // Another root than the default belongs to the operator.
        assert_eq!(of_root.exists(), root != CGROUP_ROOT);
    }
}

#[test]
fn huge_pages_are_limited_in_the_cgroup_of_the_pod() {
    let root = tempfile::tempdir().unwrap();
    let container = json!({"name": "a", "resources": {"limits": {"hugepages-2Mi": "4Mi"}}});
    let pod = pod_with(json!({"uid": "1"}), json!({"containers": [container]}));
    for (version, tree, path, file) in [
        (CgroupVersion::V1 { swap: false }, "v1", "v1/hugetlb", "hugetlb.2MB.limit_in_bytes"),
        (V2, "v2", "v2", "hugetlb.2MB.max"),
    ] {
        let cgroups = Cgroups { version, driver: CgroupDriver::Cgroupfs, root: "/test".into(), shared: true };
        let trees = CgroupTrees::at(&root.path().join(tree));
        let tree = root.path().join(path);
        fs::create_dir_all(&tree).unwrap();
        // Without page sizes nothing is created.
        trees.limit_huge_pages(&cgroups, &[], &pod).unwrap();
        assert!(!tree.join("test").exists());
        let dir = tree.join("test/kubepods/besteffort/pod1");
        trees.limit_huge_pages(&cgroups, &[2 << 20], &pod).unwrap();
        assert!(dir.is_dir());
        fs::write(dir.join(file), "").unwrap();
        trees.limit_huge_pages(&cgroups, &[2 << 20], &pod).unwrap();
        assert_eq!(fs::read_to_string(dir.join(file)).unwrap(), "4194304");
    }
}

#[test]
fn processes_are_limited_in_the_cgroup_of_the_pod() {
    let root = tempfile::tempdir().unwrap();
    let (pod, most) = (pod("1", "1"), NonZeroU64::new(64).unwrap());
    for (version, mount, tree) in [(CgroupVersion::V1 { swap: false }, "v1", "v1/pids"), (V2, "v2", "v2")] {
        let cgroups = Cgroups { version, driver: CgroupDriver::Cgroupfs, root: "/test".into(), shared: true };
        let trees = CgroupTrees::at(&root.path().join(mount));
        let tree = root.path().join(tree);
        let file = tree.join("test/kubepods/burstable/pod1/pids.max");
        // The kernel has neither the tree of version 1 nor the file while the controller is off.
        for missing in [&tree, &file] {
            let error = trees.limit_processes(&cgroups, most, &pod).unwrap_err();
            let text = error_chain(&error).to_string();
            assert!(text.contains(missing.to_str().unwrap()) && text.contains("--pod-max-pids"), "{text}");
            fs::create_dir_all(&tree).unwrap();
        }
        fs::write(&file, "max").unwrap();
        trees.limit_processes(&cgroups, most, &pod).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "64");
        // The agent creates no cgroups for a runtime in another cgroup namespace.
        trees.limit_processes(&Cgroups { shared: false, ..cgroups }, most, &pod).unwrap();
    }
}

#[test]
fn resize_writes_only_the_limits_that_change() {
    let root = tempfile::tempdir().unwrap();
    let guaranteed = |cpu: &str, memory: &str| {
        let limits = json!({"cpu": cpu, "memory": memory});
        pod_with(json!({"uid": "1"}), json!({"containers": [{"name": "a", "resources": {"limits": limits}}]}))
    };
    let cgroups = Cgroups { version: V2, driver: CgroupDriver::Cgroupfs, root: "/test".into(), shared: true };
    let dir = root.path().join("test/kubepods/pod1");
    fs::create_dir_all(&dir).unwrap();
    files(&dir);
    let trees = CgroupTrees::at(root.path());
    let pod = guaranteed("1", "64Mi");
    trees.create(&cgroups, Bounds::of_class(2000), &pod).unwrap();
    let values = || ["cpu.weight", "cpu.max", "memory.max"].map(|file| fs::read_to_string(dir.join(file)).unwrap());
    assert_eq!(values(), ["39", "100000 100000", "67108864"]);
    for (memory_limit, cpu_limit, cpu_request, expected) in [
        (Some(128 << 20), None, None, ["39", "100000 100000", "134217728"]),
        (None, Some(500), None, ["39", "50000 100000", "134217728"]),
        (None, None, Some(500), ["20", "50000 100000", "134217728"]),
    ] {
        let limits = CgroupLimits { cpu_request, cpu_limit, memory_limit };
        trees.resize(&cgroups, &pod, limits).unwrap();
        assert_eq!(values(), expected);
    }
    let others = Cgroups { shared: false, ..cgroups };
    let limits = CgroupLimits { memory_limit: Some(1), ..CgroupLimits::default() };
    trees.resize(&others, &pod, limits).unwrap();
    assert_eq!(values()[2], "134217728", "the agent did not create the cgroup");
}
