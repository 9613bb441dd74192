use serde_json::json;

use super::{decode, encode};
use crate::raw;

#[test]
fn an_eviction_is_read() {
    // A continuation byte without an end is refused.
    assert_eq!(decode(b"k8s\0\x0a\xff").unwrap_err(), "the protobuf message is broken");
    let body = b"k8s\0\x0a\x15\x0a\x09policy/v1\x12\x08Eviction\
        \x12\x15\x0a\x0f\x0a\x01p\x12\x00\x5a\x06\x0a\x01a\x12\x01b\x42\x00\x12\x02\x08\x05\x1a\x00\"\x00";
    let expected = json!({
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "p", "labels": {"a": "b"}},
        "deleteOptions": {"gracePeriodSeconds": 5},
    });
    assert_eq!(decode(body).unwrap(), expected);
}

#[test]
fn a_claim_is_written_and_read() {
    let parameters = raw::opaque("{ \"b\": 1.0, \"a\": \"<\" }");
    let config = json!([{"requests": ["r"], "opaque": {"driver": "d", "parameters": parameters}}]);
    let result = json!({"request": "r", "driver": "d", "pool": "p", "device": "x", "consumedCapacity": {"m": "1Gi"}});
    let term = json!({"matchExpressions": [{"key": "k", "operator": "In", "values": ["a", "b"]}]});
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": "c",
            "namespace": "default",
            "resourceVersion": "7",
            "creationTimestamp": "2026-11-27T08:48:56Z",
            "finalizers": ["a", "b"],
            "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {".": {}}}}],
        },
        "spec": {"devices": {
            "requests": [{"name": "r", "exactly": {"deviceClassName": "c", "count": 1, "adminAccess": true}}],
            "config": config,
        }},
        "status": {
            "allocation": {
                "devices": {"results": [result], "config": config},
                "nodeSelector": {"nodeSelectorTerms": [term]},
            },
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            "devices": [{"driver": "d", "pool": "p", "device": "x", "data": raw::opaque("[1, 2]")}],
        },
    });
    assert_eq!(decode(&encode(&claim).unwrap()).unwrap(), claim);
    assert_eq!(encode(&json!({"apiVersion": "v1", "kind": "Pod"})), None);
}

#[test]
fn other_kinds_and_other_bodies_are_refused() {
    let pod = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x00";
    assert_eq!(decode(pod).unwrap_err(), "the kind \"Pod\" is served as JSON only: send application/json");
    assert!(decode(b"{}").unwrap_err().contains("prefix"));
}
