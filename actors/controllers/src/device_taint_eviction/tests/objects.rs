//! The objects of the scenarios.
//!
//! Slice `s` of pool `w` has the devices `i` without a taint, `j` with a NoSchedule taint, and `k` with a None and a NoExecute taint.
//! Claim `c` has device `i` and is reserved for pod `p`, which is on a node. Rule `r` has the same taint as the tainted `i`.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceTaint, DeviceToleration, ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use podwright_model::time::Time;
use serde_json::{Value, from_value, json};

pub(super) const NAMESPACE: &str = "shop";
pub(super) const DRIVER: &str = "d";
pub(super) const POOL: &str = "w";
/// 2000-01-01T00:00:00Z.
pub(super) const T0: Time = Time::from_secs(946_684_800);

/// A time after the start.
pub(super) fn after(seconds: u64) -> Time {
    T0 + Duration::from_secs(seconds)
}

pub(super) fn taint(key: &str, value: &str, effect: &str) -> DeviceTaint {
    DeviceTaint { key: key.into(), value: Some(value.into()), effect: effect.into(), time_added: Some(T0.to_api()) }
}

/// The NoExecute taint of the scenarios.
pub(super) fn evicting() -> DeviceTaint {
    taint("t", "v", "NoExecute")
}

pub(super) fn slice_of(name: &str, pool: &str, generation: i64, devices: &[(&str, Vec<DeviceTaint>)]) -> ResourceSlice {
    let device = |(name, taints): &(&str, Vec<DeviceTaint>)| json!({ "name": name, "taints": taints });
    let devices: Vec<_> = devices.iter().map(device).collect();
    from_value(json!({
        "metadata": { "name": name, "uid": format!("{name}-uid") },
        "spec": {
            "driver": DRIVER,
            "pool": { "name": pool, "generation": generation, "resourceSliceCount": 1 },
            "nodeName": "n",
            "devices": devices,
        },
    }))
    .unwrap()
}

/// Slice `s`, with these taints of device `i`.
pub(super) fn slice_with(taints: Vec<DeviceTaint>) -> ResourceSlice {
    let both = vec![taint("a", "", "None"), taint("b", "", "NoExecute")];
    slice_of("s", POOL, 1, &[("i", taints), ("j", vec![taint("a", "", "NoSchedule")]), ("k", both)])
}

pub(super) fn slice() -> ResourceSlice {
    slice_with(Vec::new())
}

/// Slice `s` with the NoExecute taint of device `i`.
pub(super) fn tainted_slice() -> ResourceSlice {
    slice_with(vec![evicting()])
}

/// A slice like `s` of another pool.
pub(super) fn other_slice() -> ResourceSlice {
    let mut slice = slice();
    slice.metadata.name = Some("s2".into());
    slice.spec.pool.name = "w2".into();
    slice
}

/// An entry of `reservedFor`.
pub(super) fn reserved(resource: &str, name: &str, uid: &str) -> Value {
    let group = if resource == "podgroups" { "scheduling.k8s.io" } else { "" };
    json!({ "apiGroup": group, "resource": resource, "name": name, "uid": uid })
}

/// A claim of these devices of the pool.
pub(super) fn claim_of(name: &str, devices: &[&str], consumers: &[Value]) -> ResourceClaim {
    let result = |device: &&str| json!({ "driver": DRIVER, "pool": POOL, "device": device, "request": "r" });
    let results: Vec<_> = devices.iter().map(result).collect();
    from_value(json!({
        "metadata": { "namespace": NAMESPACE, "name": name, "uid": format!("{name}-uid") },
        "spec": {},
        "status": { "allocation": { "devices": { "results": results } }, "reservedFor": consumers },
    }))
    .unwrap()
}

/// A claim of device `i`, owned by and reserved for a pod.
pub(super) fn claim_for(name: &str, pod: &str) -> ResourceClaim {
    let uid = format!("{pod}-uid");
    owned(claim_of(name, &["i"], &[reserved("pods", pod, &uid)]), "v1", "Pod", pod, &uid)
}

pub(super) fn claim() -> ResourceClaim {
    claim_for("c", "p")
}

pub(super) fn owned(mut claim: ResourceClaim, version: &str, kind: &str, name: &str, uid: &str) -> ResourceClaim {
    let owner = json!([{ "apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": true }]);
    claim.metadata.owner_references = from_value(owner).unwrap();
    claim
}

/// The claim with tolerations of its allocated devices.
pub(super) fn tolerating(mut claim: ResourceClaim, tolerations: &[DeviceToleration]) -> ResourceClaim {
    let devices = claim.status.as_mut().unwrap().allocation.as_mut().unwrap().devices.as_mut().unwrap();
    for result in devices.results.as_mut().unwrap() {
        result.tolerations = Some(tolerations.to_vec());
    }
    claim
}

pub(super) fn toleration(value: Value) -> DeviceToleration {
    from_value(value).unwrap()
}

/// A toleration of the taint of the scenarios, for some seconds.
pub(super) fn for_seconds(seconds: i64) -> DeviceToleration {
    toleration(json!({ "key": "t", "value": "v", "effect": "NoExecute", "tolerationSeconds": seconds }))
}

pub(super) fn without_allocation(mut claim: ResourceClaim) -> ResourceClaim {
    claim.status = None;
    claim
}

/// A pod on a node that names these claims.
pub(super) fn pod_of(name: &str, claims: &[&str]) -> Pod {
    let claims: Vec<_> = claims.iter().map(|claim| json!({ "name": claim, "resourceClaimName": claim })).collect();
    from_value(json!({
        "metadata": { "namespace": NAMESPACE, "name": name, "uid": format!("{name}-uid") },
        "spec": { "nodeName": "w", "containers": [], "resourceClaims": claims },
    }))
    .unwrap()
}

pub(super) fn pod() -> Pod {
    pod_of("p", &["c"])
}

pub(super) fn without_node(mut pod: Pod) -> Pod {
    pod.spec.as_mut().unwrap().node_name = None;
    pod
}

/// Pod `p` with a claim of a template. `claim` is the name that its status records.
pub(super) fn template_pod(claim: Option<&str>) -> Pod {
    let mut pod = pod();
    let claims = json!([{ "name": "c", "resourceClaimTemplateName": "tpl" }]);
    pod.spec.as_mut().unwrap().resource_claims = from_value(claims).unwrap();
    if let Some(claim) = claim {
        let statuses = json!([{ "name": "c", "resourceClaimName": claim }]);
        pod.status.get_or_insert_default().resource_claim_statuses = from_value(statuses).unwrap();
    }
    pod
}

pub(super) fn rule_with(effect: &str, selector: Value) -> DeviceTaintRule {
    from_value(json!({
        "metadata": { "name": "r", "uid": "r-uid", "generation": 1 },
        "spec": {
            "deviceSelector": selector,
            "taint": { "key": "t", "value": "v", "effect": effect, "timeAdded": "2000-01-01T00:00:00Z" },
        },
    }))
    .unwrap()
}

pub(super) fn rule_of(effect: &str) -> DeviceTaintRule {
    rule_with(effect, json!({ "driver": DRIVER }))
}

pub(super) fn rule() -> DeviceTaintRule {
    rule_of("NoExecute")
}

/// The rule after a change of its spec, at a time.
pub(super) fn changed_rule(rule: &DeviceTaintRule, effect: &str, at: Time) -> DeviceTaintRule {
    let mut rule = rule.clone();
    rule.spec.taint.effect = effect.to_owned();
    rule.spec.taint.time_added = Some(at.to_api());
    rule.metadata.generation = rule.metadata.generation.map(|generation| generation + 1);
    rule
}

/// An object in another namespace.
pub(super) fn in_namespace<
    T: k8s_openapi::Metadata<Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>,
>(
    mut object: T,
    namespace: &str,
) -> T {
    object.metadata_mut().namespace = Some(namespace.to_owned());
    object
}
