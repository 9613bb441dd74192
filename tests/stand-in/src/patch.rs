//! Patches that are not server-side apply.

use serde_json::{Map, Value};

use crate::fields::join;
use crate::refusal::Refusal;
use crate::schema::strategic_key;

/// Applies a JSON Patch (RFC 6902).
///
/// # Errors
///
/// If the body is not a patch, or one of its operations fails.
pub(crate) fn json_patch(live: &Value, body: &Value) -> Result<Value, Refusal> {
    let patch: json_patch::Patch = serde_json::from_value(body.clone())
        .map_err(|error| Refusal::bad_request(format!("error decoding patch: {error}")))?;
    let mut object = live.clone();
    json_patch::patch(&mut object, &patch).map_err(|_| Refusal::unprocessable_patch())?;
    Ok(object)
}

/// Applies a JSON Merge Patch (RFC 7386).
pub(crate) fn merge_patch(live: &Value, body: &Value) -> Value {
    let mut object = live.clone();
    json_patch::merge(&mut object, body);
    object
}

/// Applies a strategic merge patch to an object of a kind.
///
/// # Errors
///
/// If an item of a list lacks the key by which the list merges, or a directive is unknown.
pub(crate) fn strategic_merge(kind: &str, live: &Value, body: &Value) -> Result<Value, Refusal> {
    let mut object = live.clone();
    merge_value(kind, "", &mut object, body)?;
    Ok(object)
}

fn merge_value(kind: &str, path: &str, live: &mut Value, patch: &Value) -> Result<(), Refusal> {
    let Some(fields) = patch.as_object() else {
        live.clone_from(patch);
        return Ok(());
    };
    match fields.get("$patch").and_then(Value::as_str) {
        Some("replace") => {
            *live = without_directives(fields);
            return Ok(());
        }
        Some("delete") => {
            *live = Value::Object(Map::new());
            return Ok(());
        }
        Some("merge") | None => {}
        Some(other) => return Err(Refusal::bad_request(format!("Unknown patch type found: {other}"))),
    }
    if !live.is_object() {
        *live = Value::Object(Map::new());
    }
    let map = live.as_object_mut().expect("the value was made an object above");
    if let Some(keep) = fields.get("$retainKeys").and_then(Value::as_array) {
        map.retain(|name, _| keep.iter().any(|key| key == name));
    }
    for (name, value) in fields.iter().filter(|(name, _)| !name.starts_with('$')) {
        let path = join(path, name);
        match (value, strategic_key(kind, &path)) {
            (Value::Null, _) => {
                map.remove(name);
            }
            (Value::Array(items), Some(key)) => {
                let entry = map.entry(name.clone()).or_insert_with(|| Value::Array(Vec::new()));
                let mut list = entry.as_array().cloned().unwrap_or_default();
                merge_list(kind, &path, key, &mut list, items)?;
                *entry = Value::Array(list);
            }
            (Value::Object(_), _) => {
                merge_value(kind, &path, map.entry(name.clone()).or_insert(Value::Null), value)?;
            }
            _ => {
                map.insert(name.clone(), value.clone());
            }
        }
    }
    for (name, values) in fields {
        if let Some(name) = name.strip_prefix("$deleteFromPrimitiveList/")
            && let Some(list) = map.get_mut(name).and_then(Value::as_array_mut)
        {
            let gone = values.as_array().map(Vec::as_slice).unwrap_or_default();
            list.retain(|item| !gone.contains(item));
        }
    }
    for (name, order) in fields {
        if let Some(name) = name.strip_prefix("$setElementOrder/")
            && let Some(list) = map.get_mut(name).and_then(Value::as_array_mut)
            && let Some(key) = strategic_key(kind, &join(path, name))
        {
            let order = order.as_array().map(Vec::as_slice).unwrap_or_default();
            sort_by_order(list, order, key);
        }
    }
    Ok(())
}

fn merge_list(kind: &str, path: &str, key: &str, list: &mut Vec<Value>, items: &[Value]) -> Result<(), Refusal> {
    if items.iter().any(|item| item["$patch"] == "replace") {
        list.clear();
    }
    for item in items {
        if key.is_empty() {
            if !list.contains(item) {
                list.push(item.clone());
            }
            continue;
        }
        if item["$patch"] == "replace" && item.as_object().is_some_and(|fields| fields.len() == 1) {
            continue;
        }
        let id = item
            .get(key)
            .ok_or_else(|| Refusal::bad_request(format!("map: {item} does not contain declared merge key: {key}")))?;
        let position = list.iter().position(|found| found.get(key) == Some(id));
        match (item["$patch"] == "delete", position) {
            (true, Some(at)) => {
                list.remove(at);
            }
            (true, None) => {}
            (false, Some(at)) => merge_value(kind, path, &mut list[at], item)?,
            (false, None) => {
                let mut new = Value::Object(Map::new());
                merge_value(kind, path, &mut new, item)?;
                list.push(new);
            }
        }
    }
    Ok(())
}

fn without_directives(fields: &Map<String, Value>) -> Value {
    fields
        .iter()
        .filter(|(name, _)| !name.starts_with('$'))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Sorts the items that `order` names in that order. An item that `order` does not name stays behind the item before it.
fn sort_by_order(list: &mut [Value], order: &[Value], key: &str) {
    let id = |item: &Value| if key.is_empty() { item.clone() } else { item.get(key).cloned().unwrap_or_default() };
    let rank = |item: &Value| order.iter().position(|listed| id(listed) == id(item));
    let mut last = 0;
    let mut ranks: Vec<(usize, usize)> = list
        .iter()
        .enumerate()
        .map(|(at, item)| {
            last = rank(item).unwrap_or(last);
            (last, at)
        })
        .collect();
    ranks.sort_unstable();
    let sorted: Vec<Value> = ranks.iter().map(|(_, at)| list[*at].clone()).collect();
    list.clone_from_slice(&sorted);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::strategic_merge;

    fn merged(live: serde_json::Value, patch: serde_json::Value) -> serde_json::Value {
        strategic_merge("Pod", &live, &patch).unwrap()
    }

    #[test]
    fn lists_merge_by_their_key() {
        let live =
            json!({"status": {"conditions": [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]}});
        let patch = json!({"status": {"conditions": [{"type": "B", "status": "False"}, {"type": "C"}]}});
        let found = merged(live, patch);
        assert_eq!(found["status"]["conditions"][1], json!({"type": "B", "status": "False"}));
        assert_eq!(found["status"]["conditions"][2], json!({"type": "C"}));
    }

    #[test]
    fn an_item_is_deleted_by_its_directive() {
        let live = json!({"spec": {"volumes": [{"name": "a"}, {"name": "b"}]}});
        let found = merged(live, json!({"spec": {"volumes": [{"name": "a", "$patch": "delete"}]}}));
        assert_eq!(found["spec"]["volumes"], json!([{"name": "b"}]));
    }

    #[test]
    fn a_map_is_replaced_by_its_directive() {
        let live = json!({"metadata": {"labels": {"a": "1"}}});
        let found = merged(live, json!({"metadata": {"labels": {"$patch": "replace", "b": "2"}}}));
        assert_eq!(found["metadata"]["labels"], json!({"b": "2"}));
    }

    #[test]
    fn retained_keys_drop_the_others() {
        let live = json!({"spec": {"volumes": [{"name": "a", "emptyDir": {}}]}});
        let patch = json!({"spec": {"volumes": [{"$retainKeys": ["name", "hostPath"], "name": "a", "hostPath": {"path": "/x"}}]}});
        assert_eq!(merged(live, patch)["spec"]["volumes"], json!([{"name": "a", "hostPath": {"path": "/x"}}]));
    }

    #[test]
    fn the_element_order_sorts() {
        let live = json!({"status": {"conditions": [{"type": "A"}, {"type": "B"}]}});
        let patch = json!({"status": {"$setElementOrder/conditions": [{"type": "B"}, {"type": "A"}]}});
        assert_eq!(merged(live, patch)["status"]["conditions"], json!([{"type": "B"}, {"type": "A"}]));
    }

    #[test]
    fn an_atomic_list_is_replaced() {
        let live = json!({"status": {"containerStatuses": [{"name": "a"}, {"name": "b"}]}});
        let patch = json!({"status": {"containerStatuses": [{"name": "c"}]}});
        assert_eq!(merged(live, patch)["status"]["containerStatuses"], json!([{"name": "c"}]));
    }
}
