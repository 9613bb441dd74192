//! Validates the object metadata of a pod.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::report::Report;
use super::scheduling;
use crate::names;

pub(super) fn check(meta: &ObjectMeta, report: &mut Report) {
    match meta.name.as_deref() {
        None | Some("") => report.add("metadata.name", "is missing", "give the pod a name"),
        Some(name) => report.subdomain("metadata.name", name),
    }
    if let Some(prefix) = meta.generate_name.as_deref().filter(|prefix| !prefix.is_empty()) {
        // The API server appends letters and digits, so the prefix may end with a hyphen.
        report.subdomain("metadata.generateName", prefix.strip_suffix('-').unwrap_or(prefix));
    }
    if let Some(namespace) = meta.namespace.as_deref()
        && !namespace.is_empty()
    {
        report.label("metadata.namespace", namespace);
    }
    if let Some(uid) = meta.uid.as_deref()
        && !uid.is_empty()
        && !names::is_uid(uid)
    {
        // The UID becomes the name of a directory.
        report.add(
            "metadata.uid",
            format!("{uid:?} cannot be a UID"),
            "use at most 128 letters, digits, '-', '_' and '.', or remove it and one is generated",
        );
    }
    report.at_least("metadata.generation", meta.generation, 0);
    scheduling::labels("metadata.labels", meta.labels.as_ref(), report);
    for key in meta.annotations.iter().flatten().map(|(key, _)| key).filter(|key| !names::is_qualified(key)) {
        report.bad_key(format!("metadata.annotations[{key}]"));
    }
    finalizers(meta.finalizers.as_deref().unwrap_or_default(), report);
    owners(meta.owner_references.as_deref().unwrap_or_default(), report);
}

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

fn finalizers(finalizers: &[String], report: &mut Report) {
    for (i, name) in finalizers.iter().enumerate() {
        let path = format!("metadata.finalizers[{i}]");
        report.qualified(&path, name);
        // These are the finalizers of Kubernetes itself (core/v1 `FinalizerName`, meta/v1 `FinalizerOrphanDependents` and
        // `FinalizerDeleteDependents`).
        if names::is_qualified(name) && !name.contains('/') && !["kubernetes", ORPHAN, FOREGROUND].contains(&&**name) {
            report.add(path, format!("{name:?} has no domain"), "use a name as in example.com/finalizer");
        }
    }
    let has = |wanted: &str| finalizers.iter().any(|name| name == wanted);
    if has(ORPHAN) && has(FOREGROUND) {
        let message = format!("has both {ORPHAN} and {FOREGROUND}");
        report.add("metadata.finalizers", message, "keep one of the two");
    }
}

fn owners(owners: &[OwnerReference], report: &mut Report) {
    for (i, owner) in owners.iter().enumerate() {
        let fields =
            [("apiVersion", &owner.api_version), ("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)];
        for (field, _) in fields.iter().filter(|(_, value)| value.is_empty()) {
            let path = format!("metadata.ownerReferences[{i}].{field}");
            report.add(path, "is missing", "name the owner completely, or remove the reference");
        }
    }
    if owners.iter().filter(|owner| owner.controller == Some(true)).count() > 1 {
        let message = "has more than one controller";
        report.add("metadata.ownerReferences", message, "set controller on one of them");
    }
}
