//! Sets of fields, in the form of `managedFields`: the fields that an object has, and the fields that a change touches.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::schema::{ListKind, is_atomic_map, list_kind};

/// A set of fields of one object. Keys are the path elements of `FieldsV1`: `f:NAME`, `k:{...}` and `v:VALUE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Whether the field itself is in the set.
    pub(crate) is_member: bool,
    pub(crate) children: BTreeMap<String, Fields>,
}

/// The difference between two states of an object.
#[derive(Debug, Default)]
pub(crate) struct Difference {
    /// Fields that are new or have another value.
    pub(crate) changed: Fields,
    /// Fields that are gone.
    pub(crate) removed: Fields,
}

impl Fields {
    fn leaf() -> Self {
        Self { is_member: true, children: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.is_member && self.children.is_empty()
    }

    pub(crate) fn from_json(value: &Value) -> Self {
        let Some(map) = value.as_object() else { return Self::default() };
        let children = map.iter().filter(|(key, _)| *key != ".").map(|(key, value)| {
            let mut child = Self::from_json(value);
            child.is_member |= value.as_object().is_some_and(|inner| inner.is_empty() || inner.contains_key("."));
            (key.clone(), child)
        });
        Self { is_member: false, children: children.collect() }
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut map: Map<String, Value> =
            self.children.iter().map(|(key, child)| (key.clone(), child.to_json())).collect();
        if self.is_member && !self.children.is_empty() {
            map.insert(".".to_owned(), json!({}));
        }
        Value::Object(map)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.is_member |= other.is_member;
        for (key, child) in &other.children {
            self.children.entry(key.clone()).or_default().add(child);
        }
    }

    /// Removes the fields of `other`.
    pub(crate) fn subtract(&mut self, other: &Self) {
        self.is_member &= !other.is_member;
        for (key, gone) in &other.children {
            if let Some(child) = self.children.get_mut(key) {
                child.subtract(gone);
                if child.is_empty() {
                    self.children.remove(key);
                }
            }
        }
    }

    /// Removes the fields of `other` and everything below them.
    pub(crate) fn subtract_deep(&mut self, other: &Self) {
        for (key, gone) in &other.children {
            if gone.is_member {
                self.children.remove(key);
            } else if let Some(child) = self.children.get_mut(key) {
                child.subtract_deep(gone);
                if child.is_empty() {
                    self.children.remove(key);
                }
            }
        }
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let children = self.children.iter().filter_map(|(key, child)| {
            let both = child.intersection(other.children.get(key)?);
            (!both.is_empty()).then(|| (key.clone(), both))
        });
        Self { is_member: self.is_member && other.is_member, children: children.collect() }
    }

    /// The members as texts such as `.status.conditions[type="Ready"].reason`, without those that only enclose others.
    pub(crate) fn leaves(&self) -> Vec<String> {
        let mut texts = Vec::new();
        self.collect_leaves("", &mut texts);
        texts
    }

    fn collect_leaves(&self, path: &str, texts: &mut Vec<String>) {
        if self.is_member && self.children.is_empty() {
            texts.push(path.to_owned());
        }
        for (key, child) in &self.children {
            child.collect_leaves(&format!("{path}{}", element_text(key)), texts);
        }
    }
}

fn element_text(key: &str) -> String {
    match key.split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("k", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let pairs: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
            format!("[{}]", pairs.join(","))
        }
        _ => format!("[={}]", key.trim_start_matches("v:")),
    }
}

/// The path element of an item of a list.
pub(crate) fn item_key(kind: ListKind, item: &Value) -> String {
    match kind {
        ListKind::Map(keys) => {
            let keys: Map<String, Value> =
                keys.iter().filter_map(|key| Some(((*key).to_owned(), item.get(*key)?.clone()))).collect();
            format!("k:{}", Value::Object(keys))
        }
        ListKind::Set | ListKind::Atomic => format!("v:{item}"),
    }
}

/// The fields that differ between two states of an object of one kind.
pub(crate) fn difference(kind: &str, old: &Value, new: &Value) -> Difference {
    let mut found = Difference::default();
    compare(kind, "", old, new, &mut found.changed, &mut found.removed);
    found
}

/// The fields that an applied object names.
pub(crate) fn applied(kind: &str, path: &str, value: &Value) -> Fields {
    match value {
        Value::Object(map) if !map.is_empty() && !is_atomic_map(path) => {
            let children =
                map.iter().map(|(name, value)| (format!("f:{name}"), applied(kind, &join(path, name), value)));
            Fields { is_member: false, children: children.collect() }
        }
        Value::Array(items) if !items.is_empty() && list_kind(kind, path) != ListKind::Atomic => {
            let list = list_kind(kind, path);
            let children = items.iter().map(|item| {
                let fields = if list == ListKind::Set { Fields::default() } else { applied(kind, path, item) };
                (item_key(list, item), Fields { is_member: true, ..fields })
            });
            Fields { is_member: false, children: children.collect() }
        }
        _ => Fields::leaf(),
    }
}

fn compare(kind: &str, path: &str, old: &Value, new: &Value, changed: &mut Fields, removed: &mut Fields) {
    if old == new {
        return;
    }
    match (old, new) {
        (Value::Object(_) | Value::Null, Value::Object(fields)) if !is_atomic_map(path) => {
            let empty = Map::new();
            let before = old.as_object().unwrap_or(&empty);
            for (name, value) in fields {
                let (key, path) = (format!("f:{name}"), join(path, name));
                descend(kind, &path, key, before.get(name), Some(value), changed, removed);
            }
            for (name, value) in before.iter().filter(|(name, _)| !fields.contains_key(*name)) {
                descend(kind, &join(path, name), format!("f:{name}"), Some(value), None, changed, removed);
            }
        }
        (Value::Array(_) | Value::Null, Value::Array(after)) if list_kind(kind, path) != ListKind::Atomic => {
            let list = list_kind(kind, path);
            let before = old.as_array().map(Vec::as_slice).unwrap_or_default();
            let find = |items: &[Value], key: &str| items.iter().find(|item| item_key(list, item) == key).cloned();
            for item in after {
                let key = item_key(list, item);
                let earlier = find(before, &key);
                descend(kind, path, key, earlier.as_ref(), Some(item), changed, removed);
            }
            for item in before {
                let key = item_key(list, item);
                if find(after, &key).is_none() {
                    descend(kind, path, key, Some(item), None, changed, removed);
                }
            }
        }
        _ => changed.is_member = true,
    }
}

fn descend(
    kind: &str,
    path: &str,
    key: String,
    old: Option<&Value>,
    new: Option<&Value>,
    changed: &mut Fields,
    removed: &mut Fields,
) {
    match (old, new) {
        (Some(old), Some(new)) => {
            let (mut more, mut less) = (Fields::default(), Fields::default());
            compare(kind, path, old, new, &mut more, &mut less);
            for (set, found) in [(changed, more), (removed, less)] {
                if !found.is_empty() {
                    set.children.entry(key.clone()).or_default().add(&found);
                }
            }
        }
        (None, Some(new)) => changed.children.entry(key).or_default().add(&everything(kind, path, new)),
        (Some(old), None) => removed.children.entry(key).or_default().add(&everything(kind, path, old)),
        (None, None) => {}
    }
}

/// The field of a value and all fields in the value. Each of them is a member.
fn everything(kind: &str, path: &str, value: &Value) -> Fields {
    let mut fields = applied(kind, path, value);
    fill(&mut fields);
    fields
}

fn fill(fields: &mut Fields) {
    fields.is_member = true;
    fields.children.values_mut().for_each(fill);
}

pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Fields, difference};

    #[test]
    fn a_new_list_is_a_member_and_a_list_that_was_null_is_not() {
        let old = json!({"spec": {"containers": null}});
        let new = json!({"spec": {"containers": [{"name": "a"}], "volumes": [{"name": "v"}]}});
        let expected = json!({"f:spec": {
            "f:containers": {"k:{\"name\":\"a\"}": {".": {}, "f:name": {}}},
            "f:volumes": {".": {}, "k:{\"name\":\"v\"}": {".": {}, "f:name": {}}},
        }});
        assert_eq!(difference("Pod", &old, &new).changed.to_json(), expected);
        assert_eq!(Fields::from_json(&expected).to_json(), expected);
    }

    #[test]
    fn a_missing_field_is_removed() {
        let found = difference("ConfigMap", &json!({"data": {"a": "1", "b": "2"}}), &json!({"data": {"a": "1"}}));
        assert_eq!(found.removed.leaves(), [".data.b"]);
        assert!(found.changed.is_empty());
    }
}
