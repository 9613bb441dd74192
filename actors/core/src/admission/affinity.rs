//! Compares the labels of a node with the node selector and the required node affinity of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

/// The labels of a node.
pub(super) type Labels = BTreeMap<String, String>;

/// Whether the node has every label of `spec.nodeSelector` and matches a term of the required node affinity, if there is one.
pub(super) fn matches(spec: &PodSpec, node: &str, labels: &Labels) -> bool {
    let selector = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|node| node.required_during_scheduling_ignored_during_execution.as_ref());
    selector && required.is_none_or(|required| required.node_selector_terms.iter().any(|it| term(it, node, labels)))
}

/// Whether a term matches: all its requirements do. A term without requirements matches no node.
fn term(term: &NodeSelectorTerm, node: &str, labels: &Labels) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let is_name = |field: &NodeSelectorRequirement| field.key == "metadata.name" && requirement(field, Some(node));
    !(expressions.is_empty() && fields.is_empty())
        && expressions.iter().all(|it| requirement(it, labels.get(&it.key).map(String::as_str)))
        && fields.iter().all(is_name)
}

/// Whether the value of a label or field meets a requirement. An unknown operator and a value that is not a number match nothing.
fn requirement(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = value.is_some_and(|value| values.iter().any(|listed| listed == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || match values {
        [bound] => Some(number(value?)?.cmp(&number(bound)?)),
        _ => None,
    };
    match requirement.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(|order| order.is_gt()),
        "Lt" => compared().is_some_and(|order| order.is_lt()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_node_selector_needs_every_label_with_its_value() {
        let labels = Labels::from([("zone".to_owned(), "a".to_owned()), ("disk".to_owned(), String::new())]);
        for (selector, is_match) in [
            (json!({}), true),
            (json!({"zone": "a"}), true),
            (json!({"zone": "a", "disk": ""}), true),
            (json!({"zone": "b"}), false),
            (json!({"zone": "a", "gpu": ""}), false),
        ] {
            let spec = serde_json::from_value(json!({"containers": [], "nodeSelector": selector})).unwrap();
            assert_eq!(matches(&spec, "n", &labels), is_match, "{selector}");
        }
    }

    #[test]
    fn one_term_of_the_required_affinity_matches_with_all_its_requirements() {
        let labels = Labels::from([("zone".to_owned(), "a".to_owned()), ("cores".to_owned(), "8".to_owned())]);
        let expression = |key: &str, operator: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
        let named = |name: &str| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]});
        let both = json!({
            "matchExpressions": [{"key": "zone", "operator": "Exists"}],
            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n"]}],
        });
        for (terms, is_match) in [
            (vec![], false),
            (vec![json!({})], false),
            (vec![expression("zone", "In", &["b", "a"])], true),
            (vec![expression("zone", "In", &["b"])], false),
            (vec![expression("zone", "NotIn", &["b"])], true),
            (vec![expression("zone", "NotIn", &["a"])], false),
            (vec![expression("gpu", "NotIn", &["a"])], true),
            (vec![expression("zone", "Exists", &[])], true),
            (vec![expression("gpu", "Exists", &[])], false),
            (vec![expression("gpu", "DoesNotExist", &[])], true),
            (vec![expression("zone", "DoesNotExist", &[])], false),
            (vec![expression("cores", "Gt", &["7"])], true),
            (vec![expression("cores", "Gt", &["8"])], false),
            (vec![expression("cores", "Lt", &["9"])], true),
            (vec![expression("cores", "Lt", &["many"])], false),
            (vec![expression("zone", "Gt", &["1"])], false),
            (vec![expression("gpu", "Gt", &["1"])], false),
            (vec![expression("zone", "Like", &["a"])], false),
            (vec![named("n")], true),
            (vec![named("m")], false),
            (vec![named("m"), named("n")], true),
            (vec![both], false),
        ] {
            let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
            let spec: Value = json!({"containers": [], "affinity": {"nodeAffinity": required}});
            assert_eq!(matches(&serde_json::from_value(spec).unwrap(), "n", &labels), is_match, "{terms:?}");
        }
    }
}
