//! Devices with taints, and their users.

use podwright_stand_in::{Served, Verb};
use serde_json::{Value, json};

use crate::{CLAIMS, Cluster, MERGE};

/// The path of the slices.
pub const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// The path of the rules.
pub const RULES: &str = "/apis/resource.k8s.io/v1beta2/devicetaintrules";
/// When the taints of the tests were added.
pub const LONG_AGO: &str = "2020-01-01T00:00:00Z";

/// The lease of the controller.
pub const LEASE: &str = "device-taint-eviction-controller";

/// Tolerations of all taints for many years.
pub fn forever() -> Value {
    json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2_000_000_000}])
}

impl Cluster {
    /// Pods on a node, each with a claim of a device of its own.
    pub fn users(&self, number: usize, tolerations: &Value) {
        (0..number).for_each(|at| self.user(at, tolerations));
    }

    /// Pod `pN` on a node, with claim `cN` of device `iN`.
    pub fn user(&self, at: usize, tolerations: &Value) {
        let (pod, claim) = (format!("p{at}"), format!("c{at}"));
        self.claim_of_device(&claim, &format!("i{at}"), tolerations);
        self.pod_with(&pod, &json!([{"name": "c0", "resourceClaimName": claim}]), &json!({"nodeName": "n1"}));
        self.reserve(&claim, &json!([self.consumer(&pod)]));
    }

    /// A claim with an allocated device.
    pub fn claim_of_device(&self, claim: &str, device: &str, tolerations: &Value) {
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
        self.server.create(CLAIMS, json!({"metadata": {"name": claim}, "spec": spec})).unwrap();
        let result = json!({"request": "r", "driver": "d", "pool": "w", "device": device, "tolerations": tolerations});
        let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
        self.server.request("PATCH", &format!("{CLAIMS}/{claim}/status"), MERGE, &status).unwrap();
    }

    /// Replaces the consumers of a claim.
    pub fn reserve(&self, claim: &str, consumers: &Value) {
        let status = json!({"status": {"reservedFor": consumers}});
        self.server.request("PATCH", &format!("{CLAIMS}/{claim}/status"), MERGE, &status).unwrap();
    }

    /// The entry of a pod in the consumers of a claim.
    pub fn consumer(&self, pod: &str) -> Value {
        json!({"resource": "pods", "name": pod, "uid": self.object("pods", pod)["metadata"]["uid"]})
    }

    /// A slice whose device `i0` is tainted.
    pub fn tainted_slice(&self) {
        self.slice_with_tainted(&["i0"]);
    }

    /// A slice whose devices are tainted.
    pub fn slice_with_tainted(&self, devices: &[&str]) {
        let taint = json!({"key": "t", "value": "v", "effect": "NoExecute", "timeAdded": LONG_AGO});
        let devices: Vec<_> = devices.iter().map(|name| json!({"name": name, "taints": [taint]})).collect();
        let spec = json!({"driver": "d", "nodeName": "n1", "devices": devices,
            "pool": {"name": "w", "generation": 1, "resourceSliceCount": 1}});
        self.server.create(SLICES, json!({"metadata": {"name": "s"}, "spec": spec})).unwrap();
    }

    /// Replaces the taints of device `i0` of the slice.
    pub fn set_taints(&self, taints: &Value) {
        let spec = json!({"spec": {"devices": [{"name": "i0", "taints": taints}]}});
        self.server.request("PATCH", &format!("{SLICES}/s"), MERGE, &spec).unwrap();
    }

    /// A rule for all devices of the driver.
    pub fn rule(&self) {
        self.rule_for(&json!({"driver": "d"}));
    }

    /// A rule for these devices.
    pub fn rule_for(&self, selector: &Value) {
        self.rule_since(selector, LONG_AGO);
    }

    /// A rule for these devices, whose taint has this time.
    pub fn rule_since(&self, selector: &Value, time_added: &str) {
        let taint = json!({"key": "t", "value": "v", "effect": "NoExecute", "timeAdded": time_added});
        let spec = json!({"deviceSelector": selector, "taint": taint});
        self.server.create(RULES, json!({"metadata": {"name": "r"}, "spec": spec})).unwrap();
    }

    /// Whether a pod is gone or being deleted.
    pub fn is_deleted(&self, pod: &str) -> bool {
        let pod = self.object("pods", pod);
        pod.is_null() || !pod["metadata"]["deletionTimestamp"].is_null()
    }

    /// The condition of the rule: its status and reason.
    pub fn progress(&self) -> Option<(Value, Value)> {
        let rule = self.server.get("devicetaintrules", "", "r")?;
        let conditions = rule["status"]["conditions"].as_array()?.clone();
        let condition = conditions.into_iter().find(|condition| condition["type"] == "EvictionInProgress")?;
        Some((condition["status"].clone(), condition["reason"].clone()))
    }

    /// The requests of this verb for a resource.
    pub fn calls(&self, verb: Verb, resource: &str) -> Vec<Served> {
        let is_asked = |served: &Served| served.verb == Some(verb) && served.resource == resource;
        self.server.requests().into_iter().filter(is_asked).collect()
    }
}
