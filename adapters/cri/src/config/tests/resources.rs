//! Tests of CPU, memory, huge pages, swap, cgroup paths and OOM scores.

use std::collections::HashMap;

use podwright_core::containers::definition::Definition;
use podwright_model::pod::ContainerKind;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::fixtures::{container, facts, lookups, pod, pod_with};
use super::super::resources::{page_size, quota, shares, updated};
use super::super::{
    CgroupDriver, CgroupVersion, Cgroups, NodeFacts, PodAssignments, container_config, sandbox_config, shared_swap,
};
use crate::settings::SwapBehavior;
use crate::v1::LinuxContainerResources;

const MI: i64 = 1 << 20;

fn on(version: CgroupVersion) -> NodeFacts {
    NodeFacts { cgroups: Cgroups { version, ..facts().cgroups }, ..facts() }
}

fn of(facts: &NodeFacts, spec: Value, kind: ContainerKind, name: &str) -> LinuxContainerResources {
    let pod = pod(spec);
    let mut request = container(&pod, name, 0);
    request.kind = kind;
    container_config(facts, &PodAssignments::default(), &request, &lookups()).unwrap().linux.unwrap().resources.unwrap()
}

fn one(facts: &NodeFacts, resources: Value) -> LinuxContainerResources {
    of(facts, json!({"containers": [{"name": "a", "resources": resources}]}), ContainerKind::Regular, "a")
}

#[test]
fn cpu_and_memory_are_converted_to_cgroup_values() {
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
        for version in [CgroupVersion::V1 { swap: false }, CgroupVersion::V2 { swap: false }] {
            let found = one(&on(version), resources.clone());
            assert_eq!((found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes), expected, "{resources}");
            assert_eq!(found.cpu_period, 100_000);
        }
    }
}

#[test]
fn swap_limit_and_group_kill_are_set_for_each_cgroup_version() {
    let limited = json!({"limits": {"memory": "64Mi"}});
    let of = |version| {
        let found = one(&on(version), limited.clone());
        let mut unified: Vec<_> = found.unified.into_iter().collect();
        unified.sort();
        (found.memory_swap_limit_in_bytes, unified)
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(of(CgroupVersion::V1 { swap: false }), (0, vec![]));
    assert_eq!(of(CgroupVersion::V1 { swap: true }), (64 * MI, vec![]));
    assert_eq!(of(CgroupVersion::V2 { swap: false }), (0, vec![pair("memory.oom.group", "1")]));
    assert_eq!(
        of(CgroupVersion::V2 { swap: true }),
        (0, vec![pair("memory.oom.group", "1"), pair("memory.swap.max", "0")])
    );
}

#[test]
fn only_burstable_containers_share_the_swap_space() {
    // 4 GiB of memory and 1 GiB of swap space.
    let node = NodeFacts { shared_swap: Some(1 << 30), ..facts() };
    let limit = |found: &LinuxContainerResources| found.unified["memory.swap.max"].clone();
    let memory = |request: &str, limit: &str| json!({"requests": {"memory": request}, "limits": {"memory": limit}});
    let quarter = (256 * MI).to_string();
    for (resources, expected) in [
        (json!({"requests": {"memory": "1Gi"}}), &*quarter),
        (memory("1Gi", "2Gi"), &*quarter),
        (json!({"requests": {"memory": "3"}}), "0"),
        (json!({"requests": {"memory": "5Gi"}}), "0"),
        (memory("1Gi", "1Gi"), "0"),
        (json!({"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}}), "0"),
        (json!({"requests": {"cpu": "1"}}), "0"),
        (json!({}), "0"),
        (json!({"limits": {"cpu": "1", "memory": "1Gi"}}), "0"),
    ] {
        assert_eq!(limit(&one(&node, resources.clone())), expected, "{resources}");
    }
    let request = || json!([{"name": "a", "resources": {"requests": {"memory": "1Gi"}}}]);
    let critical = json!({"priority": 2_000_000_000, "containers": request()});
    assert_eq!(limit(&of(&node, critical, ContainerKind::Regular, "a")), "0");
    assert_eq!(limit(&one(&facts(), json!({"requests": {"memory": "1Gi"}}))), "0", "no pod uses swap space");
    let pod = pod(json!({"containers": request()}));
    let resized = |facts: &NodeFacts| updated(facts, &pod, Definition::Regular(&pod.containers()[0])).unwrap().unified;
    assert_eq!(resized(&node), HashMap::from([("memory.swap.max".to_owned(), quarter)]));
    assert!(resized(&facts()).is_empty());
}

#[test]
fn swap_space_is_shared_only_where_the_kernel_can_limit_it() {
    let (v1, v2) = (CgroupVersion::V1 { swap: true }, CgroupVersion::V2 { swap: true });
    assert_eq!(shared_swap(SwapBehavior::LimitedSwap, v2, 5), Ok(Some(5)));
    assert_eq!(shared_swap(SwapBehavior::NoSwap, v1, 5), Ok(None));
    for version in [v1, CgroupVersion::V2 { swap: false }] {
        let error = shared_swap(SwapBehavior::LimitedSwap, version, 5).unwrap_err().to_string();
        assert!(error.contains("--swap-behavior NoSwap"), "{error}");
    }
}

#[test]
fn every_huge_page_size_gets_a_limit() {
    let node = NodeFacts { huge_pages: vec![1 << 30, 2 << 20], ..facts() };
    let found = one(&node, json!({"limits": {"hugepages-2Mi": "10Mi", "hugepages-64Ki": "1Mi", "memory": "1Mi"}}));
    let found: Vec<_> = found.hugepage_limits.into_iter().map(|limit| (limit.page_size, limit.limit)).collect();
    assert_eq!(found, [("2MB".to_owned(), 10 << 20), ("1GB".to_owned(), 0)]);
    let whole = json!({
        "resources": {"limits": {"hugepages-2Mi": "8Mi", "hugepages-1Gi": "2Gi"}},
        "containers": [{"name": "a", "resources": {"limits": {"hugepages-1Gi": "1Gi"}}}],
    });
    let found = of(&node, whole, ContainerKind::Regular, "a");
    let found: Vec<_> = found.hugepage_limits.iter().map(|limit| limit.limit).collect();
    assert_eq!(found, [8 << 20, 1 << 30], "a container without a limit has the limit of its pod");
    assert_eq!([page_size(64 << 10), page_size(16 << 30), page_size(512)], ["64KB", "16GB", "512B"]);
}

#[test]
fn pod_level_limits_apply_to_containers_without_limits() {
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
fn a_sandbox_has_the_resources_and_the_overhead_of_its_pod() {
    let resources = |requests: Value, limits: Value| json!({"requests": requests, "limits": limits});
    let spec = |whole: Value| {
        pod(json!({
            "resources": whole,
            "overhead": {"cpu": "250m", "memory": "120Mi"},
            "containers": [
                {"name": "a", "resources": resources(json!({"cpu": "500m"}), json!({"cpu": "1", "memory": "64Mi"}))},
                {"name": "b", "resources": resources(json!({"cpu": "500m"}), json!({"cpu": "1", "memory": "64Mi"}))},
            ],
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "resources": resources(json!({"cpu": "100m"}), json!({}))},
                {"name": "i", "resources": resources(json!({"cpu": "100m"}), json!({"memory": "512Mi"}))},
            ],
        }))
    };
    let numbers = |it: &LinuxContainerResources| (it.cpu_shares, it.cpu_quota, it.memory_limit_in_bytes);
    let linux = sandbox_config(&facts(), &PodAssignments::default(), &spec(json!(null)), 0).unwrap().linux.unwrap();
    assert_eq!(numbers(linux.resources.as_ref().unwrap()), (1126, 200_000, 512 * MI));
    assert_eq!(numbers(linux.overhead.as_ref().unwrap()), (256, 25_000, 120 * MI));
    let whole = spec(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "4", "memory": "1Gi"}}));
    let linux = sandbox_config(&facts(), &PodAssignments::default(), &whole, 0).unwrap().linux.unwrap();
    assert_eq!(numbers(linux.resources.as_ref().unwrap()), (2048, 400_000, 1024 * MI));
    let none = sandbox_config(&facts(), &PodAssignments::default(), &pod(json!({"containers": []})), 0)
        .unwrap()
        .linux
        .unwrap();
    assert_eq!(none.overhead, Some(LinuxContainerResources::default()));
}

#[test]
fn container_has_the_oom_score_of_its_memory_request() {
    let half = json!({"containers": [{"name": "a", "resources": {"requests": {"memory": "2Gi"}}}]});
    assert_eq!(of(&facts(), half, ContainerKind::Regular, "a").oom_score_adj, 500);
}

#[test]
fn a_pod_cgroup_is_in_the_cgroup_of_its_qos_class() {
    let full = json!([{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "64Mi"}}}]);
    let some = json!([{"name": "a", "resources": {"limits": {"cpu": "1"}}}]);
    let none = json!([{"name": "a"}]);
    let of = |driver, root: &str, containers: &Value| {
        let pod = pod_with(json!({"uid": "12-34"}), json!({"containers": containers}));
        let cgroups = Cgroups { version: CgroupVersion::V2 { swap: false }, driver, root: root.into(), shared: true };
        let config = sandbox_config(&NodeFacts { cgroups, ..facts() }, &PodAssignments::default(), &pod, 0).unwrap();
        config.linux.unwrap().cgroup_parent
    };
    use CgroupDriver::{Cgroupfs, Systemd};
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
fn an_invalid_quantity_error_names_its_field() {
    let pod = pod(json!({"containers": [{"name": "a", "resources": {"limits": {"memory": "lots"}}}]}));
    let error =
        container_config(&facts(), &PodAssignments::default(), &container(&pod, "a", 0), &lookups()).unwrap_err();
    let error = podwright_model::text::error_chain(&error).to_string();
    assert!(error.starts_with("a: resources.limits.memory: \"lots\" is not a quantity"), "{error}");
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    #[test]
    fn shares_and_quotas_are_bounded_and_monotonic(a in 0..=i64::MAX, b in 0..=i64::MAX) {
        let (less, more) = (a.min(b), a.max(b));
        prop_assert!(shares(less) <= shares(more) && quota(less) <= quota(more));
        prop_assert!((2..=262_144).contains(&shares(a)));
        prop_assert!(quota(a) == 0 || quota(a) >= 1000);
        prop_assert_eq!(quota(a) == 0, a == 0);
    }
}
