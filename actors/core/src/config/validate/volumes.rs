//! Validates volumes.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, PodSpec, Volume};
use serde::Serialize;

use super::container::Known;
use super::report::Report;
use super::{env, resources};
use crate::config::fields::FieldUse;
use crate::quantity::Amount;

/// Checks the volumes and collects the names that containers may refer to.
pub(super) fn check<'a>(spec: &'a PodSpec, report: &mut Report) -> Known<'a> {
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut known = Known {
        volumes: BTreeSet::new(),
        empty_dirs: BTreeSet::new(),
        claimed: BTreeSet::new(),
        containers: all.map(|container| container.name.as_str()).collect(),
        claims: spec.resource_claims.iter().flatten().map(|claim| claim.name.as_str()).collect(),
    };
    for (i, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = format!("spec.volumes[{i}]");
        let name = volume.name.as_str();
        if name.is_empty() {
            report.add(format!("{path}.name"), "is missing", "give the volume a name");
        } else {
            report.label(format!("{path}.name"), name);
            if !known.volumes.insert(name) {
                let message = format!("{name:?} is used twice");
                report.add(format!("{path}.name"), message, "rename one of the two volumes");
            }
        }
        let kinds = kinds(volume);
        if kinds.is_empty() || volume.empty_dir.is_some() {
            known.empty_dirs.insert(name);
        }
        if volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() {
            known.claimed.insert(name);
        }
        source(&path, volume, &kinds, &known, report);
    }
    known
}

fn source(path: &str, volume: &Volume, kinds: &[String], known: &Known<'_>, report: &mut Report) {
    if kinds.len() > 1 {
        report.add(path, format!("sets {} together", kinds.join(" and ")), "make each a volume of its own");
    }
    if let Some(host) = &volume.host_path {
        if host.path.is_empty() {
            report.add(format!("{path}.hostPath.path"), "is missing", "name a path on the node");
        } else if host.path.split('/').any(|part| part == "..") {
            report.add(format!("{path}.hostPath.path"), format!("{:?} contains '..'", host.path), "spell it out");
        }
        let types =
            ["", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"];
        report.one_of(format!("{path}.hostPath.type"), host.type_.as_deref(), &types);
    }
    if let Some(empty) = &volume.empty_dir {
        let medium = empty.medium.as_deref().unwrap_or_default();
        if !medium.starts_with("HugePages") {
            report.one_of(format!("{path}.emptyDir.medium"), Some(medium), &["", "Memory", "HugePages"]);
        }
        let limit = format!("{path}.emptyDir.sizeLimit");
        match empty.size_limit.as_ref().map(Amount::of) {
            Some(Err(error)) => report.add(limit, error.to_string(), "correct it"),
            Some(Ok(amount)) if amount.is_negative() => report.add(limit, "is below zero", "use 0 or more"),
            _ => {}
        }
    }
    if let Some(image) = &volume.image {
        if image.reference.as_deref().is_none_or(str::is_empty) {
            report.add(format!("{path}.image.reference"), "is missing", "name an image");
        }
        let pull = ["Always", "IfNotPresent", "Never"];
        report.one_of(format!("{path}.image.pullPolicy"), image.pull_policy.as_deref(), &pull);
    }
    if let Some(downward) = &volume.downward_api {
        let path = format!("{path}.downwardAPI");
        report.mode(format!("{path}.defaultMode"), downward.default_mode);
        downward_items(&path, downward.items.as_deref(), known, &mut BTreeSet::new(), report);
    }
    if let Some(projected) = &volume.projected {
        report.mode(format!("{path}.projected.defaultMode"), projected.default_mode);
        // The sources write into one directory.
        let mut files = BTreeSet::new();
        for (i, part) in projected.sources.iter().flatten().enumerate() {
            let kinds = set_fields(part);
            let path = || format!("{path}.projected.sources[{i}]");
            match kinds.len() {
                0 => report.add(path(), "says nothing", "set one kind of source, such as downwardAPI"),
                1 => {}
                _ => {
                    let message = format!("sets {} together", kinds.join(" and "));
                    report.add(path(), message, "make each a source of its own");
                }
            }
            if let Some(downward) = &part.downward_api {
                let path = format!("{}.downwardAPI", path());
                downward_items(&path, downward.items.as_deref(), known, &mut files, report);
            }
        }
    }
}

fn downward_items<'a>(
    path: &str,
    items: Option<&'a [DownwardAPIVolumeFile]>,
    known: &Known<'_>,
    files: &mut BTreeSet<Vec<&'a str>>,
    report: &mut Report,
) {
    for (i, item) in items.into_iter().flatten().enumerate() {
        let path = format!("{path}.items[{i}]");
        let file = item.path.as_str();
        let field = format!("{path}.path");
        let parts: Vec<&str> = file.split('/').filter(|part| !["", "."].contains(part)).collect();
        if parts.is_empty() {
            report.add(field, "is missing", "name the file to make");
        } else if file.starts_with('/') || file.split('/').any(|part| part == "..") || file.starts_with("..") {
            report.add(field, format!("{file:?} leaves the volume"), "use a relative path without '..'");
        } else if files.contains(&parts) {
            report.add(field, format!("{file:?} is used twice"), "give each item a path of its own");
        } else if let Some(other) = in_the_way(files, &parts) {
            let message = format!("{file:?} and {other:?} would make one of them a file and a directory");
            report.add(field, message, "rename one of the two");
        } else {
            files.insert(parts);
        }
        report.mode(format!("{path}.mode"), item.mode);
        let sources = [("fieldRef", item.field_ref.is_some()), ("resourceFieldRef", item.resource_field_ref.is_some())];
        report.exactly_one(&path, &sources);
        if let Some(field) = &item.field_ref {
            env::field_ref(&format!("{path}.fieldRef"), field, FieldUse::Volume, report);
        }
        if let Some(field) = &item.resource_field_ref {
            let path = format!("{path}.resourceFieldRef");
            resources::field_ref(&path, field, &known.containers, true, report);
        }
    }
}

/// The other path that one of two items would need as a directory and the other as a file.
fn in_the_way(files: &BTreeSet<Vec<&str>>, parts: &[&str]) -> Option<String> {
    let above = (1..parts.len()).find_map(|length| files.get(&parts[..length]));
    // In sorted order, the paths below a directory follow it directly.
    let below = || files.range(parts.to_vec()..).next().filter(|other| other.starts_with(parts));
    above.or_else(below).map(|other| other.join("/"))
}

/// The sources that a volume sets, by the names of the API.
pub(super) fn kinds(volume: &Volume) -> Vec<String> {
    set_fields(volume).into_iter().filter(|key| key != "name").collect()
}

/// The names of the fields that are set. A volume has thirty kinds, and its serialization knows them all.
pub(super) fn set_fields(of: &impl Serialize) -> Vec<String> {
    match serde_json::to_value(of) {
        Ok(serde_json::Value::Object(fields)) => fields.into_iter().map(|(key, _)| key).collect(),
        _ => vec![],
    }
}
