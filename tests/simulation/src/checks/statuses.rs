//! Laws of the statuses in the API server: once no write is due, they are what the agent keeps.

#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::Value;

use super::CheckResult;

/// The types of the conditions that an agent sets. Other programs set the other ones.
pub(super) const OWN_CONDITIONS: [&str; 8] = [
    "PodScheduled",
    "Initialized",
    "ContainersReady",
    "Ready",
    "PodReadyToStartContainers",
    "PodResizePending",
    "PodResizeInProgress",
    "AllContainersRestarting",
];
/// The conditions that are false in a pod that has ended.
pub(super) const READINESS: [&str; 2] = ["ContainersReady", "Ready"];

/// The API server has what the agent keeps of a pod. `written` is the status of the pod, or that of the mirror pod of a static pod.
pub(crate) fn is_written(kept: &PodStatus, written: Option<&PodStatus>) -> CheckResult {
    let (kept, written) = (fields(kept), written.map(fields).unwrap_or_default());
    phase_agrees(&kept, &written)?;
    reason_agrees(&kept, &written)?;
    conditions_agree(&kept, &written)?;
    generation_agrees(&kept, &written)?;
    addresses_agree(&kept, &written)?;
    start_agrees(&kept, &written)?;
    resources_agree(&kept, &written)?;
    containers_agree(&kept, &written)
}

fn phase_agrees(kept: &Value, written: &Value) -> CheckResult {
    agrees("phase", &kept["phase"], &written["phase"])
}

/// Why the pod is in its phase. While a terminal phase is held back, the API server keeps the earlier phase together with its reason.
fn reason_agrees(kept: &Value, written: &Value) -> CheckResult {
    agrees_in(&["reason", "message"], kept, written)
}

/// The conditions of the agent, without their times: the API server has no time of a change that was undone before it was written. The
/// caller of a kill may set a terminal phase while containers are ready. In the API server, a pod with such a phase is not ready.
fn conditions_agree(kept: &Value, written: &Value) -> CheckResult {
    let has_ended = matches!(kept["phase"].as_str(), Some("Succeeded" | "Failed"));
    let is_corrected = has_ended && READINESS.iter().any(|name| condition(kept, name)["status"] == "True");
    for name in OWN_CONDITIONS {
        let mut kept = condition(kept, name);
        let written = condition(written, name);
        if is_corrected && READINESS.contains(&name) {
            kept["status"] = Value::from("False");
            agrees(name, &kept["status"], &written["status"])?;
        } else {
            agrees(name, &kept, &written)?;
        }
    }
    Ok(())
}

/// A condition without its time. Null if the status does not have it.
fn condition(status: &Value, name: &str) -> Value {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let mut found = conditions.find(|condition| condition["type"] == name).cloned().unwrap_or_default();
    if let Some(fields) = found.as_object_mut() {
        fields.remove("lastTransitionTime");
    }
    found
}

/// The generation of the pod that the agent has acted on.
fn generation_agrees(kept: &Value, written: &Value) -> CheckResult {
    agrees_in(&["observedGeneration"], kept, written)
}

/// The addresses of the node and of the pod. A patch replaces a list of addresses as a whole.
fn addresses_agree(kept: &Value, written: &Value) -> CheckResult {
    agrees_in(&["hostIP", "hostIPs", "podIP", "podIPs"], kept, written)
}

/// When the agent first had the pod, and the QoS class of the pod.
fn start_agrees(kept: &Value, written: &Value) -> CheckResult {
    agrees_in(&["startTime", "qosClass"], kept, written)
}

/// The resources of the whole pod, allocated and actual.
fn resources_agree(kept: &Value, written: &Value) -> CheckResult {
    agrees_in(&["resources", "allocatedResources", "resize"], kept, written)
}

/// The statuses of all containers, in whatever order.
fn containers_agree(kept: &Value, written: &Value) -> CheckResult {
    for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
        let sorted = |status: &Value| {
            let mut containers = status[list].as_array().cloned().unwrap_or_default();
            containers.sort_by_key(|container| container["name"].to_string());
            containers
        };
        let (kept, written) = (sorted(kept), sorted(written));
        for (kept, written) in kept.iter().zip(&written) {
            agrees(list, kept, written)?;
        }
        if kept.len() != written.len() {
            return agrees(list, &Value::Array(kept), &Value::Array(written));
        }
    }
    Ok(())
}

fn agrees_in(fields: &[&str], kept: &Value, written: &Value) -> CheckResult {
    fields.iter().try_for_each(|field| agrees(field, &kept[*field], &written[*field]))
}

fn agrees(field: &str, kept: &Value, written: &Value) -> CheckResult {
    if kept == written {
        return Ok(());
    }
    Err(format!("its {field} is {kept}, and the API server has {written}"))
}

/// The fields of a status. The API server stores no field that is null or empty.
fn fields(status: &PodStatus) -> Value {
    let mut fields = serde_json::to_value(status).unwrap();
    drop_empty(&mut fields);
    fields
}

fn drop_empty(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(drop_empty);
            fields.retain(|_, field| match field {
                Value::Null => false,
                Value::Object(fields) => !fields.is_empty(),
                Value::Array(items) => !items.is_empty(),
                _ => true,
            });
        }
        Value::Array(items) => items.iter_mut().for_each(drop_empty),
        _ => {}
    }
}
