//! The cgroups that the metrics are about, with their labels.

use std::collections::HashMap;

use super::super::assembly::{self, Containers};
use super::encode::labels;
use super::families::{FileSystem, Subject};
use crate::served_node::ServedPod;
use podwright_host::stats::{DeviceNames, DiskTraffic, PodNetwork, RuntimeUsage, Usage};
use podwright_model::ids::PodUid;
use podwright_model::time::Time;
use podwright_ports::{ContainerStatus, FileSystemSpace};

/// The values of the labels that all series have.
#[derive(Clone, Copy, Debug, Default)]
struct Names<'a> {
    container: &'a str,
    /// The path of the cgroup.
    id: &'a str,
    image: &'a str,
    /// The ID of the container, or of the sandbox.
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
}

/// The machine, which started at `started`.
pub(super) fn machine<'a>(usage: &'a Usage, started: Time, devices: &mut DeviceNames) -> Subject<'a> {
    let names = Names { id: "/", ..Names::default() };
    Subject { started: Some(started), ..subject(names, usage.at, Some(usage), devices) }
}

/// A cgroup that is not that of a pod. `None` if its path is not known, or if it is the machine.
pub(super) fn system<'a>(usage: &'a Usage, devices: &mut DeviceNames) -> Option<Subject<'a>> {
    let id = path(usage).filter(|path| *path != "/")?;
    Some(subject(Names { id, ..Names::default() }, usage.at, Some(usage), devices))
}

/// The use of a file system. Blocks if its device is new.
pub(super) fn file_system(space: &FileSystemSpace, used: u64, devices: &mut DeviceNames) -> FileSystem {
    FileSystem {
        device: devices.of_file_system(space.device).to_owned(),
        used,
        capacity: space.capacity,
        inodes: space.inodes,
        inodes_free: space.inodes_free,
    }
}

/// The measurements of a runtime, by pod and container.
pub(super) struct Measured<'a> {
    usage: &'a RuntimeUsage,
    containers: Containers<'a>,
    networks: HashMap<&'a PodUid, &'a PodNetwork>,
}

impl<'a> Measured<'a> {
    pub(super) fn new(usage: &'a RuntimeUsage) -> Self {
        let networks = usage.networks.iter().map(|network| (&network.pod, network)).collect();
        Measured { usage, containers: assembly::by_id(usage), networks }
    }

    /// The cgroup of a pod, its sandbox if the pod has a network of its own, and the cgroups of the newest runs of its containers. The ID
    /// of a pod, sandbox or container takes the place of an unknown path, because two pods may have one name.
    pub(super) fn pod(&self, pod: &ServedPod, runs: &[ContainerStatus], devices: &mut DeviceNames) -> Vec<Subject<'a>> {
        let of_pod = Names { namespace: pod.full_name.namespace(), pod: pod.full_name.name(), ..Names::default() };
        let runs = assembly::newest(runs, &self.containers);
        let mut subjects = Vec::with_capacity(2 + runs.len());
        if let Some(usage) = self.usage.pods.get(&pod.uid) {
            let uid = format!("/pod{}", pod.uid);
            let names = Names { id: path(usage).unwrap_or(&uid), ..of_pod };
            let processes = runs.iter().filter_map(|(_, used)| used.processes).reduce(u64::saturating_add);
            subjects.push(Subject { processes, ..subject(names, usage.at, Some(usage), devices) });
        }
        if let Some(network) = self.networks.get(&pod.uid).copied() {
            let id = format!("/{}", network.sandbox);
            let names = Names {
                id: network.cgroup.as_deref().unwrap_or(&id),
                image: network.image.as_deref().unwrap_or_default(),
                name: network.sandbox.as_str(),
                ..of_pod
            };
            subjects.push(Subject { interfaces: &network.interfaces, ..subject(names, network.at, None, devices) });
        }
        for (run, used) in runs {
            let id = format!("/{}", run.id.as_str());
            let names = Names {
                container: run.name.as_str(),
                id: path(&used.usage).unwrap_or(&id),
                image: &run.image,
                name: run.id.as_str(),
                ..of_pod
            };
            let layer = used.layer.and_then(|layer| Some((layer.space?, layer.used.bytes)));
            subjects.push(Subject {
                started: Some(run.started_at.unwrap_or(run.created_at)),
                processes: used.processes,
                file_system: layer.map(|(space, bytes)| file_system(&space, bytes, devices)),
                ..subject(names, used.usage.at, Some(&used.usage), devices)
            });
        }
        subjects
    }
}

fn subject<'a>(names: Names<'_>, at: Time, usage: Option<&'a Usage>, devices: &mut DeviceNames) -> Subject<'a> {
    let Names { container, id, image, name, namespace, pod } = names;
    let labels = labels(&[
        ("container", container),
        ("id", id),
        ("image", image),
        ("name", name),
        ("namespace", namespace),
        ("pod", pod),
    ]);
    let disks = usage.and_then(|usage| usage.details.as_ref()).into_iter().flat_map(|details| &details.disks);
    let disks: Vec<(String, DiskTraffic)> =
        disks.map(|disk| (devices.name(disk.major, disk.minor).to_owned(), *disk)).collect();
    Subject {
        labels,
        at,
        started: usage.and_then(|usage| usage.created),
        usage,
        processes: None,
        interfaces: &[],
        disks,
        file_system: None,
    }
}

/// The path of the measured cgroup.
fn path(usage: &Usage) -> Option<&str> {
    Some(&usage.details.as_ref()?.path)
}

#[cfg(test)]
mod tests;
