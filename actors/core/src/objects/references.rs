//! The objects that a pod refers to by name.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, PodSpec, Volume};

use crate::ports::ObjectKind;

/// A config map or a secret of the pod's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// The kind: a config map or a secret.
    pub kind: ObjectKind,
    /// The name.
    pub name: String,
}

/// The config maps and secrets that the volumes, the variables and the image pulls of a pod use. The API server lets a node read
/// these objects (upstream `VisitPodConfigmapNames` and `VisitPodSecretNames`, `pkg/api/v1/pod/util.go`, 1.36). Secrets of volume
/// drivers that podwright does not support are left out.
pub fn references(spec: &PodSpec) -> BTreeSet<ObjectRef> {
    let mut found = BTreeSet::new();
    for volume in spec.volumes.iter().flatten() {
        of_volume(volume, &mut found);
    }
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    for container in containers {
        of_variables(container.env.as_deref(), container.env_from.as_deref(), &mut found);
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        of_variables(container.env.as_deref(), container.env_from.as_deref(), &mut found);
    }
    for secret in spec.image_pull_secrets.iter().flatten() {
        add(&mut found, ObjectKind::Secret, &secret.name);
    }
    found
}

/// The config maps and secrets of one volume.
pub(super) fn of_volume(volume: &Volume, found: &mut BTreeSet<ObjectRef>) {
    if let Some(source) = &volume.config_map {
        add(found, ObjectKind::ConfigMap, &source.name);
    }
    if let Some(name) = volume.secret.as_ref().and_then(|source| source.secret_name.as_deref()) {
        add(found, ObjectKind::Secret, name);
    }
    for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
        if let Some(config_map) = &source.config_map {
            add(found, ObjectKind::ConfigMap, &config_map.name);
        }
        if let Some(secret) = &source.secret {
            add(found, ObjectKind::Secret, &secret.name);
        }
    }
}

/// The config maps and secrets of the variables of one container.
pub(crate) fn of_variables(
    env: Option<&[EnvVar]>,
    env_from: Option<&[EnvFromSource]>,
    found: &mut BTreeSet<ObjectRef>,
) {
    for from in env_from.into_iter().flatten() {
        if let Some(config_map) = &from.config_map_ref {
            add(found, ObjectKind::ConfigMap, &config_map.name);
        }
        if let Some(secret) = &from.secret_ref {
            add(found, ObjectKind::Secret, &secret.name);
        }
    }
    for source in env.into_iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
        if let Some(key) = &source.config_map_key_ref {
            add(found, ObjectKind::ConfigMap, &key.name);
        }
        if let Some(key) = &source.secret_key_ref {
            add(found, ObjectKind::Secret, &key.name);
        }
    }
}

/// The API allows references without a name, which refer to nothing.
fn add(found: &mut BTreeSet<ObjectRef>, kind: ObjectKind, name: &str) {
    if !name.is_empty() {
        found.insert(ObjectRef { kind, name: name.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_that_names_an_object_is_a_reference() {
        let variables = |n: u32| {
            json!({
                "name": format!("c{n}"),
                "envFrom": [{"configMapRef": {"name": format!("from-map-{n}")}}, {"secretRef": {"name": format!("from-secret-{n}")}}],
                "env": [
                    {"name": "A", "valueFrom": {"configMapKeyRef": {"name": format!("key-map-{n}"), "key": "k"}}},
                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": format!("key-secret-{n}"), "key": "k", "optional": true}}},
                ],
            })
        };
        let spec = json!({
            "initContainers": [variables(1)], "containers": [variables(2)], "ephemeralContainers": [variables(3)],
            "imagePullSecrets": [{"name": "pull"}, {}],
            "volumes": [
                {"name": "a", "configMap": {"name": "map"}}, {"name": "b", "secret": {"secretName": "secret"}},
                {"name": "c", "emptyDir": {}},
                {"name": "d", "projected": {"sources": [
                    {"configMap": {"name": "part-map"}}, {"secret": {"name": "part-secret"}},
                    {"serviceAccountToken": {"path": "token"}}, {"downwardAPI": {"items": []}},
                ]}},
            ],
        });
        let found = references(&serde_json::from_value(spec).unwrap());
        let of = |kind| found.iter().filter(|one| one.kind == kind).map(|one| one.name.as_str()).collect::<Vec<_>>();
        assert_eq!(
            of(ObjectKind::ConfigMap),
            ["from-map-1", "from-map-2", "from-map-3", "key-map-1", "key-map-2", "key-map-3", "map", "part-map"]
        );
        assert_eq!(
            of(ObjectKind::Secret),
            [
                "from-secret-1",
                "from-secret-2",
                "from-secret-3",
                "key-secret-1",
                "key-secret-2",
                "key-secret-3",
                "part-secret",
                "pull",
                "secret"
            ]
        );
    }
}
