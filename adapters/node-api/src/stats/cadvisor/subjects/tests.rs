use super::super::super::assembly::tests::{run, used};
use super::*;
use podwright_host::stats::{CgroupDetails, ContainerUsage, FileSystemUsage, InterfaceUsage, MemoryUsage};
use podwright_model::ids::FullName;
use podwright_ports::UsedSpace;

fn pod() -> ServedPod {
    ServedPod { uid: PodUid::new("u"), full_name: FullName::new("shop", "web"), object: None, status: None }
}

fn in_cgroup(path: &str) -> Usage {
    let disks = vec![DiskTraffic { major: 0, minor: 4000, reads: Some(1), ..DiskTraffic::default() }];
    let details = CgroupDetails { path: path.into(), disks, ..CgroupDetails::default() };
    Usage { at: Time::from_secs(10), details: Some(Box::new(details)), ..Usage::default() }
}

fn container(id: &str, path: &str) -> ContainerUsage {
    ContainerUsage { usage: in_cgroup(path), ..used(id, 1, MemoryUsage::default()) }
}

fn network() -> PodNetwork {
    let interfaces = vec![InterfaceUsage { name: "eth0".into(), ..InterfaceUsage::default() }];
    PodNetwork {
        pod: PodUid::new("u"),
        sandbox: "s".into(),
        cgroup: Some("/pods/u/s".into()),
        image: Some("pause:1".into()),
        at: Time::from_secs(11),
        default: None,
        interfaces,
    }
}

fn labels_of<'a>(subjects: &'a [Subject<'_>]) -> Vec<&'a str> {
    subjects.iter().map(|subject| subject.labels.as_str()).collect()
}

#[test]
fn pod_has_a_cgroup_a_sandbox_and_the_newest_run_of_each_container() {
    let usage = RuntimeUsage {
        containers: vec![container("1", "/pods/u/1"), container("2", "/pods/u/2"), container("3", "/pods/u/3")],
        pods: [(PodUid::new("u"), in_cgroup("/pods/u"))].into(),
        networks: vec![network()],
        ..RuntimeUsage::default()
    };
    let mut image = run("2", "main", 7);
    image.image = "shop:1".into();
    let runs = [image, run("1", "main", 3), run("3", "first", 5), run("4", "ended", 1)];
    let found = Measured::new(&usage).pod(&pod(), &runs, &mut DeviceNames::default());
    assert_eq!(
        labels_of(&found),
        [
            "container=\"\",id=\"/pods/u\",image=\"\",name=\"\",namespace=\"shop\",pod=\"web\"",
            // The network has the labels of the sandbox.
            "container=\"\",id=\"/pods/u/s\",image=\"pause:1\",name=\"s\",namespace=\"shop\",pod=\"web\"",
            "container=\"first\",id=\"/pods/u/3\",image=\"\",name=\"3\",namespace=\"shop\",pod=\"web\"",
            "container=\"main\",id=\"/pods/u/2\",image=\"shop:1\",name=\"2\",namespace=\"shop\",pod=\"web\"",
        ]
    );
    let values: Vec<_> = found.iter().map(|it| (it.started, it.processes, it.interfaces.len())).collect();
    let started = |second| Some(Time::from_secs(second));
    assert_eq!(values, [(None, Some(4), 0), (None, None, 1), (started(5), Some(2), 0), (started(7), Some(2), 0)]);
    for it in found {
        let (at, disks) = if it.interfaces.is_empty() { (10, 1) } else { (11, 0) };
        assert!(it.at == Time::from_secs(at) && it.disks.len() == disks, "{it:?}");
        assert!(it.disks.iter().all(|(device, _)| device == "0:4000"), "{it:?}");
    }
}

#[test]
fn pod_without_cgroups_has_series_of_its_containers_and_its_network() {
    let containers = vec![used("1", 5, MemoryUsage::default())];
    let mut usage = RuntimeUsage { containers, ..RuntimeUsage::default() };
    let runs = [run("1", "main", 3)];
    let main = "container=\"main\",id=\"/1\",image=\"\",name=\"1\",namespace=\"shop\",pod=\"web\"";
    let found = Measured::new(&usage).pod(&pod(), &runs, &mut DeviceNames::default());
    assert_eq!(labels_of(&found), [main]);
    // Of its network, the runtime reports no cgroup.
    usage.networks.push(PodNetwork { cgroup: None, image: None, ..network() });
    let found = Measured::new(&usage).pod(&pod(), &runs, &mut DeviceNames::default());
    let sandbox = "container=\"\",id=\"/s\",image=\"\",name=\"s\",namespace=\"shop\",pod=\"web\"";
    assert_eq!(labels_of(&found), [sandbox, main]);
    assert_eq!((found[0].at, found[0].interfaces.len()), (Time::from_secs(11), 1));
}

#[test]
fn writable_layer_is_in_the_file_system_that_holds_it() {
    let space = FileSystemSpace { device: 4000, capacity: 900, available: 800, inodes: 70, inodes_free: 60 };
    let layer = |space| FileSystemUsage { at: Time::ZERO, used: UsedSpace::new(5, 1), space };
    let of = |space| {
        let containers = vec![ContainerUsage { layer: Some(layer(space)), ..container("1", "/1") }];
        let usage = RuntimeUsage { containers, ..RuntimeUsage::default() };
        let found = Measured::new(&usage).pod(&pod(), &[run("1", "main", 3)], &mut DeviceNames::default());
        found[0].file_system.as_ref().map(|found| (found.used, found.capacity, found.inodes, found.inodes_free))
    };
    assert_eq!(of(Some(space)), Some((5, 900, 70, 60)));
    assert_eq!(of(None), None);
}

#[test]
fn machine_appears_once() {
    let mut devices = DeviceNames::default();
    let (root, agent) = (in_cgroup("/"), in_cgroup("/system.slice/a.service"));
    let machine = machine(&root, Time::from_secs(1), &mut devices);
    assert!(machine.labels.starts_with("container=\"\",id=\"/\",") && machine.started == Some(Time::from_secs(1)));
    // An agent without a cgroup of its own is counted with the machine.
    assert!(system(&root, &mut devices).is_none() && system(&Usage::default(), &mut devices).is_none());
    let agent = system(&agent, &mut devices).unwrap();
    assert!(agent.labels.contains("id=\"/system.slice/a.service\""), "{agent:?}");
}
