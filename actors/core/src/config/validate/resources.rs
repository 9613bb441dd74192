//! Validates requests, limits and claims.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Container, ContainerResizePolicy, PodSpec, ResourceFieldSelector, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::report::Report;
use crate::config::fields;
use crate::config::pod_resources::resources_of_containers;
use crate::names;
use crate::quantity::Amount;

const HUGE_PAGES: &str = "hugepages-";

type Quantities = Option<BTreeMap<String, Quantity>>;

/// Validates the resources of the whole pod (KEP-2837) and its overhead.
pub(super) fn of_pod(spec: &PodSpec, report: &mut Report) {
    quantities("spec.overhead", &spec.overhead, report);
    for name in spec.overhead.iter().flatten().map(|(name, _)| name) {
        container_resource(format!("spec.overhead.{name}"), name, report);
    }
    let Some(own) = &spec.resources else { return };
    let path = "spec.resources";
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return report.add(path, "is set although spec.os.name is windows", "remove it");
    }
    if own.claims.is_some() {
        report.add(format!("{path}.claims"), "cannot be set for the whole pod", "set it on containers");
    }
    for (list, map) in [("limits", &own.limits), ("requests", &own.requests)] {
        for name in map.iter().flatten().map(|(name, _)| name) {
            if !matches!(name.as_str(), "cpu" | "memory") && !name.starts_with(HUGE_PAGES) {
                let remedy = "use cpu, memory or hugepages-SIZE, or set it on containers";
                report.add(format!("{path}.{list}.{name}"), "cannot be set for the whole pod", remedy);
            }
        }
    }
    requirements(path, own, report);
    consistency(spec, own, report);
}

/// The resources of the whole pod must suffice for its containers: requests for their requests together, limits for the
/// limit of each. Huge pages cannot be overcommitted, so their limit must suffice for the limits together.
fn consistency(spec: &PodSpec, own: &ResourceRequirements, report: &mut Report) {
    let path = "spec.resources";
    let together = resources_of_containers(spec);
    for (name, request) in own.requests.iter().flatten() {
        let needed = together.requests.as_ref().and_then(|all| all.get(name));
        too_small(format!("{path}.requests.{name}"), request, needed, "the requests of the containers", report);
    }
    for (name, limit) in own.limits.iter().flatten() {
        let field = || format!("{path}.limits.{name}");
        if name.starts_with(HUGE_PAGES) {
            let needed = together.limits.as_ref().and_then(|all| all.get(name));
            too_small(field(), limit, needed, "the limits of the containers", report);
            continue;
        }
        for container in &spec.containers {
            let needed = container.resources.as_ref().and_then(|own| own.limits.as_ref()?.get(name));
            let of = format!("the limit of container {:?}", container.name);
            too_small(field(), limit, needed, &of, report);
        }
    }
}

fn too_small(path: String, have: &Quantity, needed: Option<&Quantity>, of: &str, report: &mut Report) {
    let Some(needed) = needed else { return };
    if let (Ok(has), Ok(needs)) = (Amount::of(have), Amount::of(needed))
        && has < needs
    {
        let message = format!("{} is less than {of}, {}", have.0, needed.0);
        report.add(path, message, "raise it, or lower those of the containers");
    }
}

/// Validates the resources of a container.
pub(super) fn of_container(path: &str, container: &Container, claims: &BTreeSet<&str>, report: &mut Report) {
    let Some(own) = &container.resources else { return };
    let path = format!("{path}.resources");
    for (list, map) in [("limits", &own.limits), ("requests", &own.requests)] {
        for name in map.iter().flatten().map(|(name, _)| name) {
            container_resource(format!("{path}.{list}.{name}"), name, report);
        }
    }
    requirements(&path, own, report);
    let mut seen: BTreeSet<(&str, Option<&str>)> = BTreeSet::new();
    for (i, claim) in own.claims.iter().flatten().enumerate() {
        let path = format!("{path}.claims[{i}]");
        let request = claim.request.as_deref().filter(|request| !request.is_empty());
        if !claims.contains(claim.name.as_str()) {
            let message = format!("{:?} is not a claim of the pod", claim.name);
            report.add(format!("{path}.name"), message, "add it to spec.resourceClaims");
        }
        if let Some(request) = request {
            report.label(format!("{path}.request"), request);
        }
        // A claim without a request means all its requests.
        let overlaps = |(name, other): &(&str, Option<&str>)| {
            *name == claim.name && (other.is_none() || request.is_none() || *other == request)
        };
        if seen.iter().any(overlaps) {
            report.add(format!("{path}.name"), format!("{:?} is used twice", claim.name), "remove one of the two");
        }
        seen.insert((&claim.name, request));
    }
}

/// Validates the name of a resource: one that Kubernetes defines, or one of a device plugin with its domain.
fn container_resource(path: String, name: &str, report: &mut Report) {
    let known = matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with(HUGE_PAGES);
    if !names::is_qualified(name) || (!name.contains('/') && !known) || name.starts_with("requests.") {
        let remedy =
            "use cpu, memory, ephemeral-storage, hugepages-SIZE, or the name of a device as in example.com/gpu";
        report.add(path, "is not a resource", remedy);
    }
}

/// Whether the node may promise more of the resource than it has. Otherwise requests and limits must be the same.
fn can_be_overcommitted(name: &str) -> bool {
    !name.starts_with(HUGE_PAGES) && (!name.contains('/') || name.contains("kubernetes.io/"))
}

fn requirements(path: &str, own: &ResourceRequirements, report: &mut Report) {
    quantities(&format!("{path}.limits"), &own.limits, report);
    quantities(&format!("{path}.requests"), &own.requests, report);
    for (name, request) in own.requests.iter().flatten() {
        let field = || format!("{path}.requests.{name}");
        match own.limits.as_ref().and_then(|limits| limits.get(name)) {
            Some(limit) => {
                let (Ok(asked), Ok(most)) = (Amount::of(request), Amount::of(limit)) else { continue };
                if asked > most {
                    let message = format!("{} is more than the limit {}", request.0, limit.0);
                    report.add(field(), message, "lower the request or raise the limit");
                } else if asked != most && !can_be_overcommitted(name) {
                    let message = format!("{} differs from the limit {}", request.0, limit.0);
                    report.add(field(), message, "make both the same, because the node cannot overcommit it");
                }
            }
            None if !can_be_overcommitted(name) => {
                report.add(field(), "has no limit", "set the limit to the same, because the node cannot overcommit it");
            }
            None => {}
        }
    }
    let names = || own.limits.iter().chain(&own.requests).flatten().map(|(name, _)| name.as_str());
    if names().any(|name| name.starts_with(HUGE_PAGES)) && !names().any(|name| matches!(name, "cpu" | "memory")) {
        report.add(path, "has huge pages without cpu and memory", "set a limit or request of cpu or memory too");
    }
}

fn quantities(path: &str, map: &Quantities, report: &mut Report) {
    for (name, quantity) in map.iter().flatten() {
        let path = format!("{path}.{name}");
        let amount = match Amount::of(quantity) {
            Err(error) => {
                report.add(path, error.to_string(), "correct it");
                continue;
            }
            Ok(amount) if amount.is_negative() => {
                report.add(path, format!("is {}", quantity.0), "use 0 or more");
                continue;
            }
            Ok(amount) => amount,
        };
        if let Some(size) = name.strip_prefix(HUGE_PAGES) {
            match Amount::parse(size).map(Amount::units) {
                Ok(size) if size > 0 && amount.units() % size == 0 => {}
                Ok(size) if size > 0 => {
                    let message = format!("{} is not a multiple of the page size", quantity.0);
                    report.add(path, message, "use a multiple of it");
                }
                _ => report.add(path, format!("{size:?} is not a page size"), "use a size such as hugepages-2Mi"),
            }
        } else if !can_be_overcommitted(name) && amount != Amount::from_units(amount.units()) {
            report.add(path, format!("is {}", quantity.0), "use a whole number");
        }
    }
}

/// Validates how the resources of a container may be changed while it runs.
pub(super) fn resize_policy(
    path: &str,
    spec: &PodSpec,
    list: &[ContainerResizePolicy],
    init: bool,
    report: &mut Report,
) {
    let mut seen = BTreeSet::new();
    for (i, policy) in list.iter().enumerate() {
        let path = format!("{path}.resizePolicy[{i}]");
        report.one_of(format!("{path}.resourceName"), Some(&policy.resource_name), &["cpu", "memory"]);
        if !seen.insert(&policy.resource_name) {
            let message = format!("{:?} is used twice", policy.resource_name);
            report.add(format!("{path}.resourceName"), message, "remove one of the two");
        }
        let field = format!("{path}.restartPolicy");
        report.one_of(&field, Some(&policy.restart_policy), &["NotRequired", "RestartContainer"]);
        if policy.restart_policy == "RestartContainer" {
            if spec.restart_policy.as_deref() == Some("Never") {
                let message = "is RestartContainer although spec.restartPolicy is Never";
                report.add(field, message, "use NotRequired");
            } else if init {
                let message = "is RestartContainer on an init container that is no sidecar";
                report.add(field, message, "use NotRequired");
            }
        }
    }
}

/// Validates a reference to a container's resource.
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
            report.add(format!("{path}.containerName"), "is missing", "name the container whose resources are meant");
        }
        _ => {}
    }
    let path = format!("{path}.divisor");
    match field.divisor.as_ref().map(|divisor| (divisor, Amount::of(divisor))) {
        Some((_, Err(error))) => report.add(path, error.to_string(), "correct it"),
        Some((divisor, Ok(amount))) if amount != Amount::ZERO => {
            let is_cpu = field.resource.ends_with(".cpu");
            let (allowed, listed) =
                if is_cpu { (CPU_DIVISORS, "1m, 1") } else { (DIVISORS, "1, 1k to 1E, 1Ki to 1Ei") };
            if !allowed.iter().any(|allowed| Amount::parse(allowed).as_ref() == Ok(&amount)) {
                report.add(path, format!("is {}", divisor.0), format!("use one of {listed}"));
            }
        }
        _ => {}
    }
}

const CPU_DIVISORS: &[&str] = &["1m", "1"];
const DIVISORS: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
