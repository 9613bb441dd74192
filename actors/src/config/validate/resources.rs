//! Validates requests, limits and claims.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{ResourceFieldSelector, ResourceRequirements};

use super::report::Report;
use crate::config::fields;
use crate::config::quantity::Amount;

pub(super) fn check(path: &str, own: &ResourceRequirements, claims: &BTreeSet<&str>, report: &mut Report) {
    for (list, map) in [("limits", &own.limits), ("requests", &own.requests)] {
        for (name, quantity) in map.iter().flatten() {
            let path = format!("{path}.{list}.{name}");
            match Amount::of(quantity) {
                Err(error) => report.add(path, error.to_string(), "correct it"),
                Ok(amount) if amount.is_negative() => report.add(path, format!("is {}", quantity.0), "use 0 or more"),
                Ok(_) => {}
            }
        }
    }
    for (name, request) in own.requests.iter().flatten() {
        let Some(limit) = own.limits.as_ref().and_then(|limits| limits.get(name)) else { continue };
        if let (Ok(asked), Ok(most)) = (Amount::of(request), Amount::of(limit))
            && asked > most
        {
            report.add(
                format!("{path}.requests.{name}"),
                format!("{} is more than the limit {}", request.0, limit.0),
                "lower the request or raise the limit",
            );
        }
    }
    for (i, claim) in own.claims.iter().flatten().enumerate() {
        if !claims.contains(claim.name.as_str()) {
            report.add(
                format!("{path}.claims[{i}].name"),
                format!("{:?} is not a claim of the pod", claim.name),
                "add it to spec.resourceClaims",
            );
        }
    }
}

pub(super) fn field_ref(
    path: &str,
    field: &ResourceFieldSelector,
    containers: &BTreeSet<&str>,
    need_container: bool,
    report: &mut Report,
) {
    if !fields::allowed_resource(&field.resource) {
        report.add(
            format!("{path}.resource"),
            format!("{:?} cannot be used here", field.resource),
            "use limits or requests of cpu, memory, ephemeral-storage or hugepages-SIZE, as in limits.cpu",
        );
    }
    match field.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) if !containers.contains(name) => report.add(
            format!("{path}.containerName"),
            format!("{name:?} is not a container of the pod"),
            "name one of its containers",
        ),
        None if need_container => {
            report.add(format!("{path}.containerName"), "is missing", "say whose resources are meant");
        }
        _ => {}
    }
    if let Some(divisor) = &field.divisor
        && let Err(error) = Amount::of(divisor)
    {
        report.add(format!("{path}.divisor"), error.to_string(), "correct it");
    }
}
