use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;

fn pod(spec: Value) -> Arc<PodObject> {
    let mut pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "web", "namespace": "default", "uid": "u"}})).unwrap();
    pod.spec = Some(serde_json::from_value(spec).unwrap());
    PodObject::new(pod).unwrap()
}

#[test]
fn oom_score_falls_with_the_memory_request() {
    let resources = |memory: &str| json!({"requests": {"memory": memory}});
    let full = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
    let burstable = json!({
        "containers": [
            {"name": "tenth", "resources": resources("409Mi")},
            {"name": "all", "resources": resources("4Gi")},
            {"name": "none"},
        ],
        "initContainers": [
            {"name": "sidecar", "restartPolicy": "Always"},
            {"name": "init"},
        ],
    });
    let two = json!({
        "containers": [{"name": "a", "resources": resources("2Gi")}, {"name": "b", "resources": resources("1Gi")}],
        "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": resources("512Mi")}],
    });
    // The pod requests 3 GiB and its two containers 1 GiB together, so each container gets 1 GiB more.
    let whole = json!({
        "resources": resources("3Gi"),
        "containers": [{"name": "a", "resources": resources("1Gi")}, {"name": "b"}],
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
        assert_eq!(oom_score_adj(&pod(spec.clone()), kind, name, 4 << 30), Ok(score), "{name} of {spec}");
    }
}

#[test]
fn memory_request_that_is_no_quantity_is_named() {
    let bad = pod(json!({"containers": [{"name": "a", "resources": {"requests": {"memory": "many", "cpu": "1"}}}]}));
    let error = oom_score_adj(&bad, ContainerKind::Regular, "a", 4 << 30).unwrap_err();
    assert_eq!(error.field, "a: resources.requests.memory");
}
