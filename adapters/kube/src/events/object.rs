//! Builds the objects of events.

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time as ApiTime};
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{EventType, PodEvent};

/// The component that reports the events of a node. Programs search for it, so it is the kubelet's name.
pub(super) const COMPONENT: &str = "kubelet";
/// The namespace of the events of objects without a namespace.
const DEFAULT_NAMESPACE: &str = "default";
/// The longest name of an object (`IsDNS1123Subdomain`).
const LONGEST_NAME: usize = 253;

/// An event that was recorded.
pub(super) struct RecordedEvent {
    /// The object that the event is about.
    pub(super) object: ObjectReference,
    pub(super) event: PodEvent,
    pub(super) at: Time,
}

/// The reference to a pod.
///
/// An event of a static pod names the UID of the static pod and not that of its mirror pod: `kubectl describe` searches the events
/// of a mirror pod by the hash in its annotation, which is that UID.
pub(super) fn pod_reference(pod: &PodObject) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.full_name().name().to_owned()),
        namespace: Some(pod.full_name().namespace().to_owned()),
        uid: Some(pod.uid().to_string()),
        resource_version: pod.metadata().resource_version.clone(),
        field_path: None,
    }
}

/// The reference to a node. A kubelet names the node itself as the UID, and `kubectl describe node` searches for that.
pub(super) fn node_reference(node: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(node.to_owned()),
        ..ObjectReference::default()
    }
}

/// The name of an object in logs, with its namespace if it has one.
pub(super) fn qualified_name(object: &ObjectReference) -> String {
    let name = object.name.as_deref().unwrap_or_default();
    match &object.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The object of an event with the count 1. `number` makes the name unique among the events of the object.
pub(super) fn object(recorded: RecordedEvent, source: &EventSource, number: u64) -> Event {
    let RecordedEvent { object, event: PodEvent { kind, reason, message, field_path, annotations, .. }, at } = recorded;
    let involved_object = ObjectReference { field_path, ..object };
    let namespace = involved_object.namespace.clone().unwrap_or_else(|| DEFAULT_NAMESPACE.to_owned());
    let annotations = annotations.map(|all| all.into_iter().map(|(key, value)| (key.into_owned(), value)).collect());
    let metadata = ObjectMeta {
        name: Some(name(involved_object.name.as_deref().unwrap_or_default(), number)),
        namespace: Some(namespace),
        annotations,
        ..ObjectMeta::default()
    };
    let at = ApiTime(at.to_timestamp());
    Event {
        metadata,
        involved_object,
        type_: Some(type_name(kind).to_owned()),
        reason: Some(reason.into_owned()),
        message: Some(message),
        source: Some(source.clone()),
        first_timestamp: Some(at.clone()),
        last_timestamp: Some(at),
        count: Some(1),
        reporting_component: source.component.clone(),
        reporting_instance: source.host.clone(),
        ..Event::default()
    }
}

fn type_name(kind: EventType) -> &'static str {
    match kind {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
    }
}

/// The name of an event: the name of its object, cut if it is too long, and a number in hexadecimal digits.
fn name(of: &str, number: u64) -> String {
    let number = format!("{number:x}");
    let longest = LONGEST_NAME - 1 - number.len();
    let of = of.get(..longest).unwrap_or(of).trim_end_matches(['.', '-']);
    format!("{of}.{number}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use podwright_model::pod::ContainerKind;
    use serde_json::json;

    use super::*;

    const AT: Time = Time::from_secs(1_800_000_000);

    fn node() -> EventSource {
        EventSource { component: Some(COMPONENT.to_owned()), host: Some("n1".to_owned()) }
    }

    #[test]
    fn an_event_of_a_container_has_the_fields_of_a_kubelet() {
        let pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7"},
            "spec": {"containers": []}});
        let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
        let event = PodEvent::normal("Started", "Container started").of_container(ContainerKind::Regular, "main");
        let event = event.with_annotations(BTreeMap::from([("a".into(), "b".to_owned())]));
        let object = object(RecordedEvent { object: pod_reference(&pod), event, at: AT }, &node(), 0x1f);
        let expected = json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": "web.1f", "namespace": "shop", "annotations": {"a": "b"}},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "web", "namespace": "shop", "uid": "u",
                "resourceVersion": "7", "fieldPath": "spec.containers{main}"},
            "type": "Normal", "reason": "Started", "message": "Container started",
            "source": {"component": "kubelet", "host": "n1"},
            "firstTimestamp": "2027-01-15T08:00:00Z", "lastTimestamp": "2027-01-15T08:00:00Z", "count": 1,
            "reportingComponent": "kubelet", "reportingInstance": "n1",
        });
        assert_eq!(serde_json::to_value(object).unwrap(), expected);
    }

    #[test]
    fn an_event_of_the_node_is_in_the_default_namespace() {
        let event = PodEvent::warning("SystemOOM", "System OOM encountered");
        let object = object(RecordedEvent { object: node_reference("n1"), event, at: AT }, &node(), 1);
        assert_eq!(object.metadata.namespace.as_deref(), Some("default"));
        let expected = json!({"kind": "Node", "name": "n1", "uid": "n1"});
        assert_eq!(serde_json::to_value(object.involved_object).unwrap(), expected);
    }

    #[test]
    fn logs_name_an_object_with_its_namespace() {
        let pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u"}, "spec": {"containers": []}});
        let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!(qualified_name(&pod_reference(&pod)), "shop/web");
        assert_eq!(qualified_name(&node_reference("n1")), "n1");
    }

    #[test]
    fn a_name_is_never_too_long() {
        let long = format!("{}-{}", "a".repeat(235), "b".repeat(17));
        assert_eq!(name(&long, 0x1234_5678_9abc_def0), format!("{}.123456789abcdef0", "a".repeat(235)));
        assert_eq!(name("web", 255), "web.ff");
    }
}
