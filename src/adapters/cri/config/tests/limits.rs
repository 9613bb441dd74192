//! Tests of the limits of pod cgroups, for both cgroup versions.

use serde_json::{Value, json};

use super::super::fixtures::pod;
use super::super::limits::{burstable_request, of_pod, share};
use super::super::{CgroupDriver, CgroupVersion, Cgroups};

const V1: CgroupVersion = CgroupVersion::V1 { swap: false };
const V2: CgroupVersion = CgroupVersion::V2 { swap: false };

fn settings(version: CgroupVersion, spec: Value) -> Vec<String> {
    let of = of_pod(version, &pod(spec));
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
