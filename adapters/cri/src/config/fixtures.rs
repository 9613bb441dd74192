//! Pods and a node for the tests of the conversion.

use std::sync::Arc;

use podwright_model::pod::{ContainerKind, PodObject};
use podwright_ports::{ContainerConfig, Mount};
use serde_json::{Value, json};

use super::limits::Bounds;
use super::{CgroupDriver, CgroupVersion, Cgroups, ClusterDns, ContainerLookups, ImageUser, NodeFacts, Resolver};
use crate::layout::{KubeletDirectories, Layout};

/// The pod `shop/web` with UID `u-1` and the label `app=a`.
pub(crate) fn pod(spec: Value) -> Arc<PodObject> {
    pod_with(json!({"labels": {"app": "a"}}), spec)
}

/// The pod `shop/web` with UID `u-1` and the given metadata.
pub(crate) fn pod_with(more: Value, spec: Value) -> Arc<PodObject> {
    let mut metadata = json!({"name": "web", "namespace": "shop", "uid": "u-1"});
    metadata.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    PodObject::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()).unwrap()
}

/// A machine with 2 CPUs and 4 GiB, cgroups of version 2 with the driver cgroupfs, and no cluster.
pub(crate) fn facts() -> NodeFacts {
    NodeFacts {
        layout: Layout {
            pods: "/r/pods".into(),
            logs: "/var/log/pods".into(),
            links: "/var/log/containers".into(),
            kubelet: KubeletDirectories::default(),
        },
        resolver: Resolver::default(),
        cluster_dns: ClusterDns::default(),
        cgroups: Cgroups {
            version: CgroupVersion::V2 { swap: true },
            driver: CgroupDriver::Cgroupfs,
            root: "/".into(),
            shared: true,
        },
        all_pods: Bounds::of_class(2000),
        pod_pids_limit: None,
        memory: 4 << 30,
        shared_swap: None,
        huge_pages: vec![],
        seccomp_profiles: "/r/seccomp".into(),
        seccomp_default: false,
        selinux: false,
        masked_paths: vec![],
        recursive_read_only: Default::default(),
        user_namespaces: Default::default(),
        groups_policy: false,
        cdi: Default::default(),
    }
}

/// An image that names no user, and no target container.
pub(crate) fn lookups() -> ContainerLookups {
    ContainerLookups { user: ImageUser::Id(0), target: None }
}

/// The configuration of one run of a regular container.
pub(crate) fn container(pod: &Arc<PodObject>, name: &str, restart_count: u32) -> ContainerConfig {
    ContainerConfig {
        pod: Arc::clone(pod),
        sandbox: "s".into(),
        kind: ContainerKind::Regular,
        name: name.into(),
        restart_count,
        image_id: "sha256:1".into(),
        spec_hash: 42,
        command: vec![],
        args: vec![],
        env: vec![],
        mounts: vec![],
        devices: vec![],
        cdi_devices: vec![],
    }
}

/// A mount of the volume `v` at a path.
pub(crate) fn mount(path: &str) -> Mount {
    Mount {
        volume: "v".into(),
        host_path: "/host".into(),
        sub_path: "".into(),
        container_path: path.into(),
        read_only: false,
        image: None,
    }
}
