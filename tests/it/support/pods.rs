//! Pods for the tests.

use std::sync::Arc;

use podwright_actors::pod::PodObject;
use serde_json::{Value, json};

/// Builds a pod from the API server in namespace `test`. Its UID is its name. It has one container `main` and a grace period
/// of 30 s.
pub(crate) fn pod(name: &str) -> PodBuilder {
    PodBuilder(json!({
        "metadata": {
            "name": name, "namespace": "test", "uid": name, "generation": 1,
            "annotations": {"kubernetes.io/config.source": "api"},
        },
        "spec": {"terminationGracePeriodSeconds": 30, "containers": [{"name": "main", "image": "img"}]},
    }))
}

#[derive(Clone)]
pub(crate) struct PodBuilder(Value);

impl PodBuilder {
    pub(crate) fn build(&self) -> Arc<PodObject> {
        PodObject::new(serde_json::from_value(self.0.clone()).unwrap()).unwrap()
    }

    pub(crate) fn uid(mut self, uid: &str) -> Self {
        self.0["metadata"]["uid"] = json!(uid);
        self
    }

    pub(crate) fn annotation(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = json!(value);
        self
    }

    /// Makes the pod come from a file instead of the API server.
    pub(crate) fn of_file(self) -> Self {
        self.annotation("kubernetes.io/config.source", "file")
    }

    pub(crate) fn mirror(self) -> Self {
        self.annotation("kubernetes.io/config.mirror", "hash")
    }

    pub(crate) fn deleting(mut self, grace: i64) -> Self {
        self.0["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        self.0["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        self
    }

    /// Adds a condition that another component than the node has set.
    pub(crate) fn condition(mut self, kind: &str, reason: &str, message: &str) -> Self {
        let condition = json!({"type": kind, "status": "True", "reason": reason, "message": message});
        self.0["status"]["conditions"] = json!([condition]);
        self
    }

    pub(crate) fn phase(mut self, phase: &str) -> Self {
        self.0["status"]["phase"] = json!(phase);
        self
    }

    pub(crate) fn status_field(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["status"][field] = value.into();
        self
    }

    pub(crate) fn spec(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0["spec"][field] = value.into();
        self
    }

    pub(crate) fn whole_spec(mut self, spec: Value) -> Self {
        self.0["spec"] = spec;
        self
    }

    pub(crate) fn grace(self, seconds: i64) -> Self {
        self.spec("terminationGracePeriodSeconds", seconds)
    }

    pub(crate) fn policy(self, policy: &str) -> Self {
        self.spec("restartPolicy", policy)
    }

    /// Replaces the containers. Each one has the image `img`.
    pub(crate) fn containers(self, names: &[&str]) -> Self {
        let list: Vec<Value> = names.iter().map(|name| json!({"name": name, "image": "img"})).collect();
        self.spec("containers", list)
    }

    pub(crate) fn cpu(mut self, cpu: &str) -> Self {
        self.0["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
        self
    }

    /// Makes the pod one of a Deployment: the API server made its name from `prefix`.
    pub(crate) fn generated(mut self, prefix: &str, template_hash: &str) -> Self {
        self.0["metadata"]["generateName"] = json!(prefix);
        self.0["metadata"]["labels"]["pod-template-hash"] = json!(template_hash);
        self
    }

    pub(crate) fn label(mut self, value: &str) -> Self {
        self.0["metadata"]["labels"]["v"] = json!(value);
        self
    }
}
