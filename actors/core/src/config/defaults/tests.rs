use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::containers::plan::KillReason;
use crate::containers::stop;
use crate::pod::PodObject;

fn cx(source: SourceKind) -> StaticContext<'static> {
    StaticContext { node_name: "Node-A", source, origin: "/etc/pods/web.yaml", now: Time::from_secs(1_000_000) }
}

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

fn minimal() -> Pod {
    pod(json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c", "image": "busybox:1.36"}]}}))
}

fn defaulted(mut pod: Pod) -> Value {
    apply_static_defaults(&mut pod, &cx(SourceKind::File));
    serde_json::to_value(pod).unwrap()
}

#[test]
fn negative_grace_period_becomes_one_second() {
    for (grace, expected) in [(json!(-5), 1), (json!(0), 0), (json!(null), 30), (json!(7), 7)] {
        let mut pod: Pod =
            serde_json::from_value(json!({"spec": {"containers": [], "terminationGracePeriodSeconds": grace}}))
                .unwrap();
        apply_api_defaults(&mut pod);
        assert_eq!(pod.spec.unwrap().termination_grace_period_seconds, Some(expected), "{grace}");
    }
}

#[test]
fn a_manifest_becomes_a_pod_of_the_node() {
    let mut pod = minimal();
    apply_static_defaults(&mut pod, &cx(SourceKind::File));
    let object = PodObject::new(pod).unwrap();
    assert_eq!(object.full_name().to_string(), "default/web-node-a");
    assert_eq!(object.spec().node_name.as_deref(), Some("Node-A"));
    assert!(object.is_static());
    assert_eq!(object.annotation(SOURCE_ANNOTATION), Some("file"));
    assert_eq!(object.annotation(HASH_ANNOTATION), Some(&*object.uid().to_string()));
    assert_eq!(object.uid().to_string().len(), 32);
    assert_eq!(object.first_seen(), Some(Time::from_secs(1_000_000)));
    assert_eq!(object.phase(), Phase::Pending);
    let tolerations = object.spec().tolerations.as_deref().unwrap();
    assert_eq!(tolerations.len(), 1);
    assert_eq!(tolerations[0].operator.as_deref(), Some("Exists"));
    assert_eq!(tolerations[0].effect.as_deref(), Some("NoExecute"));
}

#[test]
fn a_pod_from_a_url_tolerates_no_taint() {
    let mut pod = minimal();
    apply_static_defaults(&mut pod, &cx(SourceKind::Http));
    assert_eq!(pod.spec.unwrap().tolerations, None);
    assert_eq!(pod.metadata.annotations.unwrap()[SOURCE_ANNOTATION], "http");
}

#[test]
fn the_uid_follows_content_node_and_origin_only() {
    let uid = |pod: &Pod, cx: &StaticContext<'_>| {
        let mut pod = pod.clone();
        apply_static_defaults(&mut pod, cx);
        pod.metadata.uid.unwrap()
    };
    let base = cx(SourceKind::File);
    let first = uid(&minimal(), &base);
    assert_eq!(first, uid(&minimal(), &StaticContext { now: Time::from_secs(5), ..base }));
    // Fixed for all releases: an upgrade of the agent must not restart every static pod.
    assert_eq!(first, "86c81f50964f237012704f2522d337cd");

    let mut other = minimal();
    other.spec.as_mut().unwrap().containers[0].image = Some("busybox:1.37".into());
    for different in [
        uid(&other, &base),
        uid(&minimal(), &StaticContext { node_name: "node-b", ..base }),
        uid(&minimal(), &StaticContext { origin: "/etc/pods/other.yaml", ..base }),
    ] {
        assert_ne!(first, different);
    }
    let mut fixed = minimal();
    fixed.metadata.uid = Some("my-uid".into());
    assert_eq!(uid(&fixed, &base), "my-uid");
}

#[test]
fn a_manifest_keeps_its_deletion_grace_but_not_its_deletion_and_status() {
    let mut pod = minimal();
    pod.metadata.deletion_timestamp = Some(Time::from_secs(9).to_api());
    pod.metadata.deletion_grace_period_seconds = Some(3);
    pod.status = Some(PodStatus { phase: Some("Succeeded".into()), ..PodStatus::default() });
    apply_static_defaults(&mut pod, &cx(SourceKind::File));
    let object = PodObject::new(pod).unwrap();
    assert!(!object.is_deleting());
    assert_eq!(object.phase(), Phase::Pending);
    assert_eq!(stop::grace(Some(&object), None, KillReason::PodStops, None), Duration::from_secs(3));
}

#[test]
fn a_system_priority_class_has_its_priority() {
    for (class, priority) in [
        ("system-cluster-critical", Some(2_000_000_000)),
        ("system-node-critical", Some(2_000_001_000)),
        ("mine", None),
    ] {
        let mut pod = minimal();
        pod.spec.as_mut().unwrap().priority_class_name = Some(class.into());
        apply_static_defaults(&mut pod, &cx(SourceKind::File));
        assert_eq!(pod.spec.unwrap().priority, priority, "{class}");
    }
}

#[test]
fn a_manifest_gets_the_defaults_of_the_api_server() {
    let value = defaulted(pod(json!({
        "metadata": {"name": "web"},
        "spec": {
            "hostNetwork": true,
            "containers": [{
                "name": "c", "image": "busybox",
                "ports": [{"containerPort": 80}],
                "env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
                "livenessProbe": {"httpGet": {"port": 80}},
                "readinessProbe": {"grpc": {"port": 9}, "periodSeconds": 3},
                "lifecycle": {"preStop": {"httpGet": {"port": 80, "scheme": "HTTPS"}}},
            }],
            "volumes": [
                {"name": "a"},
                {"name": "b", "hostPath": {"path": "/tmp"}},
                {"name": "c", "downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}},
            ],
        },
    })));
    let cases = [
        ("/spec/restartPolicy", json!("Always")),
        ("/spec/dnsPolicy", json!("ClusterFirst")),
        ("/spec/schedulerName", json!("default-scheduler")),
        ("/spec/terminationGracePeriodSeconds", json!(30)),
        ("/spec/enableServiceLinks", json!(true)),
        ("/spec/securityContext", json!({})),
        ("/spec/containers/0/terminationMessagePath", json!("/dev/termination-log")),
        ("/spec/containers/0/terminationMessagePolicy", json!("File")),
        ("/spec/containers/0/imagePullPolicy", json!("Always")),
        ("/spec/containers/0/ports/0", json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"})),
        ("/spec/containers/0/env/0/valueFrom/fieldRef/apiVersion", json!("v1")),
        ("/spec/containers/0/resources/requests", json!({"cpu": "500m", "memory": "1Gi"})),
        (
            "/spec/containers/0/livenessProbe",
            json!({
                "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
            }),
        ),
        ("/spec/containers/0/readinessProbe/grpc", json!({"port": 9, "service": ""})),
        ("/spec/containers/0/readinessProbe/periodSeconds", json!(3)),
        ("/spec/containers/0/lifecycle/preStop/httpGet", json!({"port": 80, "path": "/", "scheme": "HTTPS"})),
        ("/spec/volumes/0", json!({"name": "a", "emptyDir": {}})),
        ("/spec/volumes/1/hostPath", json!({"path": "/tmp", "type": ""})),
        ("/spec/volumes/2/downwardAPI/defaultMode", json!(420)),
        ("/spec/volumes/2/downwardAPI/items/0/fieldRef/apiVersion", json!("v1")),
    ];
    for (path, expected) in cases {
        assert_eq!(value.pointer(path), Some(&expected), "{path}");
    }
}

#[test]
fn only_the_image_tag_latest_is_always_pulled() {
    for (image, policy) in [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1.36", "IfNotPresent"),
        ("localhost:5000/busybox", "Always"),
        ("localhost:5000/busybox:1", "IfNotPresent"),
        ("busybox@sha256:00", "IfNotPresent"),
        ("busybox:latest@sha256:00", "Always"),
    ] {
        let mut pod = minimal();
        pod.spec.as_mut().unwrap().containers[0].image = Some(image.into());
        assert_eq!(defaulted(pod)["spec"]["containers"][0]["imagePullPolicy"], policy, "{image}");
    }
}

#[test]
fn defaulting_twice_changes_nothing() {
    let mut once = minimal();
    apply_api_defaults(&mut once);
    let mut twice = once.clone();
    apply_api_defaults(&mut twice);
    assert_eq!(once, twice);
}
