//! Compares the tolerations of a pod with the taints of a node.

use k8s_openapi::api::core::v1::{PodSpec, Taint, Toleration};

/// Whether the pod tolerates every taint that keeps pods from running (`NoExecute`). The other effects concern only the scheduler.
pub(super) fn tolerated(spec: &PodSpec, taints: &[Taint]) -> bool {
    let mut relevant = taints.iter().filter(|taint| taint.effect == "NoExecute");
    relevant.all(|taint| tolerates_taint(spec, taint))
}

/// Whether one of the pod's tolerations matches the taint.
pub fn tolerates_taint(spec: &PodSpec, taint: &Taint) -> bool {
    spec.tolerations.iter().flatten().any(|toleration| tolerates(toleration, taint))
}

/// Whether a toleration matches a taint (upstream `Toleration.ToleratesTaint`, 1.36). An empty key or effect matches all.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if !(effect.is_empty() || effect == taint.effect) || !(key.is_empty() || key == taint.key) {
        return false;
    }
    match text(&toleration.operator).as_str() {
        "" | "Equal" => text(&toleration.value) == text(&taint.value),
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_no_execute_taint_needs_a_toleration() {
        let taint = |key: &str, value: &str, effect: &str| Taint {
            key: key.to_owned(),
            value: Some(value.to_owned()),
            effect: effect.to_owned(),
            time_added: None,
        };
        let drain = [taint("drain", "now", "NoExecute")];
        for (tolerations, taints, expected) in [
            (json!([]), &[][..], true),
            (json!([]), &[taint("drain", "now", "NoSchedule")], true),
            (json!([]), &drain, false),
            (json!([{"operator": "Exists"}]), &drain, true),
            (json!([{"key": "drain", "operator": "Exists"}]), &drain, true),
            (json!([{"key": "drain", "operator": "Exists", "effect": "NoSchedule"}]), &drain, false),
            (json!([{"key": "drain", "value": "now", "effect": "NoExecute"}]), &drain, true),
            (json!([{"key": "drain", "operator": "Equal", "value": "later"}]), &drain, false),
            (json!([{"key": "other", "operator": "Exists"}]), &drain, false),
            (json!([{"key": "drain", "operator": "Gt", "value": "1"}]), &drain, false),
            (
                json!([{"key": "drain", "operator": "Exists"}]),
                &[taint("drain", "now", "NoExecute"), taint("more", "", "NoExecute")],
                false,
            ),
        ] {
            let spec = serde_json::from_value(json!({"containers": [], "tolerations": tolerations})).unwrap();
            assert_eq!(tolerated(&spec, taints), expected, "{tolerations} {taints:?}");
        }
    }
}
