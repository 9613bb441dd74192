//! Validates environment variables and their sources.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, EnvVarSource, FileKeySelector, ObjectFieldSelector};

use super::container::Known;
use super::report::Report;
use super::resources;
use crate::config::fields::{self, FieldUse};
use crate::names;

pub(super) fn check(
    path: &str,
    list: Option<&[EnvVar]>,
    from: Option<&[EnvFromSource]>,
    known: &Known<'_>,
    report: &mut Report,
) {
    for (i, variable) in list.into_iter().flatten().enumerate() {
        let path = format!("{path}.env[{i}]");
        report.env_name(format!("{path}.name"), &variable.name);
        let Some(from) = &variable.value_from else { continue };
        let path = format!("{path}.valueFrom");
        if variable.value.as_deref().is_some_and(|value| !value.is_empty()) {
            report.add(&path, "is set beside value", "keep one of the two");
        }
        source(&path, from, known, report);
    }
    for (i, from) in from.into_iter().flatten().enumerate() {
        let path = format!("{path}.envFrom[{i}]");
        if let Some(prefix) = from.prefix.as_deref().filter(|prefix| !prefix.is_empty()) {
            report.env_name(format!("{path}.prefix"), prefix);
        }
        let config_map = from.config_map_ref.as_ref().map(|config_map| config_map.name.as_str());
        let secret = from.secret_ref.as_ref().map(|secret| secret.name.as_str());
        let sources = [("configMapRef", config_map), ("secretRef", secret)];
        report.exactly_one(&path, &sources.map(|(name, object)| (name, object.is_some())));
        for (source, name) in sources.into_iter().filter_map(|(source, name)| Some((source, name?))) {
            report.subdomain(format!("{path}.{source}.name"), name);
        }
    }
}

fn source(path: &str, from: &EnvVarSource, known: &Known<'_>, report: &mut Report) {
    report.exactly_one(
        path,
        &[
            ("fieldRef", from.field_ref.is_some()),
            ("resourceFieldRef", from.resource_field_ref.is_some()),
            ("configMapKeyRef", from.config_map_key_ref.is_some()),
            ("secretKeyRef", from.secret_key_ref.is_some()),
            ("fileKeyRef", from.file_key_ref.is_some()),
        ],
    );
    if let Some(field) = &from.field_ref {
        field_ref(&format!("{path}.fieldRef"), field, FieldUse::Env, report);
    }
    if let Some(field) = &from.resource_field_ref {
        resources::field_ref(&format!("{path}.resourceFieldRef"), field, &known.containers, false, report);
    }
    if let Some(selector) = &from.config_map_key_ref {
        key(&format!("{path}.configMapKeyRef"), &selector.name, &selector.key, report);
    }
    if let Some(selector) = &from.secret_key_ref {
        key(&format!("{path}.secretKeyRef"), &selector.name, &selector.key, report);
    }
    if let Some(selector) = &from.file_key_ref {
        file_key(&format!("{path}.fileKeyRef"), selector, known, report);
    }
}

/// Validates a key of a config map or secret.
fn key(path: &str, name: &str, key: &str, report: &mut Report) {
    report.subdomain(format!("{path}.name"), name);
    let valid = key.len() <= 253 && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if key.is_empty() {
        report.add(format!("{path}.key"), "is missing", "name a key of the object");
    } else if !valid || key == "." || key.starts_with("..") {
        let remedy = "use at most 253 letters, digits, '-', '_' and '.', not '..' at the start";
        report.add(format!("{path}.key"), format!("{key:?} is not a valid key"), remedy);
    }
}

/// Validates a variable from a file of a volume (KEP-3721). Only an emptyDir can have such a file, because an init container
/// of the same pod writes it.
fn file_key(path: &str, selector: &FileKeySelector, known: &Known<'_>, report: &mut Report) {
    report.env_name(format!("{path}.key"), &selector.key);
    let file = format!("{path}.path");
    if selector.path.is_empty() {
        report.add(file, "is missing", "name a file of the volume");
    } else if selector.path.starts_with("..") {
        let message = format!("{:?} starts with '..'", selector.path);
        report.add(file, message, "use a path that starts with another name");
    } else {
        report.relative_path(file, &selector.path, "the volume");
    }
    let (volume, field) = (selector.volume_name.as_str(), format!("{path}.volumeName"));
    if volume.is_empty() {
        report.add(field, "is missing", "name an emptyDir volume of spec.volumes");
    } else if !known.volumes.contains(volume) {
        report.add(field, format!("{volume:?} is not a volume of the pod"), "add it to spec.volumes");
    } else if !known.empty_dirs.contains(volume) {
        report.add(field, format!("{volume:?} is not an emptyDir"), "name an emptyDir volume");
    }
}

/// Validates a reference to a field of the pod.
pub(super) fn field_ref(path: &str, selector: &ObjectFieldSelector, field_use: FieldUse, report: &mut Report) {
    report.one_of(format!("{path}.apiVersion"), selector.api_version.as_deref(), &["", "v1"]);
    let (path, field) = (format!("{path}.fieldPath"), &selector.field_path);
    if !fields::allowed(field, field_use) {
        let listed = match field_use {
            FieldUse::Env => {
                "metadata.name, metadata.namespace, metadata.uid, metadata.labels['KEY'], \
                 metadata.annotations['KEY'], spec.nodeName, spec.serviceAccountName, status.hostIP, status.hostIPs, \
                 status.podIP, status.podIPs"
            }
            FieldUse::Volume => {
                "metadata.name, metadata.namespace, metadata.uid, metadata.labels, metadata.annotations, or one of the \
                 latter two with ['KEY']"
            }
        };
        report.add(path, format!("{field:?} cannot be used here"), format!("use one of {listed}"));
    } else if let Some((_, key)) = fields::subscript(field)
        && !names::is_qualified(key)
    {
        report.bad_key(path);
    }
}
