use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

const MI: u64 = 1 << 20;

fn pod(spec: Value) -> Arc<PodObject> {
    let pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u"}, "spec": spec});
    PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
}

fn container(name: &str, limit: &str) -> Value {
    json!({"name": name, "resources": {"limits": {"ephemeral-storage": limit}}})
}

/// A usage in mebibytes.
fn usage(volumes: &[(&str, u64)], logs: &[(&str, u64)], layers: &[(&str, u64)]) -> PodUsage {
    let of = |used: &[(&str, u64)]| {
        used.iter().map(|(name, size)| ((*name).to_owned(), UsedSpace::new(size * MI, 1))).collect::<BTreeMap<_, _>>()
    };
    PodUsage { disk: PodDiskUsage { volumes: of(volumes), logs: of(logs) }, layers: of(layers) }
}

#[test]
fn pods_without_storage_limits_are_not_measured() {
    assert_eq!(
        StorageLimits::of(&pod(json!({"containers": [{"name": "a"}], "volumes": [{"name": "v", "emptyDir": {}}]}))),
        None
    );
    // The API server refuses a negative limit, and a limit of zero is none (upstream `size.Sign() == 1`).
    let zero = json!({"containers": [{"name": "a"}], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "0"}}]});
    assert_eq!(StorageLimits::of(&pod(zero)), None);
}

#[test]
fn a_pod_exceeds_the_first_of_its_limits() {
    let pod = pod(json!({
        "containers": [container("a", "10Mi"), container("b", "20480Ki"), {"name": "free"}],
        "initContainers": [
            {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"ephemeral-storage": "1Mi"}}},
            container("init", "2Mi"),
        ],
        "volumes": [
            {"name": "disk", "emptyDir": {"sizeLimit": "1024Ki"}},
            {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "5Mi"}},
            {"name": "free", "emptyDir": {}},
        ],
    }));
    let limits = StorageLimits::of(&pod).unwrap();
    assert_eq!(limits.pod.as_ref().unwrap().text, "31Mi", "an init container runs before the others");
    let names: Vec<_> = limits.containers.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["side", "a", "b"], "the limit of an init container is part of the pod's only");
    let rows = [
        (usage(&[], &[], &[]), None),
        (usage(&[("disk", 1), ("ram", 5), ("free", 25)], &[], &[]), None),
        (
            usage(&[("disk", 2)], &[], &[("a", 50)]),
            Some("Usage of EmptyDir volume \"disk\" exceeds the limit \"1Mi\". "),
        ),
        (usage(&[("ram", 6)], &[], &[]), Some("Usage of EmptyDir volume \"ram\" exceeds the limit \"5Mi\". ")),
        (
            usage(&[("free", 25)], &[("free", 7)], &[]),
            Some("Pod ephemeral local storage usage exceeds the total limit of containers 31Mi. "),
        ),
        // A volume in memory is not on the disk.
        (usage(&[("ram", 5), ("free", 20)], &[("free", 8)], &[]), None),
        (usage(&[], &[("a", 6)], &[("a", 4)]), None),
        (
            usage(&[], &[("a", 6)], &[("a", 5)]),
            Some("Container a exceeded its local ephemeral storage limit \"10Mi\". "),
        ),
        (usage(&[], &[("b", 21)], &[]), Some("Container b exceeded its local ephemeral storage limit \"20Mi\". ")),
        (usage(&[], &[("side", 2)], &[]), Some("Container side exceeded its local ephemeral storage limit \"1Mi\". ")),
        (usage(&[], &[("init", 3)], &[("init", 20)]), None),
        (usage(&[], &[("free", 30)], &[]), None),
    ];
    for (number, (usage, message)) in rows.into_iter().enumerate() {
        let exceeded = limits.exceeded(&pod, &usage, false).map(Exceeded::message);
        assert_eq!(exceeded.as_deref(), message, "row {number}");
    }
    // With a disk for images, the layer counts for the pod only.
    assert_eq!(limits.exceeded(&pod, &usage(&[], &[("a", 6)], &[("a", 5)]), true), None);
    assert!(limits.exceeded(&pod, &usage(&[], &[("a", 6)], &[("a", 26)]), true).is_some());
}

#[test]
fn usage_equal_to_the_limit_is_allowed() {
    let pod = pod(json!({"containers": [{"name": "a"}], "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1M"}}]}));
    let limits = StorageLimits::of(&pod).unwrap();
    for (bytes, is_exceeded) in [(999_999, false), (1_000_000, false), (1_000_001, true)] {
        let volumes = BTreeMap::from([("v".to_owned(), UsedSpace::new(bytes, 1))]);
        let usage = PodUsage { disk: PodDiskUsage { volumes, ..PodDiskUsage::default() }, ..PodUsage::default() };
        assert_eq!(limits.exceeded(&pod, &usage, false).is_some(), is_exceeded, "{bytes}");
    }
}
