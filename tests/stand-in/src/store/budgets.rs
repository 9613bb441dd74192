//! Disruption budgets of evictions, in their simple form: the healthy pods are counted when a pod is evicted.

use serde_json::{Value, json};

use super::Store;
use crate::refusal::Refusal;

impl Store {
    /// Refuses an eviction that a budget does not allow. Source: `pkg/registry/core/pod/storage/eviction.go`.
    ///
    /// # Errors
    ///
    /// 429 if a budget has no disruption left, 500 if more than one budget selects the pod.
    pub(super) fn check_budget(&self, pod: &Value) -> Result<(), Refusal> {
        let is_idle = matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed" | "Pending"));
        if is_idle || !pod["metadata"]["deletionTimestamp"].is_null() {
            return Ok(());
        }
        let in_namespace = |object: &Value| object["metadata"]["namespace"] == pod["metadata"]["namespace"];
        let budgets: Vec<_> = self
            .all("poddisruptionbudgets")
            .filter(|budget| in_namespace(budget) && selects(&budget["spec"]["selector"], pod))
            .collect();
        let budget = match budgets.as_slice() {
            [] => return Ok(()),
            [budget] => budget,
            _ => {
                let message =
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                return Err(Refusal::plain(500, "InternalError", message));
            }
        };
        let pods: Vec<_> = self
            .all("pods")
            .filter(|other| in_namespace(other) && selects(&budget["spec"]["selector"], other))
            .collect();
        let healthy = pods.iter().filter(|pod| is_ready(pod) && pod["metadata"]["deletionTimestamp"].is_null()).count();
        let desired = desired_healthy(&budget["spec"], pods.len());
        if healthy > desired {
            return Ok(());
        }
        let mut refusal =
            Refusal::plain(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.");
        let name = budget["metadata"]["name"].as_str().unwrap_or_default();
        let message = format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently");
        refusal.details = Some(json!({"causes": [{"reason": "DisruptionBudget", "message": message}]}));
        Err(refusal)
    }
}

fn is_ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// The number of pods that a budget keeps. Percentages round up.
fn desired_healthy(spec: &Value, total: usize) -> usize {
    let number = |value: &Value| -> Option<usize> {
        if let Some(text) = value.as_str() {
            let percent: usize = text.strip_suffix('%')?.parse().ok()?;
            return Some((total * percent).div_ceil(100));
        }
        value.as_u64().and_then(|number| usize::try_from(number).ok())
    };
    match (number(&spec["minAvailable"]), number(&spec["maxUnavailable"])) {
        (Some(least), _) => least,
        (None, Some(most)) => total.saturating_sub(most),
        (None, None) => 0,
    }
}

/// Whether a label selector object selects a pod.
fn selects(selector: &Value, pod: &Value) -> bool {
    let label = |key: &str| pod["metadata"]["labels"].get(key);
    let mut labels = selector["matchLabels"].as_object().into_iter().flatten();
    let mut expressions = selector["matchExpressions"].as_array().into_iter().flatten();
    selector.is_object()
        && labels.all(|(key, value)| label(key) == Some(value))
        && expressions.all(|rule| {
            let found = label(rule["key"].as_str().unwrap_or_default());
            let is_listed =
                || found.is_some_and(|found| rule["values"].as_array().is_some_and(|all| all.contains(found)));
            match rule["operator"].as_str().unwrap_or_default() {
                "In" => is_listed(),
                "NotIn" => !is_listed(),
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}
