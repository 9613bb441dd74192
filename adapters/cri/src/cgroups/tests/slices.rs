//! Tests of slices with a fake systemd, whose slices are directories.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::systemd::SliceError;
use super::*;
use crate::config::limits::SliceProperty;

/// Creates a directory for each slice, and records the calls.
#[derive(Clone, Debug, Default)]
struct FakeSystemd {
    mount: PathBuf,
    denied: bool,
    calls: Arc<Mutex<Vec<String>>>,
    memory: Arc<Mutex<BTreeMap<String, u64>>>,
    tasks: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl FakeSystemd {
    fn call(&self, call: &str, name: &str) -> Result<(), SliceError> {
        self.calls.lock().push(format!("{call} {name}"));
        match self.denied {
            true => Err(SliceError::Denied(zbus::Error::Unsupported)),
            false => Ok(()),
        }
    }

    fn dir(&self, name: &str) -> PathBuf {
        let stem = name.strip_suffix(".slice").unwrap();
        let ends = stem.match_indices('-').map(|(at, _)| at).chain([stem.len()]);
        ends.fold(self.mount.clone(), |dir, end| dir.join(format!("{}.slice", &stem[..end])))
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.calls.lock())
    }
}

impl Slices for FakeSystemd {
    fn connect(&self) -> Result<(), SliceError> {
        self.call("connect", "")
    }

    fn start(&self, name: &str, properties: &[SliceProperty]) -> Result<(), SliceError> {
        self.call("start", name)?;
        fs::create_dir(self.dir(name)).unwrap();
        fs::write(self.dir(name).join("cgroup.procs"), "").unwrap();
        self.keep(name, properties);
        Ok(())
    }

    fn change(&self, name: &str, properties: &[SliceProperty]) -> Result<(), SliceError> {
        self.keep(name, properties);
        self.call("change", name)
    }

    fn stop(&self, name: &str) -> Result<(), SliceError> {
        self.call("stop", name)?;
        fs::remove_dir_all(self.dir(name)).unwrap();
        Ok(())
    }
}

impl FakeSystemd {
    fn keep(&self, name: &str, properties: &[SliceProperty]) {
        if let Some(limit) = properties.iter().find(|it| matches!(it.name, "MemoryMax" | "MemoryLimit")) {
            self.memory.lock().insert(name.to_owned(), limit.value);
        }
        if let Some(limit) = properties.iter().find(|it| it.name == "TasksMax") {
            self.tasks.lock().insert(name.to_owned(), limit.value);
        }
    }
}

fn fake(mount: &Path, denied: bool) -> (FakeSystemd, CgroupTrees) {
    let fake = FakeSystemd { mount: mount.to_owned(), denied, ..FakeSystemd::default() };
    let trees = CgroupTrees { slices: Box::new(fake.clone()), ..CgroupTrees::at(mount) };
    (fake, trees)
}

fn cgroups(root: &str) -> Cgroups {
    Cgroups { version: V2, driver: CgroupDriver::Systemd, root: root.into(), shared: true }
}

#[test]
fn slices_are_created_with_the_first_pod_and_stopped_with_the_last() {
    let mount = tempfile::tempdir().unwrap();
    let (systemd, trees) = fake(mount.path(), false);
    let cgroups = cgroups(CGROUP_ROOT);
    let (one, other) = (pod("a-1", "1"), pod("2", "500m"));
    let all = Bounds { cpu_request: 2000, cpu_limit: None, memory_limit: Some(1 << 30) };

    assert!(!trees.exists(&cgroups, &one), "a pod waits for its slice");
    systemd.take();
    trees.create(&cgroups, all, &one).unwrap();
    assert!(trees.exists(&cgroups, &one));
    let started = [
        "start podwright.slice",
        "start podwright-kubepods.slice",
        "start podwright-kubepods-burstable.slice",
        "start podwright-kubepods-burstable-poda_1.slice",
    ];
    assert_eq!(systemd.take()[..4], started);
    assert_eq!(systemd.memory.lock()["podwright-kubepods.slice"], 1 << 30);
    trees.create(&cgroups, all, &other).unwrap();
    assert!(systemd.take().contains(&"start podwright-kubepods-burstable-pod2.slice".to_owned()));

    trees.remove(&cgroups, one.uid()).unwrap();
    let stops = |calls: Vec<String>| calls.into_iter().filter(|call| call.starts_with("stop")).collect::<Vec<_>>();
    assert_eq!(stops(systemd.take()), ["stop podwright-kubepods-burstable-poda_1.slice"]);
    trees.remove(&cgroups, other.uid()).unwrap();
    let stopped = ["burstable-pod2.slice", "burstable.slice"].map(|name| format!("stop podwright-kubepods-{name}"));
    let parents = ["stop podwright-kubepods.slice".to_owned(), "stop podwright.slice".to_owned()];
    assert_eq!(stops(systemd.take()), [stopped, parents].concat());
    assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 0);
}

#[test]
fn the_slice_of_a_pod_limits_its_processes() {
    let mount = tempfile::tempdir().unwrap();
    let (systemd, trees) = fake(mount.path(), false);
    let cgroups = cgroups(CGROUP_ROOT);
    let pod = pod("1", "1");
    trees.create(&cgroups, Bounds::of_class(2000), &pod).unwrap();
    let of = |name: &str| systemd.tasks.lock()[name];
    assert_eq!(of("podwright-kubepods-burstable-pod1.slice"), u64::MAX, "no default of systemd applies");
    trees.limit_processes(&cgroups, NonZeroU64::new(64).unwrap(), &pod).unwrap();
    assert_eq!(of("podwright-kubepods-burstable-pod1.slice"), 64);
    assert_eq!(of("podwright-kubepods-burstable.slice"), u64::MAX, "the limit is that of one pod");
}

#[test]
fn slices_of_version_1_are_removed_from_the_controllers_that_systemd_does_not_know() {
    let mount = tempfile::tempdir().unwrap();
    let (freezer, systemd_tree) = (mount.path().join("freezer"), mount.path().join("systemd"));
    fs::create_dir(&systemd_tree).unwrap();
    let systemd = FakeSystemd { mount: systemd_tree, ..FakeSystemd::default() };
    let trees = CgroupTrees { slices: Box::new(systemd), ..CgroupTrees::at(mount.path()) };
    let cgroups = Cgroups { version: CgroupVersion::V1 { swap: false }, ..cgroups(CGROUP_ROOT) };
    let pod = pod("1", "1");
    trees.create(&cgroups, Bounds::of_class(2000), &pod).unwrap();
    // The runtime creates the cgroups of a container in every tree, with all parents.
    fs::create_dir_all(below(&freezer, &cgroups.of_pod(&pod))).unwrap();
    trees.remove(&cgroups, pod.uid()).unwrap();
    assert_eq!(fs::read_dir(&freezer).unwrap().count(), 0);
    assert_eq!(fs::read_dir(mount.path().join("systemd")).unwrap().count(), 0);
}

#[test]
fn the_slice_of_an_operator_is_not_changed_and_not_stopped() {
    let mount = tempfile::tempdir().unwrap();
    let (systemd, trees) = fake(mount.path(), false);
    fs::create_dir(mount.path().join("theirs.slice")).unwrap();
    fs::write(mount.path().join("theirs.slice/cgroup.procs"), "").unwrap();
    let pod = pod("1", "1");
    trees.create(&cgroups("/theirs.slice"), Bounds::of_class(2000), &pod).unwrap();
    trees.remove(&cgroups("/theirs.slice"), pod.uid()).unwrap();
    assert!(systemd.take().iter().all(|call| !call.ends_with(" theirs.slice")));
    assert!(mount.path().join("theirs.slice").is_dir());
}

#[test]
fn pods_run_without_slices_where_systemd_cannot_be_used() {
    let mount = tempfile::tempdir().unwrap();
    let (systemd, trees) = fake(mount.path(), true);
    let (cgroups, pod) = (cgroups("/"), pod("1", "1"));
    assert!(trees.exists(&cgroups, &pod), "no pod is stopped because its slice cannot be created");
    assert_eq!(systemd.take(), ["connect "]);
    trees.create(&cgroups, Bounds::of_class(2000), &pod).unwrap();
    trees.remove(&cgroups, pod.uid()).unwrap();
    assert!(systemd.take().is_empty());
}
