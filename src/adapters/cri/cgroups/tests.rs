use serde_json::json;

use super::super::config::fixtures::pod_with;
use super::*;

const V2: Version = Version::V2 { swap: false };

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
        let cgroups = Cgroups { version, driver: Driver::Cgroupfs, root: "/test".into(), shared: true };
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
        fs::write(burstable.join(file), "").unwrap();
        trees.remove(&cgroups, one.uid()).unwrap();
        assert_eq!(share(), shares[2]);
        trees.remove(&cgroups, other.uid()).unwrap();
        assert_eq!(share(), shares[3]);
    }
}

#[test]
fn what_is_not_ours_to_make_is_taken_to_be_there() {
    let root = tempfile::tempdir().unwrap();
    let ours = Cgroups { version: V2, driver: Driver::Cgroupfs, root: "/".into(), shared: true };
    let pod = pod("1", "1");
    // Slices, and the cgroups of a runtime that has a tree of its own.
    for others in [Cgroups { driver: Driver::Systemd, ..ours.clone() }, Cgroups { shared: false, ..ours.clone() }] {
        let trees = Trees::at(root.path());
        assert!(trees.exists(&others, &pod));
        trees.make(&others, 1000, &pod).unwrap();
        trees.remove(&others, pod.uid()).unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
    // Whether the kernel lets us is asked before anybody is stopped because his is missing, and leaves nothing.
    assert!(!Trees::at(root.path()).exists(&ours, &pod));
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    // Nobody may make a directory there.
    let sealed = Trees::at(Path::new("/sys"));
    for _ in 0..2 {
        assert!(sealed.exists(&ours, &pod));
        sealed.make(&ours, 1000, &pod).unwrap();
    }
}

#[test]
fn what_is_made_above_the_pods_gets_what_all_of_them_get() {
    let v2 = Path::new(ROOT).join("cgroup.controllers").exists();
    let (version, file, share) =
        if v2 { (V2, "cpu.weight", "59") } else { (Version::V1 { swap: false }, "cpu/cpu.shares", "1536") };
    let root = format!("podwright-test-{}-root", std::process::id());
    let cgroups = Cgroups { version, driver: Driver::Cgroupfs, root: format!("/{root}/in"), shared: true };
    let trees = Trees::default();
    let made = trees.make(&cgroups, 1500, &pod("1", "1"));
    let (controller, name) = file.rsplit_once('/').unwrap_or(("", file));
    let share_of =
        |below: &str| fs::read_to_string(Path::new(ROOT).join(controller).join(&root).join(below).join(name));
    let shares = ["", "in", "in/kubepods"].map(|below| share_of(below).unwrap_or_default().trim_end().to_owned());
    for tree in trees.all(version) {
        let _ = remove_cgroup(&tree.join(&root));
    }
    made.unwrap();
    if shares.iter().all(String::is_empty) {
        eprintln!("skipped: not allowed to make cgroups with shares");
        return;
    }
    assert_eq!(shares, [share; 3]);
}

#[test]
fn a_root_of_our_own_has_its_share_also_if_it_was_there() {
    for (root, weight) in [(CGROUP_ROOT, "59"), ("/theirs", "100")] {
        let mount = tempfile::tempdir().unwrap();
        let of_root = below(mount.path(), root);
        fs::create_dir(&of_root).unwrap();
        // As the kernel makes it.
        fs::write(of_root.join("cpu.weight"), "100").unwrap();
        let cgroups = Cgroups { version: V2, driver: Driver::Cgroupfs, root: root.into(), shared: true };
        Trees::at(mount.path()).make(&cgroups, 1500, &pod("1", "1")).unwrap();
        assert_eq!(fs::read_to_string(of_root.join("cpu.weight")).unwrap(), weight, "{root}");
    }
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
