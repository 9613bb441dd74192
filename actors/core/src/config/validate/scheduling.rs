//! Validates the fields that select nodes and classes: selectors, affinity, tolerations, gates and names of classes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, PodSpec, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::report::Report;
use crate::names;

pub(super) fn check(spec: &PodSpec, report: &mut Report) {
    labels("spec.nodeSelector", spec.node_selector.as_ref(), report);
    for (name, value) in [
        ("serviceAccountName", &spec.service_account_name),
        ("nodeName", &spec.node_name),
        ("priorityClassName", &spec.priority_class_name),
    ] {
        if let Some(text) = value.as_deref().filter(|text| !text.is_empty()) {
            report.subdomain(format!("spec.{name}"), text);
        }
    }
    if let Some(class) = &spec.runtime_class_name {
        report.subdomain("spec.runtimeClassName", class);
    }
    for (i, gate) in spec.readiness_gates.iter().flatten().enumerate() {
        report.qualified(format!("spec.readinessGates[{i}].conditionType"), &gate.condition_type);
    }
    let mut gates = BTreeSet::new();
    for (i, gate) in spec.scheduling_gates.iter().flatten().enumerate() {
        let path = format!("spec.schedulingGates[{i}].name");
        report.qualified(&path, &gate.name);
        if !gates.insert(&gate.name) {
            report.add(path, format!("{:?} is used twice", gate.name), "remove one of the two");
        }
    }
    if !gates.is_empty() && spec.node_name.as_deref().is_some_and(|name| !name.is_empty()) {
        report.add("spec.schedulingGates", "is set although the pod is on a node", "remove it");
    }
    for (i, toleration) in spec.tolerations.iter().flatten().enumerate() {
        self::toleration(&format!("spec.tolerations[{i}]"), toleration, report);
    }
    if let Some(affinity) = &spec.affinity {
        self::affinity(affinity, report);
    }
    let mut spread = BTreeSet::new();
    for (i, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let path = format!("spec.topologySpreadConstraints[{i}]");
        self::spread(&path, constraint, report);
        if !spread.insert((&constraint.topology_key, &constraint.when_unsatisfiable)) {
            let message = "has the topologyKey and whenUnsatisfiable of another constraint";
            report.add(path, message, "remove one of the two");
        }
    }
}

pub(super) fn toleration(path: &str, toleration: &Toleration, report: &mut Report) {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (key, operator, value, effect) =
        (text(&toleration.key), text(&toleration.operator), text(&toleration.value), text(&toleration.effect));
    report.one_of(format!("{path}.operator"), Some(&operator), &["", "Exists", "Equal", "Lt", "Gt"]);
    report.one_of(format!("{path}.effect"), Some(&effect), &["", "NoSchedule", "PreferNoSchedule", "NoExecute"]);
    if !key.is_empty() {
        report.qualified(format!("{path}.key"), &key);
    } else if ["", "Equal", "Lt", "Gt"].contains(&operator.as_str()) {
        let message = "is not Exists although key is empty, which means all taints";
        report.add(format!("{path}.operator"), message, "use Exists, or name a key");
    }
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        let message = "is not NoExecute although tolerationSeconds is set";
        report.add(format!("{path}.effect"), message, "use NoExecute, or remove tolerationSeconds");
    }
    match operator.as_str() {
        "" | "Equal" => report.label_value(format!("{path}.value"), &value),
        "Exists" if !value.is_empty() => {
            report.add(format!("{path}.value"), "is set beside operator Exists", "remove it, or use Equal")
        }
        "Lt" | "Gt" => whole_number(format!("{path}.value"), &value, report),
        _ => {}
    }
}

/// Validates the text of a 64-bit number without a sign of plus and without leading zeros.
fn whole_number(path: String, text: &str, report: &mut Report) {
    if text.parse::<i64>().ok().is_none_or(|number| number.to_string() != text) {
        report.add(path, format!("{text:?} is not a whole number"), "use a number such as 10");
    }
}

fn affinity(affinity: &Affinity, report: &mut Report) {
    if let Some(node) = &affinity.node_affinity {
        let path = "spec.affinity.nodeAffinity";
        if let Some(required) = &node.required_during_scheduling_ignored_during_execution {
            let path = format!("{path}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms");
            if required.node_selector_terms.is_empty() {
                report.add(&path, "is empty", "add a term, or remove the selector");
            }
            for (i, term) in required.node_selector_terms.iter().enumerate() {
                node_term(&format!("{path}[{i}]"), term, true, report);
            }
        }
        let preferred = node.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        for (i, preferred) in preferred.enumerate() {
            let path = format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{i}]");
            weight(&path, preferred.weight, report);
            // The API accepts values here that no label has, because the preference is then only without effect.
            node_term(&format!("{path}.preference"), &preferred.preference, false, report);
        }
    }
    let with = affinity.pod_affinity.as_ref().map(|own| {
        let preferred = &own.preferred_during_scheduling_ignored_during_execution;
        ("podAffinity", &own.required_during_scheduling_ignored_during_execution, preferred)
    });
    let away = affinity.pod_anti_affinity.as_ref().map(|own| {
        let preferred = &own.preferred_during_scheduling_ignored_during_execution;
        ("podAntiAffinity", &own.required_during_scheduling_ignored_during_execution, preferred)
    });
    for (name, required, preferred) in with.into_iter().chain(away) {
        let path = format!("spec.affinity.{name}");
        for (i, term) in required.iter().flatten().enumerate() {
            pod_term(&format!("{path}.requiredDuringSchedulingIgnoredDuringExecution[{i}]"), term, report);
        }
        for (i, weighted) in preferred.iter().flatten().enumerate() {
            let path = format!("{path}.preferredDuringSchedulingIgnoredDuringExecution[{i}]");
            weight(&path, weighted.weight, report);
            pod_term(&format!("{path}.podAffinityTerm"), &weighted.pod_affinity_term, report);
        }
    }
}

fn weight(path: &str, weight: i32, report: &mut Report) {
    if !(1..=100).contains(&weight) {
        report.add(format!("{path}.weight"), format!("is {weight}"), "use 1 to 100");
    }
}

fn node_term(path: &str, term: &NodeSelectorTerm, label_values: bool, report: &mut Report) {
    for (i, requirement) in term.match_expressions.iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{i}]");
        report.qualified(format!("{path}.key"), &requirement.key);
        let values = requirement.values.as_deref().unwrap_or_default();
        match requirement.operator.as_str() {
            "Gt" | "Lt" if values.len() != 1 => {
                report.add(format!("{path}.values"), format!("has {} values", values.len()), "use one value")
            }
            "Gt" | "Lt" => {}
            operator => selector_values(&path, operator, values, report),
        }
        for (i, value) in values.iter().enumerate().filter(|_| label_values) {
            report.label_value(format!("{path}.values[{i}]"), value);
        }
    }
    for (i, requirement) in term.match_fields.iter().flatten().enumerate() {
        node_field(&format!("{path}.matchFields[{i}]"), requirement, report);
    }
}

/// The only field of a node that a term can match is its name.
fn node_field(path: &str, requirement: &NodeSelectorRequirement, report: &mut Report) {
    report.one_of(format!("{path}.key"), Some(&requirement.key), &["metadata.name"]);
    report.one_of(format!("{path}.operator"), Some(&requirement.operator), &["In", "NotIn"]);
    let values = requirement.values.as_deref().unwrap_or_default();
    if values.len() != 1 {
        report.add(format!("{path}.values"), format!("has {} values", values.len()), "use the name of one node");
    }
    for (i, value) in values.iter().enumerate() {
        report.subdomain(format!("{path}.values[{i}]"), value);
    }
}

/// Validates the values that an operator of a selector needs.
fn selector_values(path: &str, operator: &str, values: &[String], report: &mut Report) {
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            report.add(format!("{path}.values"), "is empty", "list at least one value")
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            report.add(format!("{path}.values"), format!("is set beside operator {operator}"), "remove it")
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        other => {
            let remedy = "use one of In, NotIn, Exists, DoesNotExist; for node labels also Gt, Lt";
            report.add(format!("{path}.operator"), format!("is {other:?}"), remedy);
        }
    }
}

fn pod_term(path: &str, term: &PodAffinityTerm, report: &mut Report) {
    selector(&format!("{path}.labelSelector"), term.label_selector.as_ref(), report);
    selector(&format!("{path}.namespaceSelector"), term.namespace_selector.as_ref(), report);
    for (i, namespace) in term.namespaces.iter().flatten().enumerate() {
        report.label(format!("{path}.namespaces[{i}]"), namespace);
    }
    report.qualified(format!("{path}.topologyKey"), &term.topology_key);
    for (name, keys) in [("matchLabelKeys", &term.match_label_keys), ("mismatchLabelKeys", &term.mismatch_label_keys)] {
        label_keys(path, name, keys.as_deref(), term.label_selector.as_ref(), report);
    }
    let matched: BTreeSet<_> = term.match_label_keys.iter().flatten().collect();
    for (i, key) in term.mismatch_label_keys.iter().flatten().enumerate().filter(|(_, key)| matched.contains(key)) {
        let path = format!("{path}.mismatchLabelKeys[{i}]");
        report.add(path, format!("{key:?} is also in matchLabelKeys"), "remove one of the two");
    }
}

fn label_keys(path: &str, name: &str, keys: Option<&[String]>, of: Option<&LabelSelector>, report: &mut Report) {
    let keys = keys.unwrap_or_default();
    if !keys.is_empty() && of.is_none() {
        report.add(format!("{path}.{name}"), "is set without labelSelector", "add labelSelector, or remove it");
    }
    for (i, key) in keys.iter().enumerate() {
        report.qualified(format!("{path}.{name}[{i}]"), key);
    }
}

fn selector(path: &str, selector: Option<&LabelSelector>, report: &mut Report) {
    let Some(selector) = selector else { return };
    labels(&format!("{path}.matchLabels"), selector.match_labels.as_ref(), report);
    for (i, requirement) in selector.match_expressions.iter().flatten().enumerate() {
        let path = format!("{path}.matchExpressions[{i}]");
        report.qualified(format!("{path}.key"), &requirement.key);
        let values = requirement.values.as_deref().unwrap_or_default();
        selector_values(&path, &requirement.operator, values, report);
        for (i, value) in values.iter().enumerate() {
            report.label_value(format!("{path}.values[{i}]"), value);
        }
    }
}

/// Validates a map of labels.
pub(super) fn labels(path: &str, labels: Option<&BTreeMap<String, String>>, report: &mut Report) {
    for (key, value) in labels.into_iter().flatten() {
        let path = format!("{path}[{key}]");
        if !names::is_qualified(key) {
            report.bad_key(&path);
        }
        report.label_value(path, value);
    }
}

fn spread(path: &str, constraint: &TopologySpreadConstraint, report: &mut Report) {
    report.at_least(format!("{path}.maxSkew"), Some(constraint.max_skew), 1);
    report.qualified(format!("{path}.topologyKey"), &constraint.topology_key);
    let choices = ["DoNotSchedule", "ScheduleAnyway"];
    report.one_of(format!("{path}.whenUnsatisfiable"), Some(&constraint.when_unsatisfiable), &choices);
    report.at_least(format!("{path}.minDomains"), constraint.min_domains, 1);
    if constraint.min_domains.is_some() && constraint.when_unsatisfiable != "DoNotSchedule" {
        let message = "is set although whenUnsatisfiable is not DoNotSchedule";
        report.add(format!("{path}.minDomains"), message, "remove it, or use DoNotSchedule");
    }
    for (name, policy) in
        [("nodeAffinityPolicy", &constraint.node_affinity_policy), ("nodeTaintsPolicy", &constraint.node_taints_policy)]
    {
        report.one_of(format!("{path}.{name}"), policy.as_deref(), &["Honor", "Ignore"]);
    }
    selector(&format!("{path}.labelSelector"), constraint.label_selector.as_ref(), report);
    let keys = constraint.match_label_keys.as_deref();
    label_keys(path, "matchLabelKeys", keys, constraint.label_selector.as_ref(), report);
}
