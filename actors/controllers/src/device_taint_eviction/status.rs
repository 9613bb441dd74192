//! The conditions of a rule.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use podwright_model::time::Time;
use serde::Serialize;

use super::api::{NO_EFFECT, NO_EXECUTE, RuleId};
use super::cache::Core;
use super::limit::{CONTINUE_ANNOTATION, LIMIT_CONDITION, annotation_problem};
use super::rule_pass::condition;
use super::rules::{EvictingRule, rule_id};

/// The type of the condition that says whether a rule evicts pods.
pub const IN_PROGRESS_CONDITION: &str = "EvictionInProgress";

/// The pods of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleCounts {
    /// The pods whose pending eviction names the rule.
    pub pending: u64,
    /// The namespaces of these pods.
    pub namespaces: u64,
    /// The pods that were evicted for the rule since the start of the controller.
    pub evicted: u64,
}

/// How many devices a rule selects, and how many pods it would evict if its effect were NoExecute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hits {
    pub(super) published: u64,
    pub(super) allocated: u64,
    pub(super) pods: u64,
    pub(super) namespaces: u64,
}

impl Core {
    /// Counts the pods of a rule.
    pub fn rule_counts(&self, rule: &RuleId) -> RuleCounts {
        let mut namespaces = BTreeSet::new();
        let mut pending = 0;
        for (pod, _) in self.pending.iter().filter(|(_, eviction)| eviction.reasons.names(rule)) {
            pending += 1;
            namespaces.insert(&pod.key.namespace);
        }
        let evicted = self.records.get(rule).map_or(0, |record| record.evicted);
        RuleCounts { pending, namespaces: namespaces.len() as u64, evicted }
    }

    /// The conditions that the status of a rule should have.
    pub(super) fn conditions(&self, rule: &DeviceTaintRule, now: Time) -> Vec<Condition> {
        let id = rule_id(rule);
        let counts = self.rule_counts(&id);
        let mut pieces = Vec::new();
        let (status, reason) = match rule.spec.taint.effect.as_str() {
            NO_EXECUTE if counts.pending > 0 => {
                let pods = plural(counts.pending, "pod", "pods");
                let namespaces = plural(counts.namespaces, "namespace", "namespaces");
                pieces.push(format!("{pods} pending eviction in {namespaces}"));
                ("True", "PodsPendingEviction")
            }
            NO_EXECUTE if counts.evicted > 0 => ("False", "Completed"),
            NO_EXECUTE => ("False", "NotStarted"),
            NO_EFFECT => {
                pieces.push(self.hits(rule, now).to_string());
                ("False", "NoEffect")
            }
            _ => {
                pieces.push("this effect never evicts".to_owned());
                ("False", "OtherEffect")
            }
        };
        if counts.evicted > 0 {
            pieces.push(format!("{} evicted since controller start", plural(counts.evicted, "pod", "pods")));
        }
        let new = |type_: &str, status: &str, reason: &str, message: String| Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            observed_generation: rule.metadata.generation,
            last_transition_time: Time::from_secs(now.as_nanos() / 1_000_000_000).to_api(),
        };
        // The time of this condition also limits how often the status is written, so it is that of the write.
        let mut conditions = vec![new(IN_PROGRESS_CONDITION, status, reason, pieces.join("; "))];
        if let Some(limit) = self.limit_of(rule) {
            let counted = self.counted_evictions(&id, now);
            let mut pieces = vec![counted.to_string()];
            let stored = condition(rule, LIMIT_CONDITION);
            let is_reached = self.is_at_limit(&id);
            if is_reached {
                pieces.push(format!("the limit of {} is reached", plural(limit, "eviction", "evictions")));
                pieces.push(format!(
                    "to go on, set the annotation {CONTINUE_ANNOTATION} of the rule to the number of pods that may be evicted in all"
                ));
            }
            pieces.extend(annotation_problem(rule));
            let (status, reason) = if is_reached { ("True", "LimitReached") } else { ("False", "BelowLimit") };
            if counted.all() > 0 || stored.is_some() {
                let mut condition = new(LIMIT_CONDITION, status, reason, pieces.join("; "));
                if let Some(stored) = stored.filter(|stored| stored.status == status) {
                    condition.last_transition_time = stored.last_transition_time.clone();
                }
                conditions.push(condition);
            }
        }
        conditions
    }

    /// Counts what a rule selects, and what it would evict if its effect were NoExecute and no other rule existed.
    fn hits(&self, rule: &DeviceTaintRule, now: Time) -> Hits {
        let rule = EvictingRule::pretended(rule, now);
        let selected = self.selected_by(&rule);
        let evicted = || selected.users.iter().filter(|(_, at)| at.is_some()).map(|(pod, _)| pod);
        let namespaces: BTreeSet<_> = evicted().map(|pod| &pod.metadata.namespace).collect();
        Hits {
            published: selected.published.len() as u64,
            allocated: selected.allocated.len() as u64,
            pods: evicted().count() as u64,
            namespaces: namespaces.len() as u64,
        }
    }
}

impl std::fmt::Display for Hits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let published = plural(self.published, "published device matches", "published devices match");
        let allocated = plural(self.allocated, "allocated device matches", "allocated devices match");
        let pods = plural(self.pods, "pod", "pods");
        let namespaces = plural(self.namespaces, "namespace", "namespaces");
        write!(
            f,
            "{published}; {allocated}; {pods} in {namespaces} would be evicted under NoExecute; refreshed only when the spec changes"
        )
    }
}

/// A number with its noun.
pub(super) fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
