//! Describes the groups and resources of the server to clients: `/api`, `/apis`, `/openapi`, `/version`.

use serde_json::{Value, json};

use crate::openapi;
use crate::schema::{RESOURCES, Resource};

/// The media type of an answer that has all groups with their resources.
pub(crate) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// All groups with their resources, if the path and the header request them.
pub(crate) fn aggregated(path: &str, accept: &str) -> Option<Value> {
    let is_requested = accept.split(',').any(|part| {
        let has = |parameter: &str| part.split(';').any(|found| found.trim() == parameter);
        has("application/json") && has("as=APIGroupDiscoveryList") && has("v=v2")
    });
    let is_core = match path.trim_matches('/') {
        "api" => true,
        "apis" => false,
        _ => return None,
    };
    if !is_requested {
        return None;
    }
    let groups = group_versions();
    let groups = groups.iter().filter(|(group, _)| group.is_empty() == is_core);
    let items: Vec<Value> = groups
        .map(|(group, versions)| {
            let versions: Vec<Value> = versions.iter().map(|version| version_discovery(group, version)).collect();
            let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    Some(json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": items,
    }))
}

fn version_discovery(group: &str, version: &str) -> Value {
    let served = RESOURCES.iter().filter(|resource| resource.group == group && resource.version == version);
    let kind = |kind: &str, resource: &Resource| match kind {
        "TokenRequest" => json!({"group": "authentication.k8s.io", "version": "v1", "kind": kind}),
        "Eviction" => json!({"group": "policy", "version": "v1", "kind": kind}),
        _ => json!({"group": resource.group, "version": resource.version, "kind": kind}),
    };
    let entry = |resource: &Resource| {
        let below: Vec<Value> = resource
            .subresources
            .iter()
            .map(|name| {
                let (own, verbs) = below(resource, name);
                json!({"subresource": name, "responseKind": kind(own, resource), "verbs": verbs})
            })
            .collect();
        json!({
            "resource": resource.plural,
            "responseKind": kind(resource.kind, resource),
            "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": resource.singular,
            "verbs": verbs(resource),
            "shortNames": resource.short,
            "categories": if resource.plural == "pods" { &["all"][..] } else { &[] },
            "subresources": below,
        })
    };
    json!({"version": version, "resources": served.map(entry).collect::<Vec<_>>(), "freshness": "Current"})
}

fn verbs(resource: &Resource) -> &'static [&'static str] {
    if resource.review {
        &["create"]
    } else {
        &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    }
}

/// The kind and the verbs of a path below an object.
fn below(resource: &Resource, subresource: &str) -> (&'static str, &'static [&'static str]) {
    match subresource {
        "binding" => ("Binding", &["create"]),
        "eviction" => ("Eviction", &["create"]),
        "token" => ("TokenRequest", &["create"]),
        "attach" => ("PodAttachOptions", &["create", "get"]),
        "exec" => ("PodExecOptions", &["create", "get"]),
        "portforward" => ("PodPortForwardOptions", &["create", "get"]),
        "log" => ("Pod", &["get"]),
        _ => (resource.kind, &["get", "patch", "update"]),
    }
}

/// The answer to a path of discovery. `None` for another path.
pub(crate) fn answer(path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["openapi", ..] => openapi::answer(&parts),
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

/// The groups, each with its versions, in the order of the table.
fn group_versions() -> Vec<(&'static str, Vec<&'static str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    for resource in RESOURCES {
        match found.iter_mut().find(|(group, _)| *group == resource.group) {
            Some((_, versions)) if versions.contains(&resource.version) => {}
            Some((_, versions)) => versions.push(resource.version),
            None => found.push((resource.group, vec![resource.version])),
        }
    }
    found
}

fn groups() -> Vec<Value> {
    let entry = |group: &str, version: &str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    group_versions()
        .into_iter()
        .filter(|(group, _)| !group.is_empty())
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
    let entries = served.iter().flat_map(|resource| {
        let own = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verbs(resource),
            "shortNames": resource.short,
        });
        let below = resource.subresources.iter().map(|subresource| {
            let (kind, verbs) = self::below(resource, subresource);
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
