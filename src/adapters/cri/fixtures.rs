//! Pods and nodes for the tests of the translation.

use std::sync::Arc;

use podwright_actors::pod::{ContainerKind, PodObject};
use podwright_actors::ports::{ContainerConfig, Mount};
use serde_json::{Value, json};

use super::dns::Resolver;
use super::facts::{Facts, Layout};

/// `shop/web` with UID `u-1`.
pub(super) fn pod(spec: Value) -> Arc<PodObject> {
    let metadata = json!({"name": "web", "namespace": "shop", "uid": "u-1", "labels": {"app": "a"}});
    PodObject::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()).unwrap()
}

pub(super) fn facts() -> Facts {
    let layout = Layout { pods: "/r/pods".into(), logs: "/var/log/pods".into(), links: "/var/log/containers".into() };
    Facts { layout, resolver: Resolver::default() }
}

/// A run of a regular container.
pub(super) fn container(pod: &Arc<PodObject>, name: &str, restart_count: u32) -> ContainerConfig {
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
    }
}

pub(super) fn mount(path: &str) -> Mount {
    Mount {
        volume: "v".into(),
        host_path: "/host".into(),
        sub_path: "".into(),
        container_path: path.into(),
        read_only: false,
    }
}
