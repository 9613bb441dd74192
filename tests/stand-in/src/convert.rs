//! Events exist in two API groups. The server stores them in the form of the core group.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::schema::Resource;

/// The fields with another name in `events.k8s.io`: core name, new name.
const RENAMED: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

fn is_new_event(resource: &Resource) -> bool {
    resource.group == "events.k8s.io"
}

fn rename(object: &Value, api_version: &str, to_core: bool) -> Value {
    let fields = object.as_object().into_iter().flatten().map(|(name, value)| {
        let found = RENAMED.iter().find(|(core, new)| name == if to_core { new } else { core });
        let name = found.map_or(name.as_str(), |(core, new)| if to_core { core } else { new });
        (name.to_owned(), value.clone())
    });
    let mut renamed: Map<String, Value> = fields.collect();
    renamed.insert("apiVersion".to_owned(), json!(api_version));
    Value::Object(renamed)
}

/// A stored object as a resource serves it. Only events of the new group need a copy.
#[must_use]
pub(crate) fn view<'a>(resource: &Resource, stored: &'a Value) -> Cow<'a, Value> {
    if is_new_event(resource) { Cow::Owned(rename(stored, "events.k8s.io/v1", false)) } else { Cow::Borrowed(stored) }
}

/// A copy of a stored object as a resource serves it.
#[must_use]
pub(crate) fn outward(resource: &Resource, stored: &Value) -> Value {
    view(resource, stored).into_owned()
}

/// A body in the form in which the store keeps it.
#[must_use]
pub(crate) fn inward(resource: &Resource, body: Value) -> Value {
    if is_new_event(resource) { rename(&body, "v1", true) } else { body }
}
