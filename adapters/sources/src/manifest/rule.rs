//! Parses a file with one DeviceTaintRule.

use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use podwright_model::names;

use super::tree::{Value, YamlNode};
use super::{Fault, documents, shortened, typed};

/// The API version of rules in Kubernetes 1.36.
const VERSION: &str = "resource.k8s.io/v1beta2";
/// The effects that the API server accepts.
const EFFECTS: [&str; 3] = ["None", "NoSchedule", "NoExecute"];
const SUBDOMAIN: &str =
    "a DNS subdomain: lower-case letters, digits, '-' and '.', with a letter or digit at both ends of each part";
const LABEL: &str = "a DNS label: at most 63 lower-case letters, digits and '-', with a letter or digit at both ends";

/// Parses the YAML or JSON text of one DeviceTaintRule, and checks it as the API server does. An unknown field is a fault.
///
/// # Errors
/// All faults that were found, with their positions and remedies.
pub fn read_rule(bytes: &[u8]) -> Result<DeviceTaintRule, Vec<Fault>> {
    let fault = |at, message: String| vec![shortened(Fault { at, pod: None, message })];
    let documents = documents(bytes).map_err(|(at, message)| fault(at, message))?;
    let document = match &documents[..] {
        [] => return Err(fault(None, "contains no object: write one DeviceTaintRule".into())),
        [document] => document,
        [_, second, ..] => {
            return Err(fault(second.at, "has more than one document: write one DeviceTaintRule".into()));
        }
    };
    if let Some((path, message)) = other_kind(document) {
        return Err(fault(document.locate(path), message));
    }
    let (rule, unknown) = match typed::deserialize::<DeviceTaintRule>(document) {
        Ok(read) => read,
        Err(faults) => return Err(faults.into_iter().map(|found| type_fault(&found)).collect()),
    };
    let mut faults: Vec<_> = unknown.iter().map(type_fault).collect();
    for (path, message) in problems(&rule) {
        faults.push(shortened(Fault { at: document.locate(path), pod: None, message: format!("{path}: {message}") }));
    }
    if faults.is_empty() { Ok(rule) } else { Err(faults) }
}

fn type_fault(found: &typed::TypeFault) -> Fault {
    let path = found.path.as_str();
    let is_selector = path.starts_with("spec.deviceSelector.");
    let former = is_selector && ["deviceClassName", "selectors"].iter().any(|field| path.ends_with(field));
    let message = if former {
        format!("{path}: this field was removed in Kubernetes 1.35: select devices by driver, pool and device")
    } else {
        format!("{path}: {}", found.message)
    };
    shortened(Fault { at: found.at, pod: None, message })
}

/// Why a document is not a rule: the path of the field, and the fault.
fn other_kind(document: &YamlNode) -> Option<(&'static str, String)> {
    if !matches!(document.value, Value::Map(_)) {
        return Some(("", format!("is not an object: start with apiVersion: {VERSION} and kind: DeviceTaintRule")));
    }
    let text = |key| document.field(key).and_then(|entry| entry.node.text()).unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        (VERSION, "DeviceTaintRule") => None,
        (_, "DeviceTaintRule") => {
            Some(("apiVersion", format!("apiVersion is {:?}: write apiVersion: {VERSION}", text("apiVersion"))))
        }
        (_, kind) => Some(("kind", format!("kind is {kind:?}: only a DeviceTaintRule has a preview"))),
    }
}

/// Whether a text is a valid name.
type NameCheck = fn(&str) -> bool;

/// The faults of the values, with their fields.
fn problems(rule: &DeviceTaintRule) -> Vec<(&'static str, String)> {
    let mut problems = Vec::new();
    let name = rule.metadata.name.as_deref().unwrap_or_default();
    if name.is_empty() {
        problems.push(("metadata.name", "is missing: name the rule".to_owned()));
    } else if !names::is_subdomain(name) {
        problems.push(("metadata.name", format!("{name:?} is no name of a rule: use {SUBDOMAIN}")));
    }
    let taint = &rule.spec.taint;
    if !names::is_qualified(&taint.key) {
        let message = format!("{:?} is no key: use a name such as example.com/broken", taint.key);
        problems.push(("spec.taint.key", message));
    }
    if let Some(value) = taint.value.as_deref().filter(|value| !names::is_label_value(value)) {
        let message = format!(
            "{value:?} is no value of a taint: use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
        );
        problems.push(("spec.taint.value", message));
    }
    if !EFFECTS.contains(&taint.effect.as_str()) {
        problems.push(("spec.taint.effect", format!("{:?} is no effect: use {}", taint.effect, EFFECTS.join(", "))));
    }
    if let Some(selector) = &rule.spec.device_selector {
        let fields: [(_, _, NameCheck, _); 3] = [
            (
                "spec.deviceSelector.driver",
                &selector.driver,
                is_driver,
                ("driver", "a DNS subdomain of at most 63 characters"),
            ),
            (
                "spec.deviceSelector.pool",
                &selector.pool,
                is_pool,
                ("pool", "DNS subdomains joined by '/', at most 253 characters"),
            ),
            ("spec.deviceSelector.device", &selector.device, names::is_label, ("device", LABEL)),
        ];
        for (path, name, is_valid, (thing, form)) in fields {
            match name.as_deref() {
                None => {}
                Some("") => problems.push((path, "is empty: write a name, or leave the field out".to_owned())),
                Some(name) if is_valid(name) => {}
                Some(name) => problems.push((path, format!("{name:?} is no name of a {thing}: use {form}"))),
            }
        }
    }
    problems
}

/// The name of a driver. The API server accepts upper case in it.
fn is_driver(name: &str) -> bool {
    names::is_driver_name(&name.to_ascii_lowercase())
}

/// DNS subdomains that are joined by slashes.
fn is_pool(name: &str) -> bool {
    name.len() <= 253 && name.split('/').all(names::is_subdomain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: resource.k8s.io/v1beta2\nkind: DeviceTaintRule\nmetadata:\n  name: r\nspec:\n  deviceSelector:\n    \
                        driver: d\n  taint:\n    key: example.com/broken\n    value: v\n    effect: NoExecute\n";

    #[test]
    fn good_rule_is_read_from_yaml_and_json() {
        let rule = read_rule(GOOD.as_bytes()).unwrap();
        assert_eq!(rule.spec.device_selector.as_ref().and_then(|s| s.driver.as_deref()), Some("d"));
        let json = serde_json::to_string(&rule).unwrap();
        assert_eq!(read_rule(json.as_bytes()).unwrap(), rule);
    }

    #[test]
    fn names_that_the_api_server_accepts_are_accepted() {
        for name in ["driver: GPU.example.com", "pool: node-1.example/rack/a", "device: gpu-0"] {
            let rule = read_rule(GOOD.replace("driver: d", name).as_bytes());
            assert!(rule.is_ok(), "{name}: {rule:?}");
        }
    }

    #[test]
    fn bad_rule_is_refused_with_the_position_and_the_remedy() {
        let second = format!("{GOOD}---\n{GOOD}");
        for (text, expected) in [
            ("", "contains no object"),
            ("- a", "line 1, column 1: is not an object: start with apiVersion: resource.k8s.io/v1beta2"),
            (&second, "has more than one document"),
            (
                &GOOD.replace("v1beta2", "v1alpha3"),
                "line 1, column 1: apiVersion is \"resource.k8s.io/v1alpha3\": write",
            ),
            (&GOOD.replace("kind: DeviceTaintRule", "kind: Pod"), "line 2, column 1: kind is \"Pod\": only a"),
            (&GOOD.replace("  name: r", "  labels: {}"), "metadata.name: is missing: name the rule"),
            (
                &GOOD.replace("driver: d", "drver: d"),
                "line 7, column 5: spec.deviceSelector.drver: unknown field; did you mean \"driver\"?",
            ),
            (
                &GOOD.replace("driver: d", "deviceClassName: d"),
                "was removed in Kubernetes 1.35: select devices by driver",
            ),
            (&GOOD.replace("driver: d", "driver: \"\""), "line 7, column 5: spec.deviceSelector.driver: is empty"),
            (
                &GOOD.replace("name: r", "name: My_Rule"),
                "line 4, column 3: metadata.name: \"My_Rule\" is no name of a rule: use a DNS",
            ),
            (
                &GOOD.replace("driver: d", &format!("driver: {}", "d".repeat(64))),
                "is no name of a driver: use a DNS subdomain of at most 63",
            ),
            (
                &GOOD.replace("driver: d", "driver: a_b"),
                "line 7, column 5: spec.deviceSelector.driver: \"a_b\" is no name of a driver",
            ),
            (
                &GOOD.replace("driver: d", "pool: a//b"),
                "\"a//b\" is no name of a pool: use DNS subdomains joined by '/'",
            ),
            (&GOOD.replace("driver: d", "device: a.b"), "\"a.b\" is no name of a device: use a DNS label"),
            (&GOOD.replace("driver: d", "driver: [d]"), "spec.deviceSelector.driver: must be text, not a list"),
            (&GOOD.replace("example.com/broken", "a b"), "line 9, column 5: spec.taint.key: \"a b\" is no key"),
            (&GOOD.replace("value: v", "value: \"a b\""), "line 10, column 5: spec.taint.value: \"a b\" is no value"),
            (
                &GOOD.replace("NoExecute", "NoExecut"),
                "line 11, column 5: spec.taint.effect: \"NoExecut\" is no effect: use None",
            ),
            (&GOOD.replace("    key: example.com/broken\n", ""), "spec.taint"),
            ("a: [", "not valid YAML or JSON"),
        ] {
            let faults = read_rule(text.as_bytes()).unwrap_err();
            let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
            assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:?}");
        }
    }
}
