//! The strategic merge patch that turns one pod status into another. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Map, Value, json};

/// The lists of a pod status that a strategic merge patch merges by a key. It replaces every other list as a whole (the
/// `patchMergeKey` of `core/v1`, 1.36).
const CONDITIONS: &str = "conditions";
const ADDRESSES: [&str; 2] = ["hostIPs", "podIPs"];

/// The fields of a condition, besides its type. They belong together.
const CONDITION_FIELDS: [&str; 5] = ["status", "reason", "message", "lastTransitionTime", "observedGeneration"];

/// The patch from `old` to `new`; empty if they are equal. A field that only `old` has becomes null, which removes it.
///
/// Conditions are compared by type, so the patch does not change conditions that another program wrote after `old` was read. The server may
/// have a newer condition than `old`, for example after a write whose answer was lost, so the patch has all fields of a condition that
/// changes. A list of addresses is replaced as a whole.
pub(super) fn status_patch(old: &PodStatus, new: &PodStatus) -> serde_json::Result<Map<String, Value>> {
    let (old, new) = (fields(old)?, fields(new)?);
    let mut patch = object_patch(&old, &new);
    if patch.remove(CONDITIONS).is_some() {
        let conditions = whole_condition_patches(old.get(CONDITIONS), new.get(CONDITIONS));
        if !conditions.is_empty() {
            patch.insert(CONDITIONS.to_owned(), Value::Array(conditions));
        }
    }
    for name in ADDRESSES {
        if let Some(Value::Array(addresses)) = patch.get_mut(name) {
            addresses.insert(0, json!({"$patch": "replace"}));
        }
    }
    Ok(patch)
}

/// The fields of patches, without their values. Each condition is one field, and each other list too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PatchFields(Box<[Box<str>]>);

impl PatchFields {
    /// The fields of one patch.
    pub(super) fn of(patch: &Value) -> Self {
        let mut paths = BTreeSet::new();
        add_paths(patch, "", &mut paths);
        PatchFields(paths.into_iter().collect())
    }

    /// Whether this has all fields of `others`.
    pub(super) fn has_all(&self, others: &PatchFields) -> bool {
        others.0.iter().all(|path| self.0.binary_search(path).is_ok())
    }

    /// These fields and `others`.
    pub(super) fn with(self, others: PatchFields) -> Self {
        let paths: BTreeSet<_> = self.0.into_iter().chain(others.0).collect();
        PatchFields(paths.into_iter().collect())
    }
}

/// Adds the paths of the fields in a value at the path `above`. Names of resources have dots and slashes, so a line break separates.
fn add_paths(value: &Value, above: &str, paths: &mut BTreeSet<Box<str>>) {
    let fields = match value {
        Value::Object(fields) if !fields.is_empty() => fields,
        _ => {
            paths.insert(above.into());
            return;
        }
    };
    for (name, value) in fields {
        let path = format!("{above}\n{name}");
        if name == CONDITIONS {
            let types = conditions(Some(value)).into_iter().filter_map(|condition| condition.get("type")?.as_str());
            paths.extend(types.map(|type_| format!("{path}\n{type_}").into_boxed_str()));
        } else {
            add_paths(value, &path, paths);
        }
    }
}

/// The patches of the conditions that differ, each with all fields of its condition.
fn whole_condition_patches(old: Option<&Value>, new: Option<&Value>) -> Vec<Value> {
    let mut patches = condition_patches(old, new);
    for patch in &mut patches {
        let of_type = |condition: &&Map<String, Value>| condition.get("type") == patch.get("type");
        let Some(condition) = conditions(new).into_iter().find(of_type) else { continue };
        for field in CONDITION_FIELDS {
            patch[field] = condition.get(field).cloned().unwrap_or_default();
        }
    }
    patches
}

fn fields(status: &PodStatus) -> serde_json::Result<Map<String, Value>> {
    match serde_json::to_value(status)? {
        Value::Object(fields) => Ok(fields),
        _ => Ok(Map::new()),
    }
}

pub(crate) fn object_patch(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let removed = old.keys().filter(|name| !new.contains_key(*name)).map(|name| (name.clone(), Value::Null));
    let changed = new.iter().filter_map(|(name, value)| match (old.get(name), value) {
        (Some(old), new) if old == new => None,
        (Some(Value::Object(old)), Value::Object(new)) => Some((name.clone(), Value::Object(object_patch(old, new)))),
        (_, new) => Some((name.clone(), new.clone())),
    });
    removed.chain(changed).collect()
}

pub(crate) fn condition_patches(old: Option<&Value>, new: Option<&Value>) -> Vec<Value> {
    let (old, new) = (conditions(old), conditions(new));
    let find = |list: &[&Map<String, Value>], wanted: &Map<String, Value>| {
        list.iter().find(|have| have.get("type") == wanted.get("type")).map(|have| Map::clone(have))
    };
    let removed = old.iter().filter(|condition| find(&new, condition).is_none());
    let removed = removed.map(|condition| json!({"$patch": "delete", "type": condition.get("type")}));
    let changed = new.iter().filter_map(|condition| {
        let before = find(&old, condition).unwrap_or_default();
        let mut patch = object_patch(&before, condition);
        if patch.is_empty() {
            return None;
        }
        patch.insert("type".to_owned(), condition.get("type").cloned().unwrap_or_default());
        Some(Value::Object(patch))
    });
    removed.chain(changed).collect()
}

fn conditions(list: Option<&Value>) -> Vec<&Map<String, Value>> {
    list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_object).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(old: Value, new: Value) -> Value {
        let status = |value| serde_json::from_value::<PodStatus>(value).unwrap();
        Value::Object(status_patch(&status(old), &status(new)).unwrap())
    }

    #[test]
    fn fields_of_a_patch_are_its_paths_and_conditions_without_values() {
        let earlier = json!({"hostIP": "192.0.2.1", "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.1"}],
            "resources": {"requests": {"cpu": "1"}}, "conditions": [{"type": "Ready", "status": "True"}]});
        let earlier = PatchFields::of(&earlier);
        for (patch, repeats) in [
            (json!({"hostIP": "192.0.2.9"}), true),
            (json!({"podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.9"}]}), true),
            (json!({"hostIP": "192.0.2.1", "podIP": "10.0.0.1"}), false),
            (json!({"resources": {"requests": {"cpu": "2"}}}), true),
            (json!({"resources": {"requests": {"memory": "1Gi"}}}), false),
            (json!({"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": null}]}), true),
            (json!({"conditions": [{"type": "Initialized", "status": "True"}]}), false),
            (json!({"conditions": [{"type": "PodResizePending", "$patch": "delete"}]}), false),
        ] {
            let fields = PatchFields::of(&patch);
            assert_eq!(earlier.has_all(&fields), repeats, "{patch}");
            let both = earlier.clone().with(fields.clone());
            assert!(both.has_all(&earlier) && both.has_all(&fields), "{both:?}");
            assert_eq!(both == earlier, repeats, "{both:?}");
        }
        assert!(!PatchFields::default().has_all(&earlier));
    }

    #[test]
    fn equal_statuses_need_no_patch() {
        let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        assert_eq!(patch(status.clone(), status), json!({}));
    }

    #[test]
    fn a_condition_is_patched_alone_with_all_its_fields() {
        let old = json!({"conditions": [
            {"type": "Ready", "status": "False", "reason": "ContainersNotReady", "message": "m"},
            {"type": "ContainersReady", "status": "False", "reason": "ContainersNotReady", "message": "m"},
            {"type": "example.com/gate", "status": "True"},
            {"type": "PodResizePending", "status": "True"}]});
        let new = json!({"conditions": [
            {"type": "example.com/gate", "status": "True"},
            {"type": "Ready", "status": "True"},
            {"type": "ContainersReady", "status": "False", "reason": "PodFailed"},
            {"type": "PodScheduled", "status": "True", "observedGeneration": 2}]});
        // The server may have other values of the fields that are equal in both, or that neither has.
        assert_eq!(
            patch(old, new),
            json!({"conditions": [
                {"type": "PodResizePending", "$patch": "delete"},
                {"type": "Ready", "status": "True", "reason": null, "message": null, "lastTransitionTime": null,
                    "observedGeneration": null},
                {"type": "ContainersReady", "status": "False", "reason": "PodFailed", "message": null,
                    "lastTransitionTime": null, "observedGeneration": null},
                {"type": "PodScheduled", "status": "True", "reason": null, "message": null, "lastTransitionTime": null,
                    "observedGeneration": 2}]})
        );
    }

    #[test]
    fn container_statuses_and_addresses_are_replaced_and_removed_fields_become_null() {
        let container =
            |ready: bool| json!({"name": "a", "image": "i", "imageID": "", "ready": ready, "restartCount": 0});
        let old = json!({"phase": "Failed", "reason": "Evicted", "podIPs": [{"ip": "10.0.0.1"}],
            "containerStatuses": [container(false)]});
        let new = json!({"phase": "Running", "podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}],
            "containerStatuses": [container(true)]});
        assert_eq!(
            patch(old, new),
            json!({"phase": "Running", "reason": null, "podIP": "10.0.0.2",
                "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}], "containerStatuses": [container(true)]})
        );
    }
}
