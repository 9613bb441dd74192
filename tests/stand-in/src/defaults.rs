//! The fields that the server fills in. Source: the defaults of the API types of Kubernetes 1.36.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};

use crate::schema::Resource;

/// Sets a field that is missing.
fn set(value: &mut Value, field: &str, default: Value) {
    if let Some(map) = value.as_object_mut()
        && map.get(field).is_none_or(Value::is_null)
    {
        map.insert(field.to_owned(), default);
    }
}

fn items<'a>(value: &'a mut Value, field: &str) -> impl Iterator<Item = &'a mut Value> {
    value.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten()
}

/// The lists that the server writes even if they are empty.
const KEPT_LISTS: &[&str] = &["containers", "nodeSelectorTerms", "sources"];

/// Drops fields that are null and empty lists, adds the fields that the type always writes, and sets the defaults of the kind.
pub(crate) fn fill(resource: &Resource, object: &mut Value, now: &str) {
    drop_empty(object);
    merge_missing(object, &resource.zero_object());
    match resource.kind {
        "Pod" => pod(object),
        "Node" => {
            for condition in items(&mut object["status"], "conditions") {
                set(condition, "lastHeartbeatTime", Value::Null);
                set(condition, "lastTransitionTime", Value::Null);
            }
        }
        "ResourceClaim" => claim_spec(&mut object["spec"]),
        "ResourceClaimTemplate" => claim_spec(&mut object["spec"]["spec"]),
        "ResourceSlice" => {
            for device in items(&mut object["spec"], "devices") {
                items(device, "taints").for_each(|taint| set(taint, "timeAdded", json!(now)));
            }
        }
        "DeviceTaintRule" => set(&mut object["spec"]["taint"], "timeAdded", json!(now)),
        "Secret" => secret(object),
        "Service" => service(&mut object["spec"]),
        "Namespace" => set(&mut object["spec"], "finalizers", json!(["kubernetes"])),
        _ => {}
    }
}

fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            let is_empty = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
            map.retain(|name, value| !value.is_null() && (!is_empty(value) || KEPT_LISTS.contains(&name.as_str())));
            map.values_mut().for_each(drop_empty);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}

fn merge_missing(value: &mut Value, zero: &Value) {
    let (Some(map), Some(zero)) = (value.as_object_mut(), zero.as_object()) else { return };
    for (name, default) in zero {
        match map.get_mut(name) {
            Some(found) => merge_missing(found, default),
            None => {
                map.insert(name.clone(), default.clone());
            }
        }
    }
}

/// Moves the texts of `stringData` to `data`, where they replace the values of the same keys.
fn secret(object: &mut Value) {
    set(object, "type", json!("Opaque"));
    let texts = object.as_object_mut().and_then(|object| object.remove("stringData"));
    for (key, text) in texts.as_ref().and_then(Value::as_object).into_iter().flatten() {
        object["data"][key.as_str()] = BASE64.encode(text.as_str().unwrap_or_default()).into();
    }
}

fn service(spec: &mut Value) {
    set(spec, "type", json!("ClusterIP"));
    set(spec, "sessionAffinity", json!("None"));
    for port in items(spec, "ports") {
        set(port, "protocol", json!("TCP"));
        let number = port["port"].clone();
        set(port, "targetPort", number);
    }
}

fn claim_spec(spec: &mut Value) {
    let Some(devices) = spec.get_mut("devices") else { return };
    for request in items(devices, "requests") {
        if let Some(exactly) = request.get_mut("exactly") {
            device_request(exactly);
        }
        items(request, "firstAvailable").for_each(device_request);
    }
}

fn device_request(request: &mut Value) {
    set(request, "allocationMode", json!("ExactCount"));
    if request["allocationMode"] == "ExactCount" {
        set(request, "count", json!(1));
    }
    for toleration in items(request, "tolerations") {
        set(toleration, "operator", json!("Equal"));
    }
}

fn pod(object: &mut Value) {
    let spec = &mut object["spec"];
    set(spec, "restartPolicy", json!("Always"));
    set(spec, "terminationGracePeriodSeconds", json!(30));
    set(spec, "dnsPolicy", json!("ClusterFirst"));
    set(spec, "securityContext", json!({}));
    set(spec, "schedulerName", json!("default-scheduler"));
    set(spec, "enableServiceLinks", json!(true));
    let uses_host_ports = spec["hostNetwork"] == true;
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in items(spec, list) {
            self::container(container, uses_host_ports, list == "ephemeralContainers");
        }
    }
    items(spec, "volumes").for_each(volume);
    let status = &mut object["status"];
    for condition in items(status, "conditions") {
        set(condition, "lastProbeTime", Value::Null);
        set(condition, "lastTransitionTime", Value::Null);
    }
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for status in items(status, list) {
            let empty =
                [("image", json!("")), ("imageID", json!("")), ("ready", json!(false)), ("restartCount", json!(0))];
            empty.into_iter().for_each(|(field, value)| set(status, field, value));
            set(status, "state", json!({}));
            set(status, "lastState", json!({}));
        }
    }
}

fn container(container: &mut Value, uses_host_ports: bool, is_ephemeral: bool) {
    let image = container["image"].as_str().unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let is_latest = !image.contains('@') && (!name.contains(':') || name.ends_with(":latest"));
    set(container, "imagePullPolicy", json!(if is_latest { "Always" } else { "IfNotPresent" }));
    set(container, "resources", json!({}));
    set(container, "terminationMessagePath", json!("/dev/termination-log"));
    set(container, "terminationMessagePolicy", json!("File"));
    for port in items(container, "ports") {
        set(port, "protocol", json!("TCP"));
        if uses_host_ports {
            let number = port["containerPort"].clone();
            set(port, "hostPort", number);
        }
    }
    for variable in items(container, "env") {
        if let Some(reference) = variable.get_mut("valueFrom").and_then(|from| from.get_mut("fieldRef")) {
            set(reference, "apiVersion", json!("v1"));
        }
    }
    if let Some(limits) = container["resources"].get("limits").and_then(Value::as_object).cloned() {
        set(&mut container["resources"], "requests", json!({}));
        for (name, value) in limits {
            set(&mut container["resources"]["requests"], &name, value);
        }
    }
    let has_resources = ["limits", "requests"].iter().any(|kind| container["resources"].get(kind).is_some());
    if has_resources && !is_ephemeral {
        let used =
            |name: &str| ["limits", "requests"].iter().any(|kind| container["resources"][kind].get(name).is_some());
        let policies: Vec<Value> = ["cpu", "memory"]
            .into_iter()
            .filter(|name| used(name))
            .map(|name| json!({"resourceName": name, "restartPolicy": "NotRequired"}))
            .collect();
        if !policies.is_empty() {
            set(container, "resizePolicy", Value::Array(policies));
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get_mut(probe) {
            for (field, value) in
                [("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)]
            {
                set(probe, field, json!(value));
            }
            http_action(probe);
            if let Some(grpc) = probe.get_mut("grpc") {
                set(grpc, "service", json!(""));
            }
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(hook) = container.get_mut("lifecycle").and_then(|lifecycle| lifecycle.get_mut(hook)) {
            http_action(hook);
        }
    }
}

fn http_action(handler: &mut Value) {
    if let Some(action) = handler.get_mut("httpGet") {
        set(action, "path", json!("/"));
        set(action, "scheme", json!("HTTP"));
    }
}

fn volume(volume: &mut Value) {
    let sources: Map<String, Value> = volume.as_object().cloned().unwrap_or_default();
    if sources.len() == 1 {
        set(volume, "emptyDir", json!({}));
    }
    for source in ["configMap", "secret", "projected", "downwardAPI"] {
        if let Some(source) = volume.get_mut(source) {
            set(source, "defaultMode", json!(420));
        }
    }
    if let Some(path) = volume.get_mut("hostPath") {
        set(path, "type", json!(""));
    }
    if let Some(downward) = volume.get_mut("downwardAPI") {
        items(downward, "items").for_each(field_reference);
    }
    if let Some(projected) = volume.get_mut("projected") {
        for source in items(projected, "sources") {
            if let Some(token) = source.get_mut("serviceAccountToken") {
                set(token, "expirationSeconds", json!(3600));
            }
            if let Some(downward) = source.get_mut("downwardAPI") {
                items(downward, "items").for_each(field_reference);
            }
        }
    }
}

fn field_reference(item: &mut Value) {
    if let Some(reference) = item.get_mut("fieldRef") {
        set(reference, "apiVersion", json!("v1"));
    }
}
