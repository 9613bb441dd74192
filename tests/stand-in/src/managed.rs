//! Owners of fields: the entries of `managedFields`, and server-side apply.

use serde_json::{Map, Value, json};

use crate::fields::{Fields, applied, difference, item_key, join};
use crate::refusal::Refusal;
use crate::schema::{ListKind, Resource, is_atomic_map, list_kind};

/// The manager that writes, and the time of the write.
pub(crate) struct Writer<'a> {
    pub(crate) manager: &'a str,
    pub(crate) subresource: &'a str,
    /// The time of the write, as the API writes times.
    pub(crate) now: &'a str,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug)]
struct OwnerEntry {
    manager: String,
    operation: &'static str,
    api_version: String,
    subresource: String,
    time: String,
    fields: Fields,
}

impl OwnerEntry {
    fn read(value: &Value) -> Self {
        let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
        Self {
            manager: text("manager"),
            operation: if value["operation"] == "Apply" { "Apply" } else { "Update" },
            api_version: text("apiVersion"),
            subresource: text("subresource"),
            time: text("time"),
            fields: Fields::from_json(&value["fieldsV1"]),
        }
    }

    fn write(&self) -> Value {
        let mut value = json!({
            "manager": self.manager,
            "operation": self.operation,
            "apiVersion": self.api_version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.to_json(),
        });
        if !self.subresource.is_empty() {
            value["subresource"] = json!(self.subresource);
        }
        value
    }

    fn is_of(&self, writer: &Writer<'_>, operation: &str) -> bool {
        self.operation == operation && self.manager == writer.manager && self.subresource == writer.subresource
    }

    /// The owner in the words of a conflict.
    fn title(&self) -> String {
        let mut title = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            title += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == "Update" {
            title += &format!(" using {} at {}", self.api_version, self.time);
        }
        title
    }
}

fn read(object: &Value) -> Vec<OwnerEntry> {
    object["metadata"]["managedFields"].as_array().into_iter().flatten().map(OwnerEntry::read).collect()
}

fn store(object: &mut Value, mut entries: Vec<OwnerEntry>) {
    entries.retain(|entry| !entry.fields.is_empty());
    entries.sort_by(|a, b| {
        let key = |entry: &OwnerEntry| {
            (entry.operation, entry.time.clone(), entry.manager.clone(), entry.subresource.clone())
        };
        key(a).cmp(&key(b))
    });
    let Some(metadata) = object["metadata"].as_object_mut() else { return };
    if entries.is_empty() {
        metadata.remove("managedFields");
    } else {
        metadata.insert("managedFields".to_owned(), entries.iter().map(OwnerEntry::write).collect());
    }
}

/// An object without the fields that have no owner.
fn ownable(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut() {
        map.remove("apiVersion");
        map.remove("kind");
        if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
            let unowned = ["name", "namespace", "uid", "creationTimestamp", "generation", "managedFields"];
            for name in unowned.iter().chain(&[
                "resourceVersion",
                "selfLink",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
            ]) {
                metadata.remove(*name);
            }
        }
    }
    object
}

/// Records an update or a patch. `live` is none when the object is new.
///
/// An object whose fields had no owner at its creation stays without owners until the first apply, as on a real server.
pub(crate) fn record_update(resource: &Resource, live: Option<&Value>, object: &mut Value, writer: &Writer<'_>) {
    let mut entries = live.map(read).unwrap_or_default();
    if live.is_some() && entries.is_empty() {
        return;
    }
    let zero = resource.zero_object();
    let found = difference(resource.kind, &ownable(live.unwrap_or(&zero)), &ownable(object));
    for entry in entries.iter_mut().filter(|entry| !entry.is_of(writer, "Update")) {
        entry.fields.subtract(&found.changed);
        entry.fields.subtract_deep(&found.removed);
        entry.fields.subtract(&found.removed);
    }
    if !found.changed.is_empty() || !found.removed.is_empty() {
        let position = entries.iter().position(|entry| entry.is_of(writer, "Update"));
        let mut own = position.map_or_else(|| new_entry(resource, writer, "Update"), |at| entries.swap_remove(at));
        own.fields.subtract_deep(&found.removed);
        own.fields.add(&found.changed);
        writer.now.clone_into(&mut own.time);
        entries.push(own);
    }
    store(object, entries);
}

fn new_entry(resource: &Resource, writer: &Writer<'_>, operation: &'static str) -> OwnerEntry {
    OwnerEntry {
        manager: writer.manager.to_owned(),
        operation,
        api_version: resource.api_version(),
        subresource: writer.subresource.to_owned(),
        time: writer.now.to_owned(),
        fields: Fields::default(),
    }
}

/// Applies a configuration to an object.
///
/// # Errors
///
/// If another manager owns a field with another value, and the request does not force.
pub(crate) fn apply(
    resource: &Resource,
    live: &Value,
    configuration: &Value,
    writer: &Writer<'_>,
    force: bool,
) -> Result<Value, Refusal> {
    let kind = resource.kind;
    let mut configuration_fields = ownable(configuration);
    if let Some(fields) = configuration_fields.as_object_mut() {
        fields.retain(|name, value| name != "metadata" || *value != json!({}));
    }
    let set = match applied(kind, "", &configuration_fields) {
        set if configuration_fields.as_object().is_some_and(Map::is_empty) => Fields { is_member: false, ..set },
        set => set,
    };
    let mut entries = read(live);
    let mut merged = live.clone();
    merge(kind, "", &mut merged, configuration);
    let touched = difference(kind, &ownable(live), &ownable(&merged)).changed;
    let conflicts: Vec<(String, Fields)> = entries
        .iter()
        .filter(|entry| !entry.is_of(writer, "Apply"))
        .map(|entry| (entry.title(), entry.fields.intersection(&touched).intersection(&set)))
        .filter(|(_, fields)| !fields.is_empty())
        .collect();
    if !conflicts.is_empty() && !force {
        return Err(conflict(&conflicts));
    }
    for entry in entries.iter_mut().filter(|entry| !entry.is_of(writer, "Apply")) {
        entry.fields.subtract(&touched.intersection(&set));
    }
    let position = entries.iter().position(|entry| entry.is_of(writer, "Apply"));
    let mut own = position.map_or_else(|| new_entry(resource, writer, "Apply"), |at| entries.swap_remove(at));
    let mut dropped = own.fields.clone();
    dropped.subtract(&set);
    for entry in &entries {
        dropped.subtract(&entry.fields);
        keep_enclosing(&mut dropped, &entry.fields);
    }
    keep_enclosing(&mut dropped, &set);
    prune(kind, "", &mut merged, &dropped);
    if own.fields != set {
        writer.now.clone_into(&mut own.time);
    }
    own.fields = set;
    entries.push(own);
    store(&mut merged, entries);
    Ok(merged)
}

/// Keeps a field that encloses an owned field.
fn keep_enclosing(dropped: &mut Fields, owned: &Fields) {
    for (key, child) in &mut dropped.children {
        if let Some(owned) = owned.children.get(key) {
            child.is_member = false;
            keep_enclosing(child, owned);
        }
    }
}

fn conflict(conflicts: &[(String, Fields)]) -> Refusal {
    let mut causes = Vec::new();
    let mut texts = Vec::new();
    for (owner, fields) in conflicts {
        let leaves = fields.leaves();
        let plural = if leaves.len() == 1 { "" } else { "s" };
        let list = if leaves.len() == 1 { format!(" {}", leaves[0]) } else { format!("\n- {}", leaves.join("\n- ")) };
        texts.push(format!("conflict{plural} with {owner}:{list}"));
        causes.extend(leaves.into_iter().map(|field| {
            json!({"reason": "FieldManagerConflict", "message": format!("conflict with {owner}"), "field": field})
        }));
    }
    let plural = if causes.len() == 1 { "" } else { "s" };
    let message = format!("Apply failed with {} conflict{plural}: {}", causes.len(), texts.join("\n"));
    Refusal { details: Some(json!({"causes": causes})), ..Refusal::plain(409, "Conflict", message) }
}

/// Merges an applied value into a live one.
fn merge(kind: &str, path: &str, live: &mut Value, new: &Value) {
    match (&mut *live, new) {
        (Value::Object(fields), Value::Object(new)) if !is_atomic_map(path) => {
            for (name, value) in new {
                merge(kind, &join(path, name), fields.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(items), Value::Array(new)) if list_kind(kind, path) != ListKind::Atomic => {
            let list = list_kind(kind, path);
            for item in new {
                let key = item_key(list, item);
                match items.iter_mut().find(|found| item_key(list, found) == key) {
                    Some(found) if list != ListKind::Set => merge(kind, path, found, item),
                    Some(_) => {}
                    None => items.push(item.clone()),
                }
            }
        }
        _ => live.clone_from(new),
    }
}

/// Removes fields that no manager owns any more.
fn prune(kind: &str, path: &str, value: &mut Value, dropped: &Fields) {
    match value {
        Value::Object(fields) => {
            for (key, child) in &dropped.children {
                let Some(name) = key.strip_prefix("f:") else { continue };
                let path = join(path, name);
                if child.is_member {
                    fields.remove(name);
                } else if let Some(field) = fields.get_mut(name) {
                    prune(kind, &path, field, child);
                    if field.as_array().is_some_and(Vec::is_empty) {
                        fields.remove(name);
                    }
                }
            }
        }
        Value::Array(items) => {
            let list = list_kind(kind, path);
            items.retain_mut(|item| match dropped.children.get(&item_key(list, item)) {
                Some(child) if child.is_member => false,
                Some(child) => {
                    prune(kind, path, item, child);
                    true
                }
                None => true,
            });
        }
        _ => {}
    }
}
