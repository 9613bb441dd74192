//! Completes a static pod's manifest, because no API server has done so.

mod api;
mod hash;

use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};

pub use api::apply_api_defaults;

use crate::pod::{HASH_ANNOTATION, Phase, SEEN_ANNOTATION, SOURCE_ANNOTATION, SYSTEM_CRITICAL_PRIORITY};
use crate::ports::SourceKind;
use crate::time::Time;

/// The facts about a static pod's source.
#[derive(Clone, Copy, Debug)]
pub struct StaticContext<'a> {
    /// The node's name.
    pub node_name: &'a str,
    /// The source.
    pub source: SourceKind,
    /// The path of the file, or the URL.
    pub origin: &'a str,
    /// When the manifest was read.
    pub now: Time,
}

/// Converts a manifest to a pod of this node: sets its identity, node, annotations and the phase Pending, and applies
/// the API server's defaults ([`apply_api_defaults`]).
///
/// The UID is the manifest's own, else a hash of its content, the node's name and its origin. The same manifest
/// therefore keeps its UID over restarts of the agent, and a changed one becomes another pod. Comments and formatting
/// do not change the UID.
pub fn apply_static_defaults(pod: &mut Pod, cx: &StaticContext<'_>) {
    let uid = match pod.metadata.uid.take() {
        Some(uid) if !uid.is_empty() => uid,
        _ => generated_uid(pod, cx),
    };
    let meta = &mut pod.metadata;
    meta.name = meta.name.take().map(|name| format!("{name}-{}", cx.node_name.to_lowercase()));
    if meta.namespace.as_deref().is_none_or(str::is_empty) {
        meta.namespace = Some("default".into());
    }
    // A file cannot request deletion, but a manifest copied from a running cluster may have the time of one. The deletion grace period
    // counts when the pod stops, as with a kubelet.
    meta.deletion_timestamp = None;
    let annotations = meta.annotations.get_or_insert_default();
    annotations.insert(HASH_ANNOTATION.into(), uid.clone());
    meta.uid = Some(uid);
    mark_source(pod, cx.source, cx.now);

    pod.status = Some(PodStatus { phase: Some(Phase::Pending.as_str().into()), ..PodStatus::default() });
    let Some(spec) = pod.spec.as_mut() else { return };
    spec.node_name = Some(cx.node_name.into());
    if cx.source == SourceKind::File {
        let tolerations = spec.tolerations.get_or_insert_default();
        let all =
            Toleration { operator: Some("Exists".into()), effect: Some("NoExecute".into()), ..Toleration::default() };
        if !tolerations.contains(&all) {
            tolerations.push(all);
        }
    }
    if spec.priority.is_none() {
        // The API server's admission does this too. Without it the system's pods would stop first at a shutdown.
        spec.priority = match spec.priority_class_name.as_deref() {
            Some("system-cluster-critical") => Some(SYSTEM_CRITICAL_PRIORITY),
            Some("system-node-critical") => Some(SYSTEM_CRITICAL_PRIORITY + 1000),
            _ => None,
        };
    }
    apply_api_defaults(pod);
}

/// Sets the annotations that record the pod's source and the time at which it was first seen, for pods of every source.
fn mark_source(pod: &mut Pod, source: SourceKind, now: Time) {
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SOURCE_ANNOTATION.into(), source.as_str().into());
    annotations.insert(SEEN_ANNOTATION.into(), now.to_timestamp().to_string());
}

fn generated_uid(pod: &Pod, cx: &StaticContext<'_>) -> String {
    let mut hash = hash::Fnv128::new();
    // Fields are in the order of the types and maps are sorted, so equal content gives equal text.
    let content = serde_json::to_vec(pod).expect("a pod is plain data with text keys");
    for part in [&*content, cx.source.as_str().as_bytes(), cx.node_name.as_bytes(), cx.origin.as_bytes()] {
        hash.write(part);
        hash.write(&[0]);
    }
    format!("{:032x}", hash.finish())
}

#[cfg(test)]
mod tests;
