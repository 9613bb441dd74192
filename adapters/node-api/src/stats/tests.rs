//! The fields of `/stats/summary`, compared with those of a kubelet.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::assembly::tests::{pod, used};
use super::fields::RlimitStats;
use super::volumes::MeasuredSpace;
use super::*;
use podwright_host::stats::{
    ContainerUsage, FileSystemUsage, InterfaceUsage, MemoryUsage, PodNetwork, Pressure, RuntimeUsage, Stall, Usage,
};
use podwright_host::storage::{PodSpace, VolumeSpace};
use podwright_model::time::Time;
use podwright_ports::{FileSystemSpace, UsedSpace};

const KUBELET: &str = include_str!("tests/kubelet.json");

const SPACE: FileSystemSpace =
    FileSystemSpace { device: 1, capacity: 900, available: 800, inodes: 70, inodes_free: 60 };

/// The names of the fields of each kind of object.
type Keys = BTreeMap<String, BTreeSet<String>>;

/// The keys of a kubelet's answer, without those that are absent in these cases.
fn expected(cases: &[&str]) -> Keys {
    let kubelet: Value = serde_json::from_str(KUBELET).unwrap();
    let mut keys: Keys = serde_json::from_value(kubelet["keys"].clone()).unwrap();
    for case in cases {
        let absent: Keys = serde_json::from_value(kubelet["absent"][case].clone()).unwrap();
        for (kind, absent) in absent {
            keys.get_mut(&kind).unwrap().retain(|key| !absent.contains(key));
        }
    }
    keys
}

/// Each object of an answer that has not the expected keys.
fn faults(answer: &Summary, expected: &Keys) -> Vec<String> {
    let kubelet: Value = serde_json::from_str(KUBELET).unwrap();
    let mut faults = Vec::new();
    let mut open = vec![("summary".to_owned(), "answer".to_owned(), serde_json::to_value(answer).unwrap())];
    while let Some((kind, path, value)) = open.pop() {
        let object = value.as_object().unwrap();
        let keys: BTreeSet<String> = object.keys().cloned().collect();
        if keys != expected[&kind] {
            faults.push(format!("{path}: {:?}", keys.symmetric_difference(&expected[&kind]).collect::<Vec<_>>()));
        }
        for (key, value) in object {
            let Some(kind) = kubelet["objects"][key].as_str() else { continue };
            let values = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
            open.extend(values.into_iter().map(|value| (kind.to_owned(), format!("{path}.{key}"), value)));
        }
    }
    faults
}

/// The values of [`node`] without its disks and networks.
fn measured(change: impl Fn(&mut Usage)) -> Summary {
    let usage = || {
        let some = Some(7);
        let memory = MemoryUsage {
            working_set: some,
            used: some,
            resident: some,
            available: some,
            faults: some,
            major_faults: some,
            swap: some,
            swap_available: some,
        };
        let stall = Some(Stall::default());
        let pressure = Pressure { cpu: stall, memory: stall, io: stall };
        let mut usage = Usage { cpu: some, nano_cores: some, memory, pressure, ..Usage::default() };
        change(&mut usage);
        usage
    };
    let layer = FileSystemUsage { at: Time::ZERO, used: UsedSpace::new(1, 2), space: Some(SPACE) };
    let container = ContainerUsage { usage: usage(), layer: Some(layer), ..used("main", 7, MemoryUsage::default()) };
    let runtime = RuntimeUsage {
        pods: [(PodUid::new("u"), usage())].into(),
        all_pods: Some(usage()),
        containers: vec![container],
        ..RuntimeUsage::default()
    };
    let node = NodeStats {
        system_containers: assembly::system_containers(Some(&usage()), &runtime, Time::ZERO, Time::ZERO),
        used: assembly::resources(&usage()),
        rlimit: Some(RlimitStats::default()),
        ..NodeStats::default()
    };
    Summary { node, pods: vec![pod(&runtime)] }
}

/// A node with one pod, with every value that the kernel, the runtime and the node report.
fn node(change: impl Fn(&mut Usage)) -> Summary {
    let mut summary = measured(change);
    let fs = FsStats { used_bytes: Some(1), inodes_used: Some(2), ..volumes::of_file_system(&SPACE) };
    let eth0 = InterfaceUsage {
        name: "eth0".to_owned(),
        rx_bytes: Some(1),
        rx_errors: Some(0),
        tx_bytes: Some(2),
        tx_errors: Some(0),
        ..InterfaceUsage::default()
    };
    let network = || {
        let (default, interfaces) = (Some(eth0.clone()), vec![eth0.clone()]);
        Some(network::of_pod(PodNetwork {
            pod: PodUid::new("u"),
            sandbox: "s".into(),
            cgroup: None,
            image: None,
            at: Time::ZERO,
            default,
            interfaces,
        }))
    };
    let volume = VolumeSpace {
        name: "cache".to_owned(),
        used: UsedSpace::new(1, 2),
        file_system: SPACE,
        is_local_storage: true,
    };
    let space = PodSpace { volumes: vec![volume], logs: [("main".to_owned(), UsedSpace::new(3, 1))].into() };
    for pod in &mut summary.pods {
        pod.network = network();
        volumes::add(pod, &MeasuredSpace { at: Timestamp::UNIX_EPOCH, space: space.clone() }, Some(&fs));
    }
    let images = FileSystemUsage { at: Time::ZERO, used: UsedSpace::new(1, 2), space: Some(SPACE) };
    summary.node.runtime = Some(assembly::image_stats(&images));
    (summary.node.network, summary.node.fs) = (network(), Some(fs));
    summary
}

#[test]
fn every_object_has_the_fields_of_a_kubelet() {
    assert_eq!(faults(&node(|_| ()), &expected(&[])), [""; 0]);
}

#[test]
fn nothing_is_available_without_a_limit() {
    let unlimited = node(|usage| (usage.memory.available, usage.memory.swap_available) = (None, None));
    assert_eq!(faults(&unlimited, &expected(&["without limits"])), [""; 0]);
}

#[test]
fn kernel_that_measures_no_pressure_leaves_its_fields_out() {
    let without = node(|usage| usage.pressure = Pressure::default());
    assert_eq!(faults(&without, &expected(&["without pressure"])), [""; 0]);
}

#[test]
fn short_answer_has_no_disks_and_networks() {
    let mut short = measured(|_| ());
    short.shorten();
    assert_eq!(faults(&short, &expected(&["in the short answer"])), [""; 0]);
}
