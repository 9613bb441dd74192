//! An API server with pods, claims, slices and device taints, for the tests of the controllers and of the binary.
//!
//! ```no_run
//! # async fn example() {
//! use podwright_cluster::Cluster;
//! use serde_json::json;
//!
//! let cluster = Cluster::start().await;
//! cluster.template("gpu");
//! cluster.pod("web", &["gpu"], &json!({"nodeName": "n1"}));
//! // A controller on `cluster.server` creates the claim of the pod.
//! cluster.has_all_claims().await;
//! # }
//! ```
//!
//! # Parts
//!
//! - [`Cluster`]: the server, with pods, templates and claims.
//! - [`taints`]: slices with tainted devices, rules, and the pods that use the devices.
//!
//! # Arrows
//!
//! The crate uses `podwright-stand-in`, and the waits of `podwright-fixtures`. Only tests use the crate.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

pub mod taints;

use std::collections::BTreeMap;
use std::sync::Arc;

use podwright_fixtures::polling::eventually;
use podwright_stand_in::{StandIn, opaque};
use serde_json::{Value, json};

/// The path of the pods.
pub const PODS: &str = "/api/v1/namespaces/default/pods";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";
/// The path of the claims.
pub const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
/// The content type of a merge patch.
pub const MERGE: &str = "application/merge-patch+json";
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// The annotation of a claim that names the entry of its pod.
pub const ENTRY: &str = "resource.kubernetes.io/pod-claim-name";
/// Parameters whose bytes no client and no server writes when it encodes the object anew.
pub const PARAMETERS: &str = r#"{"kind": "P", "apiVersion": "v1", "text": "<&>", "number": 1.0}"#;

/// An API server with pods, templates and claims.
pub struct Cluster {
    /// The server.
    pub server: StandIn,
}

impl Cluster {
    /// A cluster with a namespace for leases.
    ///
    /// # Panics
    /// If the server cannot listen. The other methods panic if the server refuses what they do.
    pub async fn start() -> Self {
        let cluster = Cluster { server: StandIn::start().await.unwrap() };
        cluster.server.create_namespace("kube-system");
        cluster
    }

    /// Creates a template of claims.
    pub fn template(&self, name: &str) {
        let spec = claim_spec(PARAMETERS);
        let body = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"spec":{spec}}}}}"#);
        self.server.request_text("POST", TEMPLATES, "application/json", &body).unwrap();
    }

    /// Creates the claim of a user.
    pub fn claim(&self, name: &str, parameters: &str) {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{}}}"#, claim_spec(parameters));
        self.server.request_text("POST", CLAIMS, "application/json", &body).unwrap();
    }

    /// Creates a pod with one claim for each template, named `c0`, `c1` and so on.
    pub fn pod(&self, name: &str, templates: &[&str], spec: &Value) {
        let claim =
            |(at, template): (usize, &&str)| json!({"name": format!("c{at}"), "resourceClaimTemplateName": template});
        let claims: Vec<_> = templates.iter().enumerate().map(claim).collect();
        self.pod_with(name, &json!(claims), spec);
    }

    /// Creates a pod with these claims, whose spec also has these fields.
    pub fn pod_with(&self, name: &str, claims: &Value, spec: &Value) {
        let mut pod = json!({"metadata": {"name": name}, "spec": {
            "containers": [{"name": "main", "image": "img"}], "resourceClaims": claims}});
        for (field, value) in spec.as_object().into_iter().flatten() {
            pod["spec"][field] = value.clone();
        }
        self.server.create(PODS, pod).unwrap();
    }

    /// Creates the claim of a pod, as if the server performed late a create whose answer a replica has lost.
    pub fn create_late(&self, pod: &str) {
        let uid = self.object("pods", pod)["metadata"]["uid"].clone();
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": true});
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
        let base = format!("{pod}-c0-");
        let metadata = json!({"generateName": base, "annotations": {ENTRY: "c0"}, "ownerReferences": [owner]});
        self.server.create(CLAIMS, json!({"metadata": metadata, "spec": spec})).unwrap();
    }

    /// An object of the namespace `default`. `Null` if it does not exist.
    pub fn object(&self, plural: &str, name: &str) -> Value {
        self.server.get(plural, "default", name).map(|object| Value::clone(&object)).unwrap_or_default()
    }

    /// Deletes an object at once.
    pub fn delete(&self, collection: &str, name: &str) {
        let options = json!({"gracePeriodSeconds": 0});
        self.server.request("DELETE", &format!("{collection}/{name}"), "application/json", &options).unwrap();
    }

    /// Sets the phase of a pod.
    pub fn set_phase(&self, pod: &str, phase: &str) {
        let status = json!({"status": {"phase": phase}});
        self.server.request("PATCH", &format!("{PODS}/{pod}/status"), MERGE, &status).unwrap();
    }

    /// Allocates a device to a claim as a scheduler does, with these consumers. The driver writes the status of the device.
    pub fn allocate(&self, claim: &str, consumers: &[&str]) {
        self.allocate_with(claim, consumers, PARAMETERS);
    }

    /// Allocates a device with these parameters.
    pub fn allocate_with(&self, claim: &str, consumers: &[&str], parameters: &str) {
        let path = format!("{CLAIMS}/{claim}");
        self.server.replace(&path, |claim| claim["metadata"]["finalizers"] = json!([FINALIZER])).unwrap();
        let results = json!([{"request": "r", "driver": "d", "pool": "p", "device": claim}]);
        let config = json!([{"source": "FromClass", "opaque": {"driver": "d", "parameters": opaque(parameters)}}]);
        let consumer =
            |pod: &&str| json!({"resource": "pods", "name": pod, "uid": self.object("pods", pod)["metadata"]["uid"]});
        let consumers: Vec<_> = consumers.iter().map(consumer).collect();
        let status = json!({
            "allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": consumers,
            "devices": [{"driver": "d", "pool": "p", "device": claim, "data": opaque(parameters)}],
        });
        self.server.replace(&format!("{path}/status"), |claim| claim["status"] = status).unwrap();
    }

    /// The number of consumers of a claim.
    pub fn consumers(&self, claim: &str) -> usize {
        self.object("resourceclaims", claim)["status"]["reservedFor"].as_array().map_or(0, Vec::len)
    }

    /// The names of the claims in the status of a pod, by the names in its spec.
    pub fn recorded(&self, pod: &str) -> BTreeMap<String, String> {
        recorded(&self.object("pods", pod))
    }

    /// Waits until the status of each pod names all of its claims. Then each of these claims exists, and there is no other claim.
    pub async fn has_all_claims(&self) {
        let is_complete = |pod: &Arc<Value>| {
            let claims = pod["spec"]["resourceClaims"].as_array().map_or(0, Vec::len);
            recorded(pod).len() == claims
        };
        eventually("each pod has its claims", || async {
            self.server.all("pods").iter().all(is_complete).then_some(())
        })
        .await;
        let mut expected = BTreeMap::new();
        for pod in self.server.all("pods") {
            for (entry, claim) in recorded(&pod) {
                expected.insert(claim, (pod["metadata"]["uid"].clone(), json!(entry)));
            }
        }
        let claim = |claim: &Arc<Value>| {
            let metadata = &claim["metadata"];
            let name = metadata["name"].as_str().unwrap().to_owned();
            (name, (metadata["ownerReferences"][0]["uid"].clone(), metadata["annotations"][ENTRY].clone()))
        };
        let found: BTreeMap<_, _> = self.server.all("resourceclaims").iter().map(claim).collect();
        assert_eq!(found.len(), expected.len(), "one claim for each entry of each pod");
        assert_eq!(found, expected);
    }
}

fn claim_spec(parameters: &str) -> String {
    let requests = r#"[{"name":"r","exactly":{"deviceClassName":"c"}}]"#;
    let config = format!(r#"[{{"opaque":{{"driver":"d","parameters":{parameters}}}}}]"#);
    format!(r#"{{"devices":{{"requests":{requests},"config":{config}}}}}"#)
}

/// The names of the claims in the status of a pod or a pod group, by the names in its spec.
pub fn recorded(pod: &Value) -> BTreeMap<String, String> {
    let statuses = pod["status"]["resourceClaimStatuses"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    statuses.iter().map(|status| (text(&status["name"]), text(&status["resourceClaimName"]))).collect()
}
