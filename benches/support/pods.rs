//! The pod of every workload, as if created with `kubectl`: one container, running, from the API server.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_model::pod::{PodObject, SOURCE_ANNOTATION};

/// Creates `n` pods, each an object of its own. Call it before the measurement starts.
pub(crate) fn pods(n: usize) -> Vec<Arc<PodObject>> {
    (0..n).map(pod).collect()
}

/// Pod number `i`.
pub(crate) fn pod(i: usize) -> Arc<PodObject> {
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(format!("pod-{i:06}")),
            namespace: Some("bench".to_owned()),
            uid: Some(format!("{i:08x}-0000-4000-8000-{i:012x}")),
            annotations: Some(BTreeMap::from([(SOURCE_ANNOTATION.to_owned(), "api".to_owned())])),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![Container {
                name: "main".to_owned(),
                image: Some("registry.example/app:1".to_owned()),
                ..Container::default()
            }],
            termination_grace_period_seconds: Some(30),
            ..PodSpec::default()
        }),
        status: Some(PodStatus { phase: Some("Running".to_owned()), ..PodStatus::default() }),
    };
    PodObject::new(pod).expect("name, namespace, UID and spec are set above")
}
