//! Resolves `fieldRef` and `resourceFieldRef`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::PodObject;
use crate::quantity::Amount;

/// The facts that only the node knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldFacts {
    /// The pod's addresses, the primary one first; the node's for a pod on the node's network.
    pub pod_ips: Vec<IpAddr>,
    /// The node's addresses, the primary one first.
    pub host_ips: Vec<IpAddr>,
}

/// The use of a field. The API allows different fields for each use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FieldUse {
    /// `valueFrom` of an environment variable.
    Env,
    /// An item of a downward API volume.
    Volume,
}

/// Whether the API allows the field for the use (core/v1 `EnvVarSource.fieldRef`, `DownwardAPIVolumeFile.fieldRef`).
pub(crate) fn allowed(path: &str, field_use: FieldUse) -> bool {
    match path {
        "metadata.name" | "metadata.namespace" | "metadata.uid" => true,
        "metadata.labels" | "metadata.annotations" => field_use == FieldUse::Volume,
        "spec.nodeName"
        | "spec.serviceAccountName"
        | "status.podIP"
        | "status.podIPs"
        | "status.hostIP"
        | "status.hostIPs" => field_use == FieldUse::Env,
        _ => matches!(subscript(path), Some(("metadata.labels" | "metadata.annotations", _))),
    }
}

/// The text of a field. A field without a value (a missing label, no address yet) is empty; an unsupported path is
/// `None`.
///
/// All labels or annotations are one line each, `key="value"`, sorted by key. The value is escaped as a Go string
/// literal. The text does not end with a newline (the kubelet's `fieldpath.FormatMap`, 1.36).
pub(crate) fn field(pod: &PodObject, path: &str, facts: &FieldFacts) -> Option<String> {
    let meta = pod.metadata();
    let first = |ips: &[IpAddr]| ips.first().map(ToString::to_string).unwrap_or_default();
    let all = |ips: &[IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => &meta.labels,
            "metadata.annotations" => &meta.annotations,
            _ => return None,
        };
        return Some(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    Some(match path {
        "metadata.name" => meta.name.clone().unwrap_or_default(),
        "metadata.namespace" => meta.namespace.clone().unwrap_or_default(),
        "metadata.uid" => meta.uid.clone().unwrap_or_default(),
        "metadata.labels" => lines(meta.labels.as_ref()),
        "metadata.annotations" => lines(meta.annotations.as_ref()),
        "spec.nodeName" => pod.spec().node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => pod.spec().service_account_name.clone().unwrap_or_default(),
        "status.podIP" => first(&facts.pod_ips),
        "status.podIPs" => all(&facts.pod_ips),
        "status.hostIP" => first(&facts.host_ips),
        "status.hostIPs" => all(&facts.host_ips),
        _ => return None,
    })
}

/// Whether the resource is supported: CPU, memory, ephemeral storage or huge pages of `limits` or `requests`.
pub(crate) fn allowed_resource(resource: &str) -> bool {
    matches!(
        resource.split_once('.'),
        Some(("limits" | "requests", name))
            if matches!(name, "cpu" | "memory" | "ephemeral-storage") || name.starts_with("hugepages-")
    )
}

/// The value of a container's resource (`limits.cpu`, `requests.memory`, ...) in units of `divisor`, rounded up. An
/// unset or zero divisor is one unit. `own` are the requests and limits of the container.
///
/// A limit of CPU, memory or ephemeral storage that is unset or zero has the value of the pod's limit (`spec.resources`), and else
/// of `allocatable` (the kubelet's `defaultPodLimitsForDownwardAPI`, 1.36). An unset request, and an unset limit of huge pages,
/// is 0 (`ExtractContainerResourceValue`). Other resources and invalid quantities are `None`.
pub(crate) fn resource(
    pod: &PodSpec,
    own: Option<&ResourceRequirements>,
    resource: &str,
    divisor: Option<&Quantity>,
    allocatable: &BTreeMap<String, Quantity>,
) -> Option<String> {
    if !allowed_resource(resource) {
        return None;
    }
    let (list, name) = resource.split_once('.')?;
    let quantity = match list {
        "limits" => {
            let own = own.and_then(|own| own.limits.as_ref()).and_then(|all| all.get(name));
            if name.starts_with("hugepages-") {
                own
            } else {
                let of_pod = pod.resources.as_ref().and_then(|pod| pod.limits.as_ref()).and_then(|all| all.get(name));
                own.filter(|own| !is_zero(own)).or(of_pod.filter(|limit| !is_zero(limit))).or(allocatable.get(name))
            }
        }
        _ => own.and_then(|own| own.requests.as_ref()).and_then(|all| all.get(name)),
    };
    let read = |quantity: Option<&Quantity>| quantity.map_or(Some(Amount::ZERO), |quantity| Amount::of(quantity).ok());
    Some(read(quantity)?.divided_by(read(divisor)?).to_string())
}

fn is_zero(quantity: &Quantity) -> bool {
    Amount::of(quantity) == Ok(Amount::ZERO)
}

/// Splits `metadata.labels['key']` into map and key.
pub(super) fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['")
}

fn lines(map: Option<&BTreeMap<String, String>>) -> String {
    let lines = map.into_iter().flatten().map(|(key, value)| format!("{key}={}", quote(value)));
    lines.collect::<Vec<_>>().join("\n")
}

fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x0b' => out.push_str("\\v"),
            c if u32::from(c) < 0x20 || u32::from(c) == 0x7f => {
                write!(out, "\\x{:02x}", u32::from(c)).expect("writing to a string cannot fail");
            }
            c if c.is_control() => write!(out, "\\u{:04x}", u32::from(c)).expect("writing to a string cannot fail"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod() -> Arc<PodObject> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u-1",
                "labels": {"tier": "front", "app.kubernetes.io/name": "web"},
                "annotations": {"note": "a \"b\"\n\\c\u{1}é"},
            },
            "spec": {"containers": [], "nodeName": "node-1"},
        }))
        .unwrap();
        PodObject::new(pod).unwrap()
    }

    #[test]
    fn a_field_has_its_text() {
        let facts = FieldFacts {
            pod_ips: vec!["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()],
            host_ips: vec!["192.0.2.1".parse().unwrap()],
        };
        let cases = [
            ("metadata.name", Some("web")),
            ("metadata.namespace", Some("shop")),
            ("metadata.uid", Some("u-1")),
            ("metadata.labels", Some("app.kubernetes.io/name=\"web\"\ntier=\"front\"")),
            ("metadata.annotations", Some("note=\"a \\\"b\\\"\\n\\\\c\\x01é\"")),
            ("metadata.labels['app.kubernetes.io/name']", Some("web")),
            ("metadata.labels['none']", Some("")),
            ("metadata.annotations['note']", Some("a \"b\"\n\\c\u{1}é")),
            ("spec.nodeName", Some("node-1")),
            ("spec.serviceAccountName", Some("")),
            ("status.podIP", Some("10.0.0.7")),
            ("status.podIPs", Some("10.0.0.7,fd00::7")),
            ("status.hostIP", Some("192.0.2.1")),
            ("status.hostIPs", Some("192.0.2.1")),
            ("metadata.labels[none]", None),
            ("spec.hostname", None),
            ("spec['nodeName']", None),
        ];
        for (path, text) in cases {
            assert_eq!(field(&pod(), path, &facts).as_deref(), text, "{path}");
        }
        assert_eq!(field(&pod(), "status.podIP", &FieldFacts::default()).as_deref(), Some(""));
    }

    #[test]
    fn whole_maps_are_for_volumes_and_addresses_for_variables() {
        let cases = [
            ("metadata.name", true, true),
            ("metadata.labels", false, true),
            ("metadata.labels['x']", true, true),
            ("spec['x']", false, false),
            ("status.podIP", true, false),
            ("status.phase", false, false),
        ];
        for (path, env, volume) in cases {
            assert_eq!((allowed(path, FieldUse::Env), allowed(path, FieldUse::Volume)), (env, volume), "{path}");
        }
    }

    #[test]
    fn a_resource_is_a_rounded_number_of_divisors() {
        let list = |items: &[(&str, &str)]| -> BTreeMap<String, Quantity> {
            items.iter().map(|(name, amount)| ((*name).into(), Quantity((*amount).into()))).collect()
        };
        let own = ResourceRequirements {
            limits: Some(list(&[("cpu", "250m"), ("hugepages-2Mi", "4Mi")])),
            requests: Some(list(&[("memory", "64Mi"), ("ephemeral-storage", "much")])),
            ..ResourceRequirements::default()
        };
        let node = list(&[("cpu", "2"), ("memory", "1Gi"), ("hugepages-1Gi", "1Gi")]);
        let cases = [
            ("limits.cpu", "1", Some("1")),
            ("limits.cpu", "1m", Some("250")),
            ("limits.cpu", "0", Some("1")),
            ("limits.memory", "1Mi", Some("1024")),
            ("limits.hugepages-2Mi", "1Mi", Some("4")),
            ("limits.hugepages-1Gi", "1Mi", Some("0")),
            ("limits.ephemeral-storage", "1", Some("0")),
            ("requests.memory", "1", Some("67108864")),
            ("requests.memory", "60Mi", Some("2")),
            ("requests.cpu", "1m", Some("0")),
            ("requests.memory", "x", None),
            ("requests.ephemeral-storage", "1", None),
            ("limits.pods", "1", None),
            ("cpu", "1", None),
        ];
        for (name, divisor, text) in cases {
            let divisor = Quantity(divisor.into());
            let value = resource(&PodSpec::default(), Some(&own), name, Some(&divisor), &node);
            assert_eq!(value.as_deref(), text, "{name} / {}", divisor.0);
        }
    }

    #[test]
    fn an_unset_or_zero_limit_is_that_of_the_pod() {
        let list = |items: serde_json::Value| {
            serde_json::from_value::<ResourceRequirements>(json!({"limits": items})).unwrap()
        };
        let pod = |limits| PodSpec { resources: Some(list(limits)), ..PodSpec::default() };
        let node =
            BTreeMap::from([("cpu".to_owned(), Quantity("8".into())), ("memory".to_owned(), Quantity("1Gi".into()))]);
        let whole = pod(json!({"cpu": "2", "memory": "0", "hugepages-2Mi": "4Mi"}));
        for (own, name, value) in [
            (json!({}), "limits.cpu", "2"),
            (json!({"cpu": "0"}), "limits.cpu", "2"),
            (json!({"cpu": "1"}), "limits.cpu", "1"),
            (json!({}), "limits.memory", "1073741824"),
            (json!({}), "limits.hugepages-2Mi", "0"),
        ] {
            assert_eq!(
                resource(&whole, Some(&list(own.clone())), name, None, &node).as_deref(),
                Some(value),
                "{own} {name}"
            );
        }
    }
}
