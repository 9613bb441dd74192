//! Builds the mirror pod of a static pod.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::ids::NodeUid;
use crate::pod::{MIRROR_ANNOTATION, PodObject};

/// The mirror pod of a static pod: its spec, labels and annotations, with the hash of the manifest in an annotation and the node as
/// its owner. The API server admits no other pods from a node (`NodeRestriction`, 1.36).
pub(super) fn mirror_pod(pod: &PodObject, node: &str, uid: &NodeUid) -> Pod {
    let meta = pod.metadata();
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.insert(MIRROR_ANNOTATION.to_owned(), pod.manifest_hash());
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid: uid.as_str().to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let metadata = ObjectMeta {
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        labels: meta.labels.clone(),
        annotations: Some(annotations),
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    Pod { metadata, spec: Some(pod.spec().clone()), status: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::HASH_ANNOTATION;
    use crate::testing;

    #[test]
    fn a_mirror_pod_has_the_annotations_of_its_static_pod_and_the_node_as_owner() {
        let pod = testing::pod("web").uid("static").static_pod().annotation(HASH_ANNOTATION, "1").annotation("a", "b");
        let pod = pod.deleting(5).build();
        let mirror = mirror_pod(&pod, "n1", &NodeUid::from("node-uid"));
        assert_eq!(mirror.spec.as_ref(), Some(pod.spec()));
        assert_eq!(mirror.status, None);
        let metadata = serde_json::to_value(mirror.metadata).unwrap();
        let expected = serde_json::json!({
            "name": pod.full_name().name(), "namespace": pod.full_name().namespace(),
            "annotations": {"a": "b", "kubernetes.io/config.source": "file", "kubernetes.io/config.hash": "1",
                "kubernetes.io/config.mirror": "1"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "node-uid", "controller": true}],
        });
        assert_eq!(metadata, expected);
    }
}
