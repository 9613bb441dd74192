//! What the server serves, for clients that ask: `/api`, `/apis`, `/version`.

use serde_json::{Value, json};

use crate::schema::{RESOURCES, Resource};

/// The answer to a path of discovery or health, if it is one.
pub(crate) fn answer(path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["version"] => Some(json!({
            "major": "1",
            "minor": "36",
            "gitVersion": "v1.36.0",
            "gitCommit": "stand-in",
            "gitTreeState": "clean",
            "buildDate": "2026-01-01T00:00:00Z",
            "goVersion": "none",
            "compiler": "rustc",
            "platform": "linux/amd64",
        })),
        ["api"] => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        ["apis"] => Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups()})),
        ["api", "v1"] => resources("", "v1"),
        ["apis", group] => groups().into_iter().find(|found| found["name"] == *group).map(|mut found| {
            found["kind"] = json!("APIGroup");
            found["apiVersion"] = json!("v1");
            found
        }),
        ["apis", group, version] => resources(group, version),
        _ => None,
    }
}

fn groups() -> Vec<Value> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for resource in RESOURCES.iter().filter(|resource| !resource.group.is_empty()) {
        match found.iter_mut().find(|(group, _)| *group == resource.group) {
            Some((_, versions)) if versions.contains(&resource.version) => {}
            Some((_, versions)) => versions.push(resource.version),
            None => found.push((resource.group, vec![resource.version])),
        }
    }
    let entry = |group: &str, version: &str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    found
        .into_iter()
        .map(|(group, versions)| {
            json!({
                "name": group,
                "versions": versions.iter().map(|version| entry(group, version)).collect::<Vec<_>>(),
                "preferredVersion": entry(group, versions[0]),
            })
        })
        .collect()
}

fn resources(group: &str, version: &str) -> Option<Value> {
    let served: Vec<&Resource> =
        RESOURCES.iter().filter(|resource| resource.group == group && resource.version == version).collect();
    let first = served.first()?;
    let all = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    let entries = served.iter().flat_map(|resource| {
        let verbs: &[&str] = if resource.review { &["create"] } else { &all };
        let own = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verbs,
            "shortNames": resource.short,
        });
        let below = resource.subresources.iter().map(|subresource| {
            let (kind, verbs): (&str, &[&str]) = match *subresource {
                "binding" => ("Binding", &["create"]),
                "eviction" => ("Eviction", &["create"]),
                "token" => ("TokenRequest", &["create"]),
                _ => (resource.kind, &["get", "patch", "update"]),
            };
            json!({
                "name": format!("{}/{subresource}", resource.plural),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": kind,
                "verbs": verbs,
            })
        });
        std::iter::once(own).chain(below).collect::<Vec<_>>()
    });
    Some(json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": first.api_version(),
        "resources": entries.collect::<Vec<_>>(),
    }))
}
