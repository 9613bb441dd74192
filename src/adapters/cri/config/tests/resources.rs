//! CPU, memory, huge pages, swap, cgroups and the order in which the kernel kills.

use podwright_actors::pod::ContainerKind;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::fixtures::{container, facts, pod, pod_with, seen};
use super::super::resources::{page_size, quota, shares};
use super::super::{Assigned, Cgroups, Driver, Facts, Version, container_config, sandbox_config};
use crate::adapters::cri::v1::LinuxContainerResources;

const MI: i64 = 1 << 20;

fn on(version: Version) -> Facts {
    Facts { cgroups: Cgroups { version, ..facts().cgroups }, ..facts() }
}

fn of(facts: &Facts, spec: Value, kind: ContainerKind, name: &str) -> LinuxContainerResources {
    let pod = pod(spec);
    let mut wanted = container(&pod, name, 0);
    wanted.kind = kind;
    container_config(facts, &Assigned::default(), &wanted, &seen()).unwrap().linux.unwrap().resources.unwrap()
}

fn one(facts: &Facts, resources: Value) -> LinuxContainerResources {
    of(facts, json!({"containers": [{"name": "a", "resources": resources}]}), ContainerKind::Regular, "a")
}

#[test]
fn cpu_and_memory_become_the_kernels_numbers() {
    let cases = [
        (json!({}), (2, 0, 0)),
        (json!({"requests": {"cpu": "500m"}}), (512, 0, 0)),
        (json!({"requests": {"cpu": "1m"}}), (2, 0, 0)),
        (json!({"limits": {"cpu": "2"}}), (2048, 200_000, 0)),
        (json!({"requests": {"cpu": "0"}, "limits": {"cpu": "2"}}), (2, 200_000, 0)),
        (json!({"requests": {"cpu": "250m"}, "limits": {"cpu": "1", "memory": "64Mi"}}), (256, 100_000, 64 * MI)),
        (json!({"limits": {"cpu": "5m"}}), (5, 1000, 0)),
        (json!({"requests": {"cpu": "1000"}}), (262_144, 0, 0)),
    ];
    for (resources, expected) in cases {
        for version in [Version::V1 { swap: false }, Version::V2 { swap: false }] {
            let found = one(&on(version), resources.clone());
            assert_eq!((found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes), expected, "{resources}");
            assert_eq!(found.cpu_period, 100_000);
        }
    }
}

#[test]
fn each_version_of_cgroups_has_its_own_words_for_swap_and_group_kills() {
    let limited = json!({"limits": {"memory": "64Mi"}});
    let of = |version| {
        let found = one(&on(version), limited.clone());
        let mut unified: Vec<_> = found.unified.into_iter().collect();
        unified.sort();
        (found.memory_swap_limit_in_bytes, unified)
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(of(Version::V1 { swap: false }), (0, vec![]));
    assert_eq!(of(Version::V1 { swap: true }), (64 * MI, vec![]));
    assert_eq!(of(Version::V2 { swap: false }), (0, vec![pair("memory.oom.group", "1")]));
    assert_eq!(of(Version::V2 { swap: true }), (0, vec![pair("memory.oom.group", "1"), pair("memory.swap.max", "0")]));
}

#[test]
fn every_size_of_huge_pages_has_a_limit() {
    let node = Facts { huge_pages: vec![1 << 30, 2 << 20], ..facts() };
    let found = one(&node, json!({"limits": {"hugepages-2Mi": "10Mi", "hugepages-64Ki": "1Mi", "memory": "1Mi"}}));
    let found: Vec<_> = found.hugepage_limits.into_iter().map(|limit| (limit.page_size, limit.limit)).collect();
    assert_eq!(found, [("2MB".to_owned(), 10 << 20), ("1GB".to_owned(), 0)]);
    assert_eq!([page_size(64 << 10), page_size(16 << 30), page_size(512)], ["64KB", "16GB", "512B"]);
}

#[test]
fn the_pods_limit_bounds_containers_that_have_none() {
    let spec = json!({
        "resources": {"limits": {"cpu": "2", "memory": "128Mi"}, "requests": {"cpu": "1", "memory": "128Mi"}},
        "containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"cpu": "500m", "memory": "32Mi"}}}],
    });
    let bounds = |name| {
        let found = of(&facts(), spec.clone(), ContainerKind::Regular, name);
        (found.cpu_quota, found.memory_limit_in_bytes)
    };
    assert_eq!((bounds("a"), bounds("b")), ((200_000, 128 * MI), (50_000, 32 * MI)));
}

#[test]
fn a_sandbox_tells_what_the_pod_may_use_and_what_it_needs_itself() {
    let asks = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
    let spec = |whole: Value| {
        pod(json!({
            "resources": whole,
            "overhead": {"cpu": "250m", "memory": "120Mi"},
            "containers": [
                {"name": "a", "resources": asks(json!({"cpu": "500m"}), json!({"cpu": "1", "memory": "64Mi"}))},
                {"name": "b", "resources": asks(json!({"cpu": "500m"}), json!({"cpu": "1", "memory": "64Mi"}))},
            ],
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "resources": asks(json!({"cpu": "100m"}), json!({}))},
                {"name": "i", "resources": asks(json!({"cpu": "100m"}), json!({"memory": "512Mi"}))},
            ],
        }))
    };
    let numbers = |it: &LinuxContainerResources| (it.cpu_shares, it.cpu_quota, it.memory_limit_in_bytes);
    let linux = sandbox_config(&facts(), &Assigned::default(), &spec(json!(null)), 0).unwrap().linux.unwrap();
    assert_eq!(numbers(linux.resources.as_ref().unwrap()), (1126, 200_000, 512 * MI));
    assert_eq!(numbers(linux.overhead.as_ref().unwrap()), (256, 25_000, 120 * MI));
    let whole = spec(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "1Gi"}}));
    let linux = sandbox_config(&facts(), &Assigned::default(), &whole, 0).unwrap().linux.unwrap();
    assert_eq!(numbers(linux.resources.as_ref().unwrap()), (2048, 400_000, 1024 * MI));
    let none =
        sandbox_config(&facts(), &Assigned::default(), &pod(json!({"containers": []})), 0).unwrap().linux.unwrap();
    assert_eq!(none.overhead, Some(LinuxContainerResources::default()));
}

#[test]
fn who_asked_for_more_is_killed_later() {
    let asks = |memory: &str| json!({"requests": {"memory": memory}});
    let full = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
    let burstable = json!({
        "containers": [
            {"name": "tenth", "resources": asks("409Mi")},
            {"name": "all", "resources": asks("4Gi")},
            {"name": "none"},
        ],
        "initContainers": [
            {"name": "sidecar", "restartPolicy": "Always"},
            {"name": "init"},
        ],
    });
    let two = json!({
        "containers": [{"name": "a", "resources": asks("2Gi")}, {"name": "b", "resources": asks("1Gi")}],
        "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": asks("512Mi")}],
    });
    // 3 GiB of which 1 GiB is asked for by containers: 1 GiB more for each of the two.
    let whole = json!({
        "resources": asks("3Gi"),
        "containers": [{"name": "a", "resources": asks("1Gi")}, {"name": "b"}],
    });
    use ContainerKind::{Init, Regular};
    let cases = [
        (json!({"containers": [{"name": "a", "resources": full}]}), Regular, "a", -997),
        (json!({"containers": [{"name": "a"}]}), Regular, "a", 1000),
        (burstable.clone(), Regular, "tenth", 901),
        (burstable.clone(), Regular, "all", 3),
        (burstable.clone(), Regular, "none", 999),
        (burstable.clone(), Init, "sidecar", 999),
        (burstable, Init, "init", 999),
        (two.clone(), Regular, "a", 500),
        (two.clone(), Regular, "b", 750),
        (two, Init, "s", 750),
        (whole.clone(), Regular, "a", 500),
        (whole, Regular, "b", 750),
        (
            json!({"priority": 2_000_001_000, "priorityClassName": "system-node-critical", "containers": [{"name": "a"}]}),
            Regular,
            "a",
            -997,
        ),
        (
            json!({"priority": 2_000_000_000, "priorityClassName": "system-cluster-critical", "containers": [{"name": "a"}]}),
            Regular,
            "a",
            1000,
        ),
    ];
    for (spec, kind, name, score) in cases {
        assert_eq!(of(&facts(), spec.clone(), kind, name).oom_score_adj, score, "{name} of {spec}");
    }
}

#[test]
fn a_pods_cgroup_is_below_that_of_its_class() {
    let full = json!([{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}]);
    let some = json!([{"name": "a", "resources": {"limits": {"cpu": "1"}}}]);
    let none = json!([{"name": "a"}]);
    let of = |driver, root: &str, containers: &Value| {
        let pod = pod_with(json!({"uid": "12-34"}), json!({"containers": containers}));
        let cgroups = Cgroups { version: Version::V2 { swap: false }, driver, root: root.into(), shared: true };
        let config = sandbox_config(&Facts { cgroups, ..facts() }, &Assigned::default(), &pod, 0).unwrap();
        config.linux.unwrap().cgroup_parent
    };
    use Driver::{Cgroupfs, Systemd};
    for (driver, root, containers, path) in [
        (Cgroupfs, "/", &full, "/kubepods/pod12-34"),
        (Cgroupfs, "/", &some, "/kubepods/burstable/pod12-34"),
        (Cgroupfs, "/", &none, "/kubepods/besteffort/pod12-34"),
        (Cgroupfs, "a/b", &none, "/a/b/kubepods/besteffort/pod12-34"),
        (Systemd, "/", &full, "/kubepods.slice/kubepods-pod12_34.slice"),
        (Systemd, "/", &some, "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice"),
        (Systemd, "/", &none, "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12_34.slice"),
        (Systemd, "/x-y.slice", &full, "/y.slice/y-kubepods.slice/y-kubepods-pod12_34.slice"),
    ] {
        assert_eq!(of(driver, root, containers), path);
    }
}

#[test]
fn a_quantity_that_is_none_is_named() {
    let pod = pod(json!({"containers": [{"name": "a", "resources": {"limits": {"memory": "lots"}}}]}));
    let error =
        container_config(&facts(), &Assigned::default(), &container(&pod, "a", 0), &seen()).unwrap_err().to_string();
    assert!(error.starts_with("a: resources.limits.memory: \"lots\" is not a quantity"), "{error}");
}

proptest! {
    #[test]
    fn shares_and_quotas_stay_in_bounds_and_grow_with_what_is_asked(a in 0..=i64::MAX, b in 0..=i64::MAX) {
        let (less, more) = (a.min(b), a.max(b));
        prop_assert!(shares(less) <= shares(more) && quota(less) <= quota(more));
        prop_assert!((2..=262_144).contains(&shares(a)));
        prop_assert!(quota(a) == 0 || quota(a) >= 1000);
        prop_assert_eq!(quota(a) == 0, a == 0);
    }
}
