//! The rules for names, required fields and fields that must not change.

use serde_json::{Value, json};

use crate::call::Call;
use crate::refusal::FieldFault;
use crate::schema::Resource;
use crate::signing;

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
'[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

/// The fields of kinds with a `spec`.
const KNOWN_FIELDS: &[&str] = &["apiVersion", "kind", "metadata", "spec", "status"];

fn is_label(text: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && is_edge(text.chars().next())
        && is_edge(text.chars().last())
}

fn name_faults(resource: &Resource, name: &str) -> Vec<FieldFault> {
    if name.is_empty() {
        return vec![FieldFault::required("metadata.name", "name or generateName is required")];
    }
    let is_subdomain = name.split('.').all(is_label);
    let value = json!(name);
    let (longest, is_valid, rule) = match resource.kind {
        "Namespace" | "Service" => (63, is_label(name), LABEL),
        "CertificateSigningRequest" | "Event" => (253, true, ""),
        _ => (253, is_subdomain, SUBDOMAIN),
    };
    let mut faults = Vec::new();
    if name.len() > longest {
        faults.push(FieldFault::invalid("metadata.name", &value, &format!("must be no more than {longest} bytes")));
    }
    if !is_valid {
        faults.push(FieldFault::invalid("metadata.name", &value, rule));
    }
    faults
}

/// The fields of the body of a write that its kind does not have. Of kinds without a `spec`, all fields count as known.
pub(crate) fn unknown_fields(call: &Call) -> Vec<String> {
    let is_checked = matches!(call.subresource(), "" | "status") && call.resource.zero_object()["spec"].is_object();
    let fields = call.body.as_object().filter(|_| is_checked);
    let names = fields.into_iter().flatten().map(|(name, _)| name);
    names.filter(|name| !KNOWN_FIELDS.contains(&name.as_str())).cloned().collect()
}

/// The faults of a new object.
pub(crate) fn new_object(resource: &Resource, object: &Value) -> Vec<FieldFault> {
    let mut faults = name_faults(resource, object["metadata"]["name"].as_str().unwrap_or_default());
    match resource.kind {
        "Pod" => faults.extend(pod(&object["spec"])),
        "DeviceTaintRule" => faults.extend(taint(&object["spec"]["taint"], "spec.taint")),
        "ResourceSlice" => faults.extend(slice(&object["spec"])),
        "Lease" => faults.extend(lease(&object["spec"])),
        "CertificateSigningRequest" => faults.extend(signing::faults(&object["spec"])),
        _ => {}
    }
    faults
}

fn is_missing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn pod(spec: &Value) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    if is_missing(&spec["containers"]) {
        faults.push(FieldFault::required("spec.containers", ""));
    }
    for list in ["initContainers", "containers"] {
        let mut names = Vec::new();
        for (at, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            let path = format!("spec.{list}[{at}]");
            for field in ["name", "image"] {
                if is_missing(&container[field]) {
                    faults.push(FieldFault::required(&format!("{path}.{field}"), ""));
                }
            }
            let name = container["name"].as_str().unwrap_or_default();
            if !name.is_empty() && !is_label(name) {
                faults.push(FieldFault::invalid(&format!("{path}.name"), &container["name"], LABEL));
            }
            if names.contains(&name) {
                faults.push(FieldFault::duplicate(&format!("{path}.name"), &container["name"]));
            }
            names.push(name);
        }
    }
    faults
}

fn taint(taint: &Value, path: &str) -> Vec<FieldFault> {
    let missing = ["key", "effect"].into_iter().filter(|field| is_missing(&taint[*field]));
    missing.map(|field| FieldFault::required(&format!("{path}.{field}"), "")).collect()
}

fn slice(spec: &Value) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    for (path, value) in [("spec.driver", &spec["driver"]), ("spec.pool.name", &spec["pool"]["name"])] {
        if is_missing(value) {
            faults.push(FieldFault::required(path, ""));
        }
    }
    if spec["pool"]["resourceSliceCount"].as_i64().is_none_or(|count| count <= 0) {
        let value = &spec["pool"]["resourceSliceCount"];
        faults.push(FieldFault::invalid("spec.pool.resourceSliceCount", value, "must be greater than zero"));
    }
    let devices = spec["devices"].as_array().map(Vec::as_slice).unwrap_or_default();
    let longest = if devices.iter().any(|device| !is_missing(&device["taints"])) { 64 } else { 128 };
    if devices.len() > longest {
        faults.push(FieldFault::too_many("spec.devices", devices.len(), longest));
    }
    for (at, device) in devices.iter().enumerate() {
        for (number, found) in device["taints"].as_array().into_iter().flatten().enumerate() {
            faults.extend(taint(found, &format!("spec.devices[{at}].taints[{number}]")));
        }
    }
    let ways = ["nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"];
    if ways.iter().filter(|way| !is_missing(&spec[**way]) && spec[**way] != false).count() != 1 {
        let list = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
        faults.push(FieldFault::required("spec", list));
    }
    faults
}

fn lease(spec: &Value) -> Vec<FieldFault> {
    match spec["leaseDurationSeconds"].as_i64() {
        Some(seconds) if seconds <= 0 => {
            let value = &spec["leaseDurationSeconds"];
            vec![FieldFault::invalid("spec.leaseDurationSeconds", value, "must be greater than 0")]
        }
        _ => Vec::new(),
    }
}

/// The faults of a changed object. Upstream checks the metadata twice, and each fault of it is listed twice.
pub(crate) fn changed_object(resource: &Resource, subresource: &str, live: &Value, object: &Value) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    for field in ["uid", "creationTimestamp"] {
        let (old, new) = (&live["metadata"][field], &object["metadata"][field]);
        if !new.is_null() && old != new {
            let fault = FieldFault::invalid(&format!("metadata.{field}"), new, "field is immutable");
            faults.extend([fault.clone(), fault]);
        }
    }
    if !live["metadata"]["deletionTimestamp"].is_null() {
        let known = live["metadata"]["finalizers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
        let new: Vec<String> = finalizers.filter(|name| !known.contains(name)).map(Value::to_string).collect();
        if !new.is_empty() {
            let found = new.join(", ");
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{found}}}"
            );
            faults.push(FieldFault::forbidden("metadata.finalizers", &why));
        }
    }
    let fixed: &[&str] = match resource.kind {
        "ResourceClaim" | "ResourceClaimTemplate" => &["spec"],
        "ResourceSlice" => &["spec.driver", "spec.pool.name", "spec.nodeName"],
        _ => &[],
    };
    for path in fixed {
        let pointer = format!("/{}", path.replace('.', "/"));
        let (old, new) = (live.pointer(&pointer), object.pointer(&pointer));
        if old != new {
            faults.push(FieldFault::invalid(path, new.unwrap_or(&Value::Null), "field is immutable"));
        }
    }
    match resource.kind {
        "ResourceClaim" => faults.extend(claim_status(live, object)),
        "CertificateSigningRequest" => faults.extend(signing::change_faults(subresource, live, object)),
        "ResourceSlice" | "DeviceTaintRule" | "Lease" => faults.extend(new_object(resource, object)),
        _ => {}
    }
    faults
}

fn claim_status(live: &Value, object: &Value) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    let (old, new) = (&live["status"], &object["status"]);
    if !old["allocation"].is_null() && !new["allocation"].is_null() && old["allocation"] != new["allocation"] {
        faults.push(FieldFault::invalid("status.allocation", &new["allocation"], "field is immutable"));
    }
    let (before, after) = (&old["reservedFor"], &new["reservedFor"]);
    let entries = after.as_array().map(Vec::as_slice).unwrap_or_default();
    let known = before.as_array().map(Vec::as_slice).unwrap_or_default();
    if entries.len() > 256 {
        faults.push(FieldFault::too_many("status.reservedFor", entries.len(), 256));
    }
    if entries.iter().any(|entry| !known.contains(entry)) {
        if !live["metadata"]["deletionTimestamp"].is_null() {
            let why = "new reservations may not be added to a claim which is being deleted";
            faults.push(FieldFault::forbidden("status.reservedFor", why));
        } else if new["allocation"].is_null() {
            faults
                .push(FieldFault::forbidden("status.reservedFor", "may not be specified when `allocated` is not set"));
        }
    }
    if new["allocation"].is_null() && !old["allocation"].is_null() && !entries.is_empty() {
        faults.push(FieldFault::forbidden("status.reservedFor", "may not be specified when `allocated` is not set"));
    }
    faults
}
