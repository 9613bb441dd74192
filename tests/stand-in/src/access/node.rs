//! The permissions that the Node authorizer gives to a node. Source: `plugin/pkg/auth/authorizer/node` of Kubernetes 1.36.

use serde_json::Value;

use crate::call::{Call, Verb};
use crate::schema::Resource;
use crate::selector::Selector;
use crate::store::Store;

/// Decides on a request of a node by its path and verb. The body of the request is not read.
///
/// # Errors
///
/// The reason, possibly empty, if the node does not have the permission.
pub(super) fn authorize(store: &Store, node: &str, call: &Call, now: jiff::Timestamp) -> Result<(), String> {
    use Verb::{Create, Delete, DeleteCollection, Get, List, Patch, Update, Watch};
    let refuse = |why: &str| Err(why.to_owned());
    let is_read = matches!(call.verb, Get | List | Watch);
    match (call.resource.plural, call.subresource(), call.verb) {
        ("secrets" | "configmaps", ..) if !is_read => refuse("can only read resources of this type"),
        ("secrets" | "configmaps", ..) if call.namespace().is_empty() => {
            refuse("can only read namespaced object of this type")
        }
        ("secrets" | "configmaps", ..) => related(store, node, call, now),
        ("resourceclaims", _, verb) if verb != Get => refuse("can only get individual resources of this type"),
        ("resourceclaims", "", _) => related(store, node, call, now),
        ("resourceclaims", ..) => refuse("cannot get subresource"),
        ("serviceaccounts", "", Get) | ("serviceaccounts", "token", Create) => related(store, node, call, now),
        ("serviceaccounts", _, Create) => refuse("can only create token subresource of serviceaccount"),
        ("serviceaccounts", ..) => refuse("can only create tokens for individual service accounts"),
        ("leases", _, List | Watch | DeleteCollection) => {
            refuse("can only get, create, update, patch, or delete a node lease")
        }
        ("leases", ..) if call.namespace() != "kube-node-lease" => {
            refuse("can only access leases in the \"kube-node-lease\" system namespace")
        }
        ("leases", _, verb) if verb != Create && call.name() != node => {
            refuse("can only access node lease with the same name as the requesting node")
        }
        ("leases", ..) | ("resourceslices", _, Create) => Ok(()),
        ("resourceslices", _, List | Watch | DeleteCollection) if selects(call, "spec.nodeName", node) => Ok(()),
        ("resourceslices", _, List | Watch | DeleteCollection) => {
            refuse("can only list/watch/deletecollection resourceslices with nodeName field selector")
        }
        ("resourceslices", ..) => match store.find("resourceslices", "", call.name()) {
            Some(slice) if slice["spec"]["nodeName"] == node => Ok(()),
            _ => Err(unrelated(node)),
        },
        ("nodes", "", Create | Update | Patch) | ("nodes", "status", Update | Patch) => Ok(()),
        ("nodes", "", Get | List | Watch) => match requested_name(call).as_str() {
            name if name == node => Ok(()),
            "" => Err(format!("node '{node}' cannot read all nodes, only its own Node object")),
            other => Err(format!("node '{node}' cannot read '{other}', only its own Node object")),
        },
        ("pods", "", Create | Delete) | ("pods", "eviction", Create) | ("pods", "status", Update | Patch) => Ok(()),
        ("pods", "", List | Watch) if selects(call, "spec.nodeName", node) => Ok(()),
        ("pods", "", List | Watch) if requested_name(call).is_empty() => {
            refuse("can only list/watch pods with spec.nodeName field selector")
        }
        // A pod that has been deleted is related to no node, so the answer is 403 and not 404.
        ("pods", "", Get | List | Watch) => match store.find("pods", call.namespace(), &requested_name(call)) {
            Some(pod) if pod["spec"]["nodeName"] == node => Ok(()),
            _ => Err(unrelated(node)),
        },
        ("services" | "runtimeclasses" | "clustertrustbundles", "", _) if is_read => Ok(()),
        ("certificatesigningrequests", "", _) if is_read || call.verb == Create => Ok(()),
        ("events", "", Create | Update | Patch)
        | ("tokenreviews" | "subjectaccessreviews" | "localsubjectaccessreviews", "", Create) => Ok(()),
        _ => refuse(""),
    }
}

fn selector(call: &Call) -> Option<Selector> {
    Selector::parse(call.resource, call.query.get("fieldSelector"), "").ok()
}

fn selects(call: &Call, field: &str, value: &str) -> bool {
    selector(call).is_some_and(|selector| selector.required(field) == Some(value))
}

/// The name in the path, or the one that the field selector of a list or a watch requires.
pub(super) fn requested_name(call: &Call) -> String {
    match &call.name {
        Some(name) => name.clone(),
        None => selector(call)
            .and_then(|selector| selector.required("metadata.name").map(str::to_owned))
            .unwrap_or_default(),
    }
}

fn unrelated(node: &str) -> String {
    format!("no relationship found between node '{node}' and this object")
}

/// Objects that a node may read because one of its pods names them. Mirror pods do not count: a node writes them itself.
fn related(store: &Store, node: &str, call: &Call, now: jiff::Timestamp) -> Result<(), String> {
    let name = requested_name(call);
    if name.is_empty() {
        return Err("No Object name found".to_owned());
    }
    let is_named = store
        .pods_of_authorizer(call.namespace(), now)
        .iter()
        .filter(|pod| pod["spec"]["nodeName"] == node)
        .filter(|pod| pod["metadata"]["annotations"].get(super::MIRROR).is_none())
        .any(|pod| names(pod, call.resource, &name));
    if is_named { Ok(()) } else { Err(unrelated(node)) }
}

/// Whether a pod names an object.
fn names(pod: &Value, resource: &Resource, name: &str) -> bool {
    let spec = &pod["spec"];
    match resource.plural {
        "serviceaccounts" => spec["serviceAccountName"] == name,
        "resourceclaims" => {
            let claims = spec["resourceClaims"].as_array().into_iter().flatten();
            let generated = pod["status"]["resourceClaimStatuses"].as_array().into_iter().flatten();
            claims.chain(generated).any(|claim| claim["resourceClaimName"] == name)
                || pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == name
        }
        "secrets" => any_field(spec, super::SECRET_FIELDS, Some(name)),
        _ => any_field(spec, super::CONFIG_MAP_FIELDS, Some(name)),
    }
}

/// Whether a field with one of these names holds the name, or an object or a list with it. Without a name, any value counts.
pub(super) fn any_field(value: &Value, fields: &[&str], name: Option<&str>) -> bool {
    let is_it = |value: &Value| name.is_none_or(|name| *value == name);
    match value {
        Value::Object(map) => map.iter().any(|(field, value)| {
            let is_meant = fields.contains(&field.as_str());
            let list = || value.as_array().into_iter().flatten().any(|item| is_it(&item["name"]));
            let own = || value.is_string() && is_it(value) || value.is_object() && is_it(&value["name"]);
            is_meant && (own() || list()) || any_field(value, fields, name)
        }),
        Value::Array(items) => items.iter().any(|item| any_field(item, fields, name)),
        _ => false,
    }
}
