//! What a rule does.

use std::sync::Arc;

use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use podwright_model::time::Time;
use serde::Serialize;

use super::super::super::failed_pass::FailedPass;
use super::super::api::{NO_EXECUTE, ObjectKey, PodId, RuleId};
use super::super::cache::Core;
use super::super::item::Item;
use super::super::limit::{CONTINUE_ANNOTATION, annotation_problem};
use super::super::preview::RulePreview;
use super::super::rules::rule_id;
use super::super::status::{RuleCounts, plural};
use super::{NOT_SYNCED, PodTaintState};

/// What a DeviceTaintRule does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RuleExplanation {
    /// The name.
    pub name: String,
    /// The state.
    pub state: RuleState,
    /// The state in one sentence.
    pub detail: String,
    /// The pods of the rule.
    pub counts: RuleCounts,
    /// The largest number of evictions, if there is a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The evictions that count for the limit, with those of earlier leaders. `None` if there is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<u64>,
    /// The devices and pods of the rule. `None` if the rule is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preview: Option<RulePreview>,
    /// What would keep the pods.
    pub kept_by: Vec<String>,
    /// The failed passes of the rule.
    pub failures: Vec<FailedPass>,
    /// The item of the queue that writes the status of the rule.
    #[serde(skip)]
    pub item: Option<Item>,
}

/// The state of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum RuleState {
    /// The controller has not completed its first lists.
    NotSynced,
    /// The feature gate for rules is off, so that no rule evicts.
    Off,
    /// The rule does not exist.
    Absent,
    /// The effect of the rule evicts no pod.
    NeverEvicts,
    /// Pods wait for their eviction.
    InProgress,
    /// Pods wait, and the limit of evictions is reached.
    AtLimit,
    /// No pod waits for its eviction.
    Idle,
}

impl Core {
    /// Explains what a rule does.
    #[must_use]
    pub fn explain_rule(&self, name: &str, now: Time) -> RuleExplanation {
        let mut explanation = RuleExplanation {
            name: name.to_owned(),
            state: RuleState::Absent,
            detail: "The rule does not exist. Check the name.".to_owned(),
            counts: RuleCounts::default(),
            limit: None,
            counted: None,
            preview: None,
            kept_by: Vec::new(),
            failures: Vec::new(),
            item: None,
        };
        if !self.settings.rules {
            explanation.state = RuleState::Off;
            explanation.detail =
                "Rules evict no pods: the feature gate DRADeviceTaintRules of this controller is off.".to_owned();
            return explanation;
        }
        let known = self.rules.get(&ObjectKey::new("", name)).cloned();
        if let Some(rule) = &known {
            self.explain_known(rule, &mut explanation, now);
        }
        if !self.is_synced() {
            explanation.state = RuleState::NotSynced;
            explanation.detail = match known {
                Some(_) => format!("{} {NOT_SYNCED}", explanation.detail),
                None => NOT_SYNCED.to_owned(),
            };
        }
        explanation
    }

    fn explain_known(&self, rule: &Arc<DeviceTaintRule>, explanation: &mut RuleExplanation, now: Time) {
        let id = rule_id(rule);
        let (counts, effect) = (self.rule_counts(&id), &rule.spec.taint.effect);
        explanation.preview = Some(self.preview_with_held(rule, now));
        explanation.limit = self.limit_of(rule);
        explanation.counted = explanation.limit.map(|_| self.counted_evictions(&id, now).counted);
        explanation.counts = counts;
        (explanation.state, explanation.detail) = if effect != NO_EXECUTE {
            (RuleState::NeverEvicts, format!("The effect {effect} evicts no pod."))
        } else if counts.pending == 0 {
            (RuleState::Idle, "No pod waits for its eviction by this rule.".to_owned())
        } else {
            let pods = plural(counts.pending, "pod waits", "pods wait");
            let namespaces = plural(counts.namespaces, "namespace", "namespaces");
            let detail = format!("{pods} in {namespaces} for the eviction by this rule.");
            if self.is_stopped(&id) {
                let raise = format!(
                    "{detail} The limit is reached: raise it with the annotation {CONTINUE_ANNOTATION} of the rule."
                );
                (RuleState::AtLimit, raise)
            } else if self.must_store_count(&id) && self.waiting_pods(&id) > 0 {
                let held = plural(self.waiting_pods(&id), "pod is held", "pods are held");
                let store = "until the controller has stored the number of evictions in the status of the rule";
                (RuleState::InProgress, format!("{detail} {held} {store}."))
            } else {
                (RuleState::InProgress, detail)
            }
        };
        if let Some(problem) = explanation.limit.and_then(|_| annotation_problem(rule)) {
            explanation.detail = format!("{} Note that {problem}.", explanation.detail);
        }
        if counts.pending > 0 {
            explanation.kept_by = ways_to_keep(&id);
        }
        explanation.item = Some(Item::Rule(id));
    }

    /// The preview of a known rule, with the pods that a limit holds, and those that go later by another taint because of the limit.
    fn preview_with_held(&self, rule: &Arc<DeviceTaintRule>, now: Time) -> RulePreview {
        let (id, mut preview) = (rule_id(rule), self.preview(rule, now));
        for row in preview.pods.iter_mut().filter(|row| row.at <= now) {
            let key = ObjectKey::new(&row.pod.namespace, &row.pod.name);
            let Some(pod) = self.pods.get(&key).and_then(|pod| PodId::of(pod)) else { continue };
            let Some(eviction) = self.pending.get(&pod).filter(|pending| pending.reasons.names(&id)) else { continue };
            let (state, at, _) = self.pending_state(Some(&pod), eviction, now);
            row.is_held = state == PodTaintState::Held;
            if !row.is_held {
                row.at = at;
            }
        }
        preview.pods.sort_by(|a, b| (a.at, &a.pod).cmp(&(b.at, &b.pod)));
        preview
    }
}

fn ways_to_keep(rule: &RuleId) -> Vec<String> {
    vec![
        format!("DeviceTaintRule {rule} is deleted, or gets another effect than NoExecute. It cancels the evictions that are pending."),
        "The deviceSelector of the rule selects other devices.".to_owned(),
        "The claims tolerate the taint. The tolerations of allocated devices cannot be changed: a toleration in the request of a claim or \
         of its template applies to the next allocation."
            .to_owned(),
    ]
}
