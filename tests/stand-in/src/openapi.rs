//! The description of the API for clients that validate: which resources have a patch, and that the server validates
//! fields. It has no schemas.

use serde_json::{Map, Value, json};

use crate::schema::{RESOURCES, Resource};

/// The media type of the second version, as `kubectl` requests it.
pub(crate) const V2_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// The second version as protobuf: the version, the title, and no paths.
pub(crate) const V2: &[u8] = b"\x0a\x032.0\x12\x15\x0a\x0aKubernetes\x12\x07v1.36.0\x42\x00";

/// The answer to a path below `/openapi`, if it is one.
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
            let paths: Map<String, Value> = served.iter().copied().map(operations).collect();
            (!paths.is_empty()).then(|| json!({"openapi": "3.0.0", "info": info, "paths": paths, "components": {}}))
        }
        _ => None,
    }
}

/// `api/v1` or `apis/GROUP/VERSION`.
fn root(resource: &Resource) -> String {
    let prefix = if resource.group.is_empty() { "api" } else { "apis" };
    format!("{prefix}/{}", resource.api_version())
}

fn operations(resource: &Resource) -> (String, Value) {
    let namespace = if resource.namespaced { "namespaces/{namespace}/" } else { "" };
    let path = format!("/{}/{namespace}{}/{{name}}", root(resource), resource.plural);
    let operation = |action: &str| {
        json!({
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind":
                {"group": resource.group, "version": resource.version, "kind": resource.kind},
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "responses": {"200": {"description": "OK"}},
        })
    };
    (path, json!({"patch": operation("patch"), "put": operation("put")}))
}
