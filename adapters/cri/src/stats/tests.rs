use std::fs;

use serde_json::json;

use super::*;
use crate::config::fixtures::{facts, pod_with};

fn number(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

/// A container as containerd reports it: without a limit, there is no memory available.
fn container(id: &str, available: u64) -> v1::ContainerStats {
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes { id: id.into(), ..Default::default() }),
        cpu: Some(v1::CpuUsage { timestamp: 7, usage_core_nano_seconds: number(5), usage_nano_cores: number(6) }),
        memory: Some(v1::MemoryUsage {
            timestamp: 9,
            working_set_bytes: number(3),
            available_bytes: number(available),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[test]
fn container_without_a_memory_limit_has_no_available_memory() {
    let found = reported(vec![container("a", 0), container("b", 40)]).containers;
    let available: Vec<_> = found.iter().map(|found| found.usage.memory.available).collect();
    assert_eq!(available, [None, Some(40)]);
}

#[test]
fn writable_layer_has_the_file_system_that_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let layer = |path: &str| {
        let fs_id = Some(v1::FilesystemIdentifier { mountpoint: path.to_owned() });
        let usage = v1::FilesystemUsage { timestamp: 8, fs_id, used_bytes: number(4096), inodes_used: number(2) };
        v1::ContainerStats { writable_layer: Some(usage), ..container("a", 0) }
    };
    let missing = dir.path().join("missing");
    let layers = [dir.path(), &missing].map(|path| layer(path.to_str().unwrap())).to_vec();
    let found: Vec<_> = reported(layers).containers.into_iter().map(|found| found.layer.unwrap()).collect();
    assert!(found.iter().all(|layer| layer.used == UsedSpace::new(4096, 2) && layer.at == Time::from_nanos(8)));
    let [known, unknown] = &found[..] else { panic!("{found:?}") };
    assert!(known.space.is_some_and(|space| space.capacity > 0) && unknown.space.is_none(), "{found:?}");
}

#[test]
fn what_the_kernel_counts_goes_before_what_the_runtime_reports() {
    let dir = tempfile::tempdir().unwrap();
    let pods = "kubepods";
    let own = "kubepods/besteffort/podu";
    for (path, text) in [
        (format!("{pods}/cpu.stat"), "usage_usec 1000\n"),
        (format!("{pods}/memory.current"), "1000\n"),
        (format!("{own}/cpu.stat"), "usage_usec 100\n"),
        (format!("{own}/memory.current"), "300\n"),
        (format!("{own}/memory.max"), "500\n"),
        (format!("{own}/cri-containerd-a.scope/cpu.stat"), "usage_usec 90\n"),
        (format!("{own}/cri-containerd-a.scope/memory.current"), "200\n"),
        (format!("{own}/cri-containerd-a.scope/memory.max"), "max\n"),
        (format!("{own}/cri-containerd-a.scope/cgroup.procs"), "1\n2\n"),
        // Without a controller of memory.
        (format!("{own}/b/cpu.stat"), "usage_usec 10\n"),
        (format!("{own}/crio-conmon-c.scope/cpu.stat"), "usage_usec 10\n"),
    ] {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let pod = pod_with(json!({"uid": "u"}), json!({"containers": [{"name": "main"}]}));
    let without_cgroup = pod_with(json!({"uid": "v"}), json!({"containers": [{"name": "main"}]}));
    let mut found = reported(vec![container("a", 40), container("b", 40), container("c", 0)]);
    let pods = [pod.clone(), without_cgroup];
    let tree = CgroupTree::at(dir.path());
    let (sandboxes, owners) = (HashMap::new(), HashMap::new());
    add_counted(&mut found, (&tree, &facts().cgroups), &pods, &sandboxes, &owners, Depth::Usage);

    let values = |usage: &Usage| (usage.cpu, usage.memory.working_set, usage.memory.available);
    assert_eq!(found.all_pods.as_ref().map(values), Some((Some(1_000_000), Some(1000), None)));
    assert_eq!(found.pods.len(), 1);
    assert_eq!(values(&found.pods[pod.uid()]), (Some(100_000), Some(300), Some(200)));
    let containers: Vec<_> = found.containers.iter().map(|found| (values(&found.usage), found.processes)).collect();
    assert_eq!(
        containers,
        [
            ((Some(90_000), Some(200), None), Some(2)),
            ((Some(10_000), Some(3), Some(40)), None),
            ((Some(5), Some(3), None), None),
        ]
    );
    assert_eq!(found.containers[0].usage.nano_cores, Some(6), "the runtime reports a rate");
}

#[test]
fn adopted_pod_is_counted_as_a_whole_if_all_of_its_containers_are_in_its_cgroup() {
    let dir = tempfile::tempdir().unwrap();
    for (pod, container) in [("podu", "a"), ("podv", "c")] {
        let path = dir.path().join("kubepods/besteffort").join(pod);
        fs::create_dir_all(path.join(container)).unwrap();
        for cgroup in [path.join(container), path] {
            fs::write(cgroup.join("memory.current"), "1000\n").unwrap();
        }
    }
    let of_pod = |uid: &str, mut stats: v1::ContainerStats| {
        let labels = [(labels::POD_UID.to_owned(), uid.to_owned())];
        stats.attributes.as_mut().unwrap().labels = v1::entries(labels);
        stats
    };
    // The first container of the second pod is in a cgroup of the kubelet. That of the first pod whose usage is unknown has ended.
    let ended = v1::ContainerStats { cpu: None, memory: None, ..container("d", 0) };
    let stats = [("u", container("a", 0)), ("u", ended), ("v", container("b", 0)), ("v", container("c", 0))];
    let stats: Vec<_> = stats.into_iter().map(|(uid, stats)| of_pod(uid, stats)).collect();
    let uids = ["u", "v"].map(PodUid::new);
    let owners = owners(&stats, &HashSet::from(uids.clone()));
    let pods = ["u", "v"].map(|uid| pod_with(json!({"uid": uid}), json!({"containers": [{"name": "main"}]})));
    let mut found = reported(stats);
    let (tree, sandboxes) = (CgroupTree::at(dir.path()), HashMap::new());
    add_counted(&mut found, (&tree, &facts().cgroups), &pods, &sandboxes, &owners, Depth::Usage);
    assert_eq!(found.pods.keys().collect::<Vec<_>>(), [&uids[0]]);
    let used: Vec<_> =
        found.containers.iter().map(|found| (found.id.as_str(), found.usage.memory.working_set)).collect();
    assert_eq!(used, [("a", Some(1000)), ("b", Some(3)), ("c", Some(1000))]);
}

#[test]
fn cgroup_of_a_container_is_found_by_its_id() {
    for name in ["1f", "crio-1f", "cri-containerd-1f.scope", "crio-1f.scope"] {
        assert_eq!(container_id(name), Some("1f"), "{name}");
    }
    for name in ["crio-conmon-1f", "crio-conmon-1f.scope"] {
        assert_eq!(container_id(name), None, "{name}");
    }
}

#[test]
fn usage_of_a_container_that_has_ended_is_left_out() {
    let attributes = Some(v1::ContainerAttributes { id: "c".into(), ..Default::default() });
    let ended = v1::ContainerStats { attributes: attributes.clone(), ..Default::default() };
    assert_eq!(usage(ended), None);
    let cpu = v1::CpuUsage { timestamp: 7, usage_core_nano_seconds: number(5), ..Default::default() };
    let memory = v1::MemoryUsage { timestamp: 9, working_set_bytes: number(3), ..Default::default() };
    let runs = v1::ContainerStats { attributes, cpu: Some(cpu), memory: Some(memory), ..Default::default() };
    let found = usage(runs).unwrap();
    assert_eq!(found.id.as_str(), "c");
    assert_eq!((found.usage.at, found.usage.cpu), (Time::from_nanos(9), Some(5)));
    assert_eq!((found.usage.memory.working_set, found.usage.nano_cores), (Some(3), None));
}

#[test]
fn default_interface_of_a_pod_is_listed_once() {
    let interface = |name: &str, received| v1::NetworkInterfaceUsage {
        name: name.into(),
        rx_bytes: number(received),
        ..Default::default()
    };
    let sandbox = |network| {
        let metadata = Some(v1::PodSandboxMetadata { uid: "u".into(), ..Default::default() });
        let attributes = Some(v1::PodSandboxAttributes { metadata, ..Default::default() });
        v1::PodSandboxStats { attributes, linux: Some(v1::LinuxPodSandboxStats { network }) }
    };
    let usage = |default_interface, interfaces| v1::NetworkUsage { timestamp: 7, default_interface, interfaces };
    assert_eq!(network(sandbox(None)), None);
    assert_eq!(network(sandbox(Some(usage(None, vec![])))), None);
    let both = vec![interface("net1", 2), interface("eth0", 1)];
    for interfaces in [both, vec![interface("net1", 2)]] {
        let found = network(sandbox(Some(usage(Some(interface("eth0", 1)), interfaces)))).unwrap();
        assert_eq!((found.pod.to_string().as_str(), found.at), ("u", Time::from_nanos(7)));
        let names: Vec<_> = found.interfaces.iter().map(|it| (it.name.as_str(), it.rx_bytes, it.tx_bytes)).collect();
        assert_eq!(names, [("eth0", Some(1), None), ("net1", Some(2), None)]);
        assert_eq!(found.default.unwrap().name, "eth0");
    }
}

#[test]
fn network_of_a_pod_is_that_of_its_processes() {
    let dir = tempfile::tempdir().unwrap();
    let own = std::process::id().to_string();
    for (pod, cgroup, process) in [
        ("podu", "cri-containerd-pause.scope", own.as_str()),
        // No process has this id.
        ("podu", "cri-containerd-a.scope", "4294967295"),
        ("podv", "cri-containerd-b.scope", own.as_str()),
        ("podh", "cri-containerd-pause.scope", own.as_str()),
        ("podw", "cri-containerd-c.scope", own.as_str()),
    ] {
        let path = dir.path().join("kubepods/besteffort").join(pod);
        fs::create_dir_all(path.join(cgroup)).unwrap();
        fs::write(path.join("memory.current"), "1000\n").unwrap();
        fs::write(path.join(cgroup).join("cgroup.procs"), format!("{process}\n")).unwrap();
        fs::write(path.join(cgroup).join("memory.current"), "1000\n").unwrap();
    }
    let pod = |uid: &str, host_network: bool| {
        pod_with(json!({"uid": uid}), json!({"hostNetwork": host_network, "containers": [{"name": "main"}]}))
    };
    let pods = [pod("u", false), pod("v", false), pod("h", true), pod("w", false)];
    // The sandbox of the second pod has no process, and that of the last one is not listed yet.
    let sandboxes = [("u", "pause"), ("v", "none"), ("h", "pause")];
    let sandboxes = HashMap::from(sandboxes.map(|(pod, sandbox)| (PodUid::new(pod), SandboxId::from(sandbox))));
    let tree = CgroupTree::at(dir.path());
    let measured = |depth| {
        let mut found = reported(vec![container("a", 0), container("b", 0)]);
        add_counted(&mut found, (&tree, &facts().cgroups), &pods, &sandboxes, &HashMap::new(), depth);
        found
    };
    let found = measured(Depth::Details);
    let networks = found.networks.iter().map(|network| {
        let PodNetwork { pod, sandbox, cgroup, .. } = network;
        (pod.to_string(), sandbox.to_string(), cgroup.clone())
    });
    let cgroup = "/kubepods/besteffort/podu/cri-containerd-pause.scope".to_owned();
    assert_eq!(
        networks.collect::<Vec<_>>(),
        [("u".to_owned(), "pause".to_owned(), Some(cgroup)), ("v".to_owned(), "none".to_owned(), None)]
    );
    assert!(found.containers[0].usage.details.is_some());
    let found = measured(Depth::Usage);
    assert!(found.networks.is_empty() && found.containers[0].usage.details.is_none(), "{found:?}");
}

#[test]
fn network_belongs_to_the_newest_sandbox_that_is_ready() {
    let sandbox = |id: &str, pod: &str, attempt, state: v1::PodSandboxState| {
        let labels = [(labels::POD_UID, pod), (labels::POD_NAMESPACE, "n"), (labels::POD_NAME, pod)];
        v1::PodSandbox {
            id: id.into(),
            metadata: Some(v1::PodSandboxMetadata { attempt, ..Default::default() }),
            state: state.into(),
            labels: v1::entries(labels.map(|(key, value)| (key.to_owned(), value.to_owned()))),
            ..Default::default()
        }
    };
    let (ready, ended) = (v1::PodSandboxState::SandboxReady, v1::PodSandboxState::SandboxNotready);
    let found = ready_sandboxes(vec![
        sandbox("1", "u", 0, ready),
        sandbox("2", "u", 1, ready),
        sandbox("3", "u", 2, ended),
        sandbox("4", "v", 0, ended),
    ]);
    assert_eq!(found, HashMap::from([(PodUid::new("u"), SandboxId::from("2"))]));
}
