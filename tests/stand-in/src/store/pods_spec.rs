//! The changes that a write may make to the spec of a pod, by the path of the write. Source: the strategies and the validation of pods in
//! kube-apiserver.

use serde_json::{Value, json};

use crate::access::MIRROR;
use crate::refusal::{FieldFault, Refusal};
use crate::schema::Resource;

/// The lists of containers that start with the pod.
const LISTS: &[&str] = &["containers", "initContainers"];

/// Checks a write to the pod itself.
pub(super) fn check_update(resource: &Resource, name: &str, live: &Value, object: &Value) -> Result<(), Refusal> {
    let mut allowed = object["spec"].clone();
    for field in ["activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates"] {
        set_or_remove(&mut allowed, field, live["spec"].get(field));
    }
    keep_from(live, &mut allowed, "image");
    if allowed == live["spec"] {
        return Ok(());
    }
    let why = "pod updates may not change fields other than `spec.containers[*].image`,\
               `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
               existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
               previously negative)";
    Err(Refusal::invalid(resource, name, &[FieldFault::forbidden("spec", why)]))
}

/// Takes the resources of the containers from a write, and leaves the rest of the pod as it is.
pub(super) fn resize(resource: &Resource, name: &str, live: &Value, object: &mut Value) -> Result<(), Refusal> {
    let refuse = |faults: &[FieldFault]| Err(Refusal::invalid(resource, name, faults));
    if live["metadata"]["annotations"].get(MIRROR).is_some() {
        return refuse(&[FieldFault::forbidden("", "static pods cannot be resized")]);
    }
    let names = |pod: &Value, list: &str| -> Vec<Value> {
        pod["spec"][list].as_array().into_iter().flatten().map(|container| container["name"].clone()).collect()
    };
    if LISTS.iter().any(|list| names(live, list) != names(object, list)) {
        return refuse(&[FieldFault::forbidden("spec.containers", "containers may not be added or removed on resize")]);
    }
    let mut spec = live["spec"].clone();
    let mut faults = Vec::new();
    for list in LISTS {
        let new = object["spec"][*list].as_array().cloned().unwrap_or_default();
        let containers = spec.get_mut(*list).and_then(Value::as_array_mut).into_iter().flatten();
        for (at, (container, new)) in containers.zip(&new).enumerate() {
            faults.extend(resize_faults(
                &format!("spec.{list}[{at}].resources"),
                &container["resources"],
                &new["resources"],
            ));
            for field in ["resources", "resizePolicy"] {
                set_or_remove(container, field, new.get(field));
            }
        }
    }
    set_or_remove(&mut spec, "resources", object["spec"].get("resources"));
    if quality_of_service(&spec) != quality_of_service(&live["spec"]) {
        let class = json!(quality_of_service(&spec));
        faults.push(FieldFault::invalid("spec", &class, "Pod QOS Class may not change as a result of resizing"));
    }
    if !faults.is_empty() {
        return refuse(&faults);
    }
    object["spec"] = spec;
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        set_or_remove(&mut object["metadata"], field, live["metadata"].get(field));
    }
    Ok(())
}

fn resize_faults(path: &str, old: &Value, new: &Value) -> Vec<FieldFault> {
    let mut faults = Vec::new();
    for kind in ["limits", "requests"] {
        let (old, new) = (&old[kind], &new[kind]);
        let keys = |map: &Value| map.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>();
        let is_compute = |key: &String| matches!(key.as_str(), "cpu" | "memory");
        if keys(old).iter().chain(&keys(new)).any(|key| !is_compute(key) && old.get(key) != new.get(key)) {
            let path = format!("{path}.{kind}");
            faults.push(FieldFault::forbidden(&path, "only cpu and memory resources are mutable"));
        }
        if keys(old).iter().any(|key| is_compute(key) && new.get(key).is_none()) {
            faults
                .push(FieldFault::forbidden(&format!("{path}.{kind}"), &format!("resource {kind} cannot be removed")));
        }
    }
    faults
}

/// Takes the new ephemeral containers from a write, and leaves the rest of the pod as it is.
pub(super) fn add_ephemeral(resource: &Resource, name: &str, live: &Value, object: &mut Value) -> Result<(), Refusal> {
    let list = |pod: &Value| pod["spec"]["ephemeralContainers"].as_array().cloned().unwrap_or_default();
    let (old, new) = (list(live), list(object));
    let mut faults = Vec::new();
    if live["metadata"]["annotations"].get(MIRROR).is_some() {
        faults.push(FieldFault::forbidden("", "static pods do not support ephemeral containers"));
    }
    for container in &old {
        let verb = match new.iter().find(|found| found["name"] == container["name"]) {
            Some(found) if found == container => continue,
            Some(_) => "changed",
            None => "removed",
        };
        let why = format!("existing ephemeral containers {} may not be {verb}", container["name"]);
        faults.push(FieldFault::forbidden("spec.ephemeralContainers", &why));
    }
    let started = LISTS.iter().flat_map(|list| live["spec"][*list].as_array().into_iter().flatten());
    let mut names: Vec<&Value> = started.map(|container| &container["name"]).collect();
    for (at, container) in new.iter().enumerate() {
        let path = format!("spec.ephemeralContainers[{at}]");
        for field in ["name", "image"] {
            if container[field].as_str().unwrap_or_default().is_empty() {
                faults.push(FieldFault::required(&format!("{path}.{field}"), ""));
            }
        }
        if names.contains(&&container["name"]) {
            faults.push(FieldFault::duplicate(&format!("{path}.name"), &container["name"]));
        }
        names.push(&container["name"]);
        for field in ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "resizePolicy"] {
            if !container[field].is_null() {
                faults.push(FieldFault::forbidden(
                    &format!("{path}.{field}"),
                    "cannot be set for an Ephemeral Container",
                ));
            }
        }
    }
    if !faults.is_empty() {
        return Err(Refusal::invalid(resource, name, &faults));
    }
    let mut spec = live["spec"].clone();
    set_or_remove(&mut spec, "ephemeralContainers", object["spec"].get("ephemeralContainers"));
    object["spec"] = spec;
    Ok(())
}

fn set_or_remove(value: &mut Value, field: &str, new: Option<&Value>) {
    let map = value.as_object_mut().expect("the field is an object");
    match new {
        Some(new) => map.insert(field.to_owned(), new.clone()),
        None => map.remove(field),
    };
}

/// Sets a field of every container back to what the live pod has.
fn keep_from(live: &Value, spec: &mut Value, field: &str) {
    for list in LISTS {
        let old = live["spec"][*list].as_array().map(Vec::as_slice).unwrap_or_default();
        let new = spec.get_mut(*list).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, old) in new.zip(old) {
            set_or_remove(container, field, old.get(field));
        }
    }
}

/// The QoS class of a pod by the resources of its containers.
pub(super) fn quality_of_service(spec: &Value) -> &'static str {
    let containers: Vec<&Value> =
        ["containers", "initContainers"].iter().flat_map(|list| spec[*list].as_array().into_iter().flatten()).collect();
    let names = ["cpu", "memory"];
    let amount = |container: &Value, kind: &str, name: &str| container["resources"][kind].get(name).cloned();
    let uses = |container: &&Value| {
        names.iter().any(|name| ["requests", "limits"].iter().any(|kind| amount(container, kind, name).is_some()))
    };
    let is_full = |container: &&Value| {
        names.iter().all(|name| {
            let limit = amount(container, "limits", name);
            limit.is_some() && limit == amount(container, "requests", name)
        })
    };
    if !containers.iter().any(uses) {
        "BestEffort"
    } else if containers.iter().all(is_full) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}
