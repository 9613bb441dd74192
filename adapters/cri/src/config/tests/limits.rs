//! Tests of the limits of pod cgroups, for both cgroup versions.

use serde_json::{Value, json};

use super::super::fixtures::pod;
use super::super::limits;
use super::super::limits::{Bounds, SliceProperty, burstable_request, share, slice_properties};
use super::super::{CgroupDriver, CgroupVersion, Cgroups};

const V1: CgroupVersion = CgroupVersion::V1 { swap: false };
const V2: CgroupVersion = CgroupVersion::V2 { swap: false };

fn settings(version: CgroupVersion, spec: Value) -> Vec<String> {
    let of = limits::settings(version, Bounds::of_pod(&pod(spec)));
    of.into_iter().map(|it| format!("{}/{}={}", it.controller, it.file, it.value)).collect()
}

#[test]
fn a_pod_cgroup_has_limits_if_every_container_has_limits() {
    let bound = |cpu: &str, memory: &str| json!({"limits": {"cpu": cpu, "memory": memory}});
    let container = |resources: Value| json!({"name": "a", "resources": resources});
    let cases = [
        // Guaranteed: the requests default to the limits.
        (
            json!({"containers": [container(bound("500m", "64Mi")), container(bound("1", "64Mi"))]}),
            &[
                "cpu/cpu.shares=1536",
                "cpu/cpu.cfs_period_us=100000",
                "cpu/cpu.cfs_quota_us=150000",
                "memory/memory.limit_in_bytes=134217728",
            ][..],
            &["cpu/cpu.weight=59", "cpu/cpu.max=150000 100000", "memory/memory.max=134217728"][..],
        ),
        // Burstable: one container has no memory limit.
        (
            json!({"containers": [container(bound("500m", "64Mi")), container(json!({"limits": {"cpu": "1"}}))]}),
            &["cpu/cpu.shares=1536", "cpu/cpu.cfs_period_us=100000", "cpu/cpu.cfs_quota_us=150000"],
            &["cpu/cpu.weight=59", "cpu/cpu.max=150000 100000"],
        ),
        (
            json!({"containers": [container(json!({"requests": {"cpu": "250m"}})), container(json!({}))]}),
            &["cpu/cpu.shares=256"],
            &["cpu/cpu.weight=10"],
        ),
        // An init container runs alone, so the larger of its limit and the regular containers' limits applies. Without a limit on
        // the init container the pod has none.
        (
            json!({"containers": [container(bound("1", "64Mi"))], "initContainers": [container(bound("2", "32Mi"))]}),
            &[
                "cpu/cpu.shares=2048",
                "cpu/cpu.cfs_period_us=100000",
                "cpu/cpu.cfs_quota_us=200000",
                "memory/memory.limit_in_bytes=67108864",
            ],
            &["cpu/cpu.weight=79", "cpu/cpu.max=200000 100000", "memory/memory.max=67108864"],
        ),
        (
            json!({"containers": [container(bound("1", "64Mi"))], "initContainers": [container(json!({}))]}),
            &["cpu/cpu.shares=1024"],
            &["cpu/cpu.weight=39"],
        ),
        // Pod-level resources and the overhead.
        (
            json!({"containers": [container(json!({}))], "resources": bound("2", "1Gi"), "overhead": {"cpu": "500m", "memory": "1Mi"}}),
            &[
                "cpu/cpu.shares=2560",
                "cpu/cpu.cfs_period_us=100000",
                "cpu/cpu.cfs_quota_us=250000",
                "memory/memory.limit_in_bytes=1074790400",
            ],
            &["cpu/cpu.weight=98", "cpu/cpu.max=250000 100000", "memory/memory.max=1074790400"],
        ),
        // Best effort, and a limit below the kernel's minimum.
        (json!({"containers": [container(json!({}))]}), &["cpu/cpu.shares=2"], &["cpu/cpu.weight=1"]),
        (
            json!({"containers": [container(json!({"limits": {"cpu": "1m"}}))]}),
            &["cpu/cpu.shares=2", "cpu/cpu.cfs_period_us=100000", "cpu/cpu.cfs_quota_us=1000"],
            &["cpu/cpu.weight=1", "cpu/cpu.max=1000 100000"],
        ),
    ];
    for (spec, v1, v2) in cases {
        assert_eq!(settings(V1, spec.clone()), v1, "{spec}");
        assert_eq!(settings(V2, spec.clone()), v2, "{spec}");
    }
}

#[test]
fn burstable_shares_are_the_sum_of_cpu_requests() {
    let of = |resources: Value| burstable_request(&pod(json!({"containers": [{"name": "a", "resources": resources}]})));
    assert_eq!(of(json!({})), None);
    assert_eq!(of(json!({"limits": {"cpu": "1", "memory": "1Gi"}})), None);
    assert_eq!(of(json!({"requests": {"cpu": "300m"}})), Some(300));
    assert_eq!(of(json!({"requests": {"memory": "1Gi"}})), Some(0));
    for (millis, shares, weight) in [(0, "2", "1"), (1000, "1024", "39"), (1_000_000_000, "262144", "10000")] {
        assert_eq!((share(V1, millis).value.as_str(), share(V2, millis).value.as_str()), (shares, weight));
    }
}

#[test]
fn pod_cgroups_are_below_the_configured_root() {
    let of = |root: &str, driver| {
        let cgroups = Cgroups { version: V2, driver, root: root.into(), shared: true };
        (cgroups.all_pods(), cgroups.of_pod(&pod(json!({"containers": [{"name": "a"}]}))))
    };
    let pair = |all: &str, one: &str| (all.to_owned(), one.to_owned());
    assert_eq!(of("/", CgroupDriver::Cgroupfs), pair("/kubepods", "/kubepods/besteffort/podu-1"));
    assert_eq!(of("/a/b", CgroupDriver::Cgroupfs), pair("/a/b/kubepods", "/a/b/kubepods/besteffort/podu-1"));
    assert_eq!(
        of("/", CgroupDriver::Systemd),
        pair("/kubepods.slice", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podu_1.slice")
    );
}

#[test]
fn a_slice_has_the_bounds_of_its_pods_as_properties() {
    let bounds = |cpu_request, cpu_limit, memory_limit| Bounds { cpu_request, cpu_limit, memory_limit };
    const MAX: u64 = u64::MAX;
    // CPU shares (version 1), CPU weight (version 2), quota per second in microseconds, memory in bytes.
    let cases = [
        (bounds(500, Some(500), Some(64 << 20)), [512, 20, 500_000, 64 << 20]),
        (bounds(2000, Some(3000), None), [2048, 79, 3_000_000, MAX]),
        // The quota is rounded up to one percent of a CPU. The smallest is the kernel's, 1 ms in 100 ms.
        (bounds(125, Some(125), None), [128, 5, 130_000, MAX]),
        (bounds(1, Some(1), None), [2, 1, 10_000, MAX]),
        (bounds(0, None, None), [2, 1, MAX, MAX]),
        (Bounds::of_class(1500), [1536, 59, MAX, MAX]),
        (
            bounds(1_000_000_000, Some(i64::MAX), Some(i64::MAX)),
            [262_144, 10_000, 9_223_372_036_854_770_000, i64::MAX as u64],
        ),
    ];
    for (bounds, [shares, weight, quota, memory]) in cases {
        for (version, share, limit) in
            [(V1, ("CPUShares", shares), "MemoryLimit"), (V2, ("CPUWeight", weight), "MemoryMax")]
        {
            let expected = [share, ("CPUQuotaPerSecUSec", quota), (limit, memory), ("TasksMax", MAX)];
            let expected = expected.map(|(name, value)| SliceProperty { name, value });
            assert_eq!(slice_properties(version, bounds), expected, "{bounds:?}");
        }
    }
}

#[test]
fn a_pod_cgroup_limits_the_huge_pages_of_each_size() {
    let limits = |size: &str, bytes: &str| json!({"limits": {(format!("hugepages-{size}")): bytes}});
    let container = |resources: Value| json!({"name": "a", "resources": resources});
    let files = |version, spec: &Value| {
        let settings = limits::huge_pages(version, &[2 << 20, 1 << 30], &pod(spec.clone()));
        settings.into_iter().map(|it| format!("{}/{}={}", it.controller, it.file, it.value)).collect::<Vec<_>>()
    };
    // The containers together.
    let sum = json!({"containers": [container(limits("2Mi", "4Mi")), container(limits("2Mi", "6Mi"))]});
    assert_eq!(
        files(V1, &sum),
        ["hugetlb/hugetlb.2MB.limit_in_bytes=10485760", "hugetlb/hugetlb.1GB.limit_in_bytes=0"]
    );
    assert_eq!(files(V2, &sum), ["hugetlb/hugetlb.2MB.max=10485760", "hugetlb/hugetlb.1GB.max=0"]);
    // The pod's own limit.
    let whole = json!({"containers": [container(limits("2Mi", "4Mi"))], "resources": limits("2Mi", "8Mi")});
    assert_eq!(files(V2, &whole)[0], "hugetlb/hugetlb.2MB.max=8388608");
}
