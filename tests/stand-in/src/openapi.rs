//! The description of the API for clients that validate or explain: which resources have a patch, that the server validates
//! fields, and the top fields of each kind.

use serde_json::{Map, Value, json};

use crate::schema::{RESOURCES, Resource};

/// The media type of the second version, as `kubectl` requests it.
pub(crate) const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// The second version as protobuf: the version, the title, and no paths.
pub(crate) const V2: &[u8] = b"\x0a\x032.0\x12\x15\x0a\x0aKubernetes\x12\x07v1.36.0\x42\x00";

/// The answer to a path below `/openapi`. `None` for another path.
pub(crate) fn answer(path: &[&str]) -> Option<Value> {
    let info = json!({"title": "Kubernetes", "version": "v1.36.0"});
    match path {
        ["openapi", "v2"] => Some(json!({"swagger": "2.0", "info": info, "paths": {}})),
        ["openapi", "v3"] => {
            let mut paths = Map::new();
            for resource in RESOURCES {
                let root = root(resource);
                paths.insert(root.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{root}?hash=0")}));
            }
            Some(json!({"paths": paths}))
        }
        ["openapi", "v3", rest @ ..] => {
            let group = rest.join("/");
            let served: Vec<&Resource> = RESOURCES.iter().filter(|resource| root(resource) == group).collect();
            let mut paths: Map<String, Value> = served.iter().copied().map(operations).collect();
            paths.extend(served.iter().copied().map(collection));
            let schemas: Map<String, Value> = served.iter().copied().map(schema).collect();
            let components = json!({"schemas": schemas});
            (!paths.is_empty())
                .then(|| json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": components}))
        }
        _ => None,
    }
}

/// `api/v1` or `apis/GROUP/VERSION`.
fn root(resource: &Resource) -> String {
    let prefix = if resource.group.is_empty() { "api" } else { "apis" };
    format!("{prefix}/{}", resource.api_version())
}

/// The path of the objects of a resource.
fn collection_path(resource: &Resource) -> String {
    let namespace = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
    format!("/{}/{namespace}{}", root(resource), resource.plural)
}

fn group_version_kind(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
}

fn operation(resource: &Resource, action: &str) -> Value {
    json!({
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": group_version_kind(resource),
        "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
        "responses": {"200": {"description": "OK"}},
    })
}

fn collection(resource: &Resource) -> (String, Value) {
    (collection_path(resource), json!({"get": operation(resource, "list"), "post": operation(resource, "post")}))
}

fn operations(resource: &Resource) -> (String, Value) {
    let path = format!("{}/{{name}}", collection_path(resource));
    (path, json!({"patch": operation(resource, "patch"), "put": operation(resource, "put")}))
}

/// The schema of a kind: its top fields, whose content the schema leaves open.
fn schema(resource: &Resource) -> (String, Value) {
    let zero = resource.zero_object();
    let fields = zero.as_object().into_iter().flatten().map(|(field, value)| {
        let kind = match value {
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::Object(_) | Value::Null => "object",
        };
        (field.clone(), json!({"type": kind, "description": format!("The field {field} of a {}.", resource.kind)}))
    });
    let properties: Map<String, Value> = fields.collect();
    let schema = json!({
        "type": "object",
        "description": format!("{} is a kind of the stand-in.", resource.kind),
        "properties": properties,
        "x-kubernetes-group-version-kind": [group_version_kind(resource)],
    });
    (format!("{}.{}", root(resource).replace('/', "."), resource.kind), schema)
}
