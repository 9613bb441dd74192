//! Evictions of pods whose containers write too much: a node over the process runtime and the disks of the machine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright::adapters::storage::FileStorage;
use podwright_actors::node::{Node, NodeHandle, NodePorts};
use podwright_fixtures::fake_ports::NoNetwork;
use podwright_metrics::{Format, Metrics};
use podwright_model::ids::FullName;
use podwright_model::pod::PodObject;
use podwright_ports::{DiskMeter, FileSystemSpace, PodDiskUsage, SourceKind, SourceSet, StorageError};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::support::processes::{PATIENCE, Root, open};

/// A pod with a volume of at most 1 MiB and a container of at most 1 MiB, in which a script runs and then waits.
fn pod(name: &str, script: &str) -> Arc<PodObject> {
    pod_with(name, script, json!({"limits": {"ephemeral-storage": "1Mi"}}))
}

fn pod_with(name: &str, script: &str, resources: Value) -> Arc<PodObject> {
    let pod = json!({
        "metadata": {"name": name, "namespace": "test", "uid": name},
        "spec": {
            "containers": [{
                "name": "main",
                "image": "none",
                "command": ["/bin/sh", "-c", format!("{script}; touch $PODWRIGHT_ROOTFS/written; exec sleep 1000")],
                "volumeMounts": [{"name": "cache", "mountPath": "/cache"}],
                "resources": resources,
            }],
            "volumes": [{"name": "cache", "emptyDir": {"sizeLimit": "1Mi"}}],
        },
    });
    PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
}

fn outcome(node: &NodeHandle, name: &str) -> (String, String) {
    let status = node.statuses().get(&name.into());
    let text = |text: Option<&String>| text.cloned().unwrap_or_default();
    status.map_or_else(Default::default, |status| (text(status.phase.as_ref()), text(status.message.as_ref())))
}

/// A meter that counts its measurements.
struct ObservedMeter {
    meter: Arc<FileStorage>,
    measured: watch::Sender<u64>,
}

impl ObservedMeter {
    /// Waits until a condition holds, which is checked after each measurement of a pod.
    async fn until(&self, is: impl Fn() -> bool) {
        self.measured.subscribe().wait_for(|_| is()).await.unwrap();
    }

    /// Waits for the next measurement of a pod.
    async fn next(&self) {
        self.measured.subscribe().changed().await.unwrap();
    }
}

impl DiskMeter for ObservedMeter {
    fn pod_usage<'a>(&'a self, pod: &'a Arc<PodObject>) -> BoxFuture<'a, Result<PodDiskUsage, StorageError>> {
        async move {
            let usage = self.meter.pod_usage(pod).await;
            self.measured.send_modify(|count| *count += 1);
            usage
        }
        .boxed()
    }

    fn node_file_system(&self) -> BoxFuture<'_, Result<FileSystemSpace, StorageError>> {
        self.meter.node_file_system()
    }
}

#[actix::test]
async fn pods_that_write_over_a_limit_are_evicted_and_their_neighbours_run() {
    let root = Root::create();
    let runtime = Arc::new(open(&root).await);
    let storage = Arc::new(FileStorage::new(root.path(), BTreeMap::new()));
    let metrics = Metrics::new();
    let meter = Arc::new(ObservedMeter { meter: storage.clone(), measured: watch::Sender::new(0) });
    let ports = NodePorts::new(runtime, Arc::new(NoNetwork), storage).disks(meter.clone()).metrics(metrics.clone());
    let builder = Node::builder(ports).sources([SourceKind::Api]).eviction_period(Duration::from_millis(200));
    // The disk of this machine may be full.
    let node = builder.eviction(podwright::EvictionThresholds::none()).start().unwrap();
    let write = |bytes: &str, to: &str| format!("dd if=/dev/zero of={to} bs={bytes} count=1 2>/dev/null");
    let pods = vec![
        pod("volume", &write("1200k", "$PODWRIGHT_MOUNT_CACHE/file")),
        pod("layer", &write("1200k", "$PODWRIGHT_ROOTFS/file")),
        pod("log", "head -c 1200000 /dev/zero | tr '\\0' 'x'"),
        pod("sum", &format!("{}; {}", write("700k", "$PODWRIGHT_ROOTFS/f"), write("700k", "$PODWRIGHT_MOUNT_CACHE/f"))),
        // The file is removed, and a file with a hole uses little.
        pod(
            "neighbour",
            &format!(
                "cd $PODWRIGHT_MOUNT_CACHE; {}; ln file again; truncate -s 1G sparse; ln -s /usr usr",
                write("600k", "file")
            ),
        ),
        pod_with("free", &write("1200k", "$PODWRIGHT_ROOTFS/file"), json!({})),
    ];
    node.sources().send(SourceSet { source: SourceKind::Api, pods, problems: vec![] }.into()).await.unwrap();
    let sum = "Pod ephemeral local storage usage exceeds the total limit of containers 1Mi. ";
    for (name, message) in [
        ("volume", "Usage of EmptyDir volume \"cache\" exceeds the limit \"1Mi\". "),
        ("layer", sum),
        ("log", sum),
        ("sum", sum),
    ] {
        let mut changes = node.statuses().subscribe();
        let evicted = changes.wait_for(|_| outcome(&node, name).0 == "Failed");
        let is_in_time = timeout(PATIENCE, evicted).await.is_ok();
        assert!(is_in_time, "{name}: {:?}", outcome(&node, name));
        assert_eq!(outcome(&node, name).1, message, "{name}");
    }
    for name in ["neighbour", "free"] {
        let explain = || node.explainer().explain(&FullName::new("test", name), None, &|_| vec![]).unwrap().to_string();
        let used = if name == "free" { "emptyDir cache: 4Ki of 1Mi" } else { "emptyDir cache: 6" };
        let is_in_time = timeout(PATIENCE, meter.until(|| explain().contains(used))).await.is_ok();
        assert!(is_in_time, "{}", explain());
        for _ in 0..3 {
            timeout(PATIENCE, meter.next()).await.unwrap();
        }
        assert_eq!(outcome(&node, name).0, "Running", "{}", explain());
    }
    let text = metrics.encode(Format::Classic);
    assert!(text.contains("kubelet_evictions{eviction_signal=\"ephemeralpodfs.limit\"} 3"), "{text}");
    node.shutdown(Duration::from_secs(5)).await;
}
