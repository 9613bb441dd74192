//! Which taints evict a pod and when, what a rule does, and what would keep the pods.

mod rule;
mod text;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use podwright_model::time::Time;
use serde::Serialize;

use super::super::failed_pass::{FailedPass, optional_time, time};
use super::super::owners::{is_terminal, node_name};
use super::api::{ObjectKey, PodId};
use super::cache::Core;
use super::evaluate::results;
use super::eviction::{Eviction, Reason};
use super::item::Item;
use super::limit::CONTINUE_ANNOTATION;
use super::preview::text::{stamp, when};

pub use rule::{RuleExplanation, RuleState};

/// What device taints do to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PodTaintExplanation {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The state.
    pub state: PodTaintState,
    /// The state in one sentence.
    pub detail: String,
    /// When the pod is evicted.
    #[serde(serialize_with = "optional_time", skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// The claims of the pod, with the taints of their devices.
    pub claims: Vec<ClaimTaints>,
    /// What would keep the pod: any of these is enough, unless the sentence says otherwise.
    pub kept_by: Vec<String>,
    /// The failed passes of the pod.
    pub failures: Vec<FailedPass>,
    /// The item of the queue that evicts the pod.
    #[serde(skip)]
    pub item: Option<Item>,
}

/// The state of a pod for the device taint eviction controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub enum PodTaintState {
    /// The controller has not completed its first lists.
    NotSynced,
    /// The pod does not exist, or uses no claims.
    Absent,
    /// The pod has no node, has ended or is being deleted, so that no taint evicts it.
    NotEvictable,
    /// This controller has deleted the pod.
    Evicted,
    /// The eviction of the pod is pending.
    Pending,
    /// The eviction is due, and a limit of evictions holds it.
    Held,
    /// No taint evicts the pod.
    Stays,
}

/// One claim of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ClaimTaints {
    /// The name of the claim in the pod.
    pub entry: String,
    /// The name of the ResourceClaim, if the pod uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Why no taint of the claim can evict the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unused: Option<String>,
    /// The NoExecute taints of the devices of the claim.
    pub taints: Vec<DeviceTaintEffect>,
}

/// What a NoExecute taint of an allocated device does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeviceTaintEffect {
    /// The device, as `DRIVER/POOL/DEVICE`.
    pub device: String,
    /// The taint, as `KEY=VALUE`.
    pub taint: String,
    /// The object that has the taint, such as `DeviceTaintRule r`.
    pub source: String,
    /// The time from which the seconds of tolerations count.
    #[serde(serialize_with = "time")]
    pub since: Time,
    /// When the taint evicts the pod. `None` if it is tolerated for ever.
    #[serde(serialize_with = "optional_time", skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

impl Core {
    /// Explains what device taints do to a pod.
    #[must_use]
    pub fn explain_pod(&self, key: &ObjectKey, now: Time) -> PodTaintExplanation {
        let mut explanation = PodTaintExplanation {
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            state: PodTaintState::Stays,
            detail: String::new(),
            at: None,
            claims: Vec::new(),
            kept_by: Vec::new(),
            failures: Vec::new(),
            item: None,
        };
        let Some(pod) = self.pods.get(key) else {
            let (state, detail) =
                if self.is_synced() { (PodTaintState::Absent, NO_POD) } else { (PodTaintState::NotSynced, NOT_SYNCED) };
            (explanation.state, explanation.detail) = (state, detail.to_owned());
            return explanation;
        };
        explanation.claims = self.claims_of_pod(pod).map(|(entry, claim)| self.explain_claim(entry, claim)).collect();
        let id = PodId::of(pod);
        explanation.item = id.clone().map(Item::Pod);
        // A marked pod is explained as if it were evaluated.
        let eviction = self.pod_eviction(pod, |_, claim| self.claim_eviction(claim));
        let is_evicted = id.as_ref().is_some_and(|id| self.pending.was_evicted(id));
        let (state, detail) = match (self.not_evictable(pod), eviction) {
            _ if is_evicted => (
                PodTaintState::Evicted,
                "This controller has deleted the pod. The pod is still shutting down.".to_owned(),
            ),
            (Some(reason), _) => (PodTaintState::NotEvictable, reason),
            (None, None) => (PodTaintState::Stays, "No taint evicts the pod.".to_owned()),
            (None, Some(eviction)) => {
                explanation.kept_by = self.kept_by(&eviction);
                let (state, at, detail) = self.pending_state(id.as_ref(), &eviction, now);
                explanation.at = Some(at);
                (state, detail)
            }
        };
        (explanation.state, explanation.detail) = (state, detail);
        if !self.is_synced() {
            explanation.state = PodTaintState::NotSynced;
            explanation.detail = format!("{} {NOT_SYNCED}", explanation.detail);
        }
        explanation
    }

    /// Why no taint evicts a pod, whatever its devices are.
    fn not_evictable(&self, pod: &Pod) -> Option<String> {
        if Core::is_evictable(pod) {
            return None;
        }
        Some(match node_name(pod) {
            None => "The pod has no node. Taints do not evict a pod without a node.".to_owned(),
            Some(_) if is_terminal(pod) => "The pod has ended.".to_owned(),
            Some(_) => "The pod is being deleted.".to_owned(),
        })
    }

    /// The state of a pod with an eviction, the time at which it is evicted, and the state in words.
    fn pending_state(&self, pod: Option<&PodId>, eviction: &Eviction, now: Time) -> (PodTaintState, Time, String) {
        let pending = |at| (PodTaintState::Pending, at, format!("The pod is evicted {}.", when(at, now)));
        let due_pod = pod.filter(|_| eviction.at <= now);
        let without_slot = due_pod.map_or(Vec::new(), |pod| self.rules_without_slot(pod, eviction));
        let (Some(pod), Some(rule)) = (pod, without_slot.first()) else { return pending(eviction.at) };
        let due = format!("since {}", stamp(eviction.at));
        let obstacle = self.obstacle(rule);
        match self.eviction_without(pod, &without_slot) {
            None => {
                let detail = format!("The eviction is due {due}. It is held, because {obstacle}.");
                (PodTaintState::Held, eviction.at, detail)
            }
            Some(left) if left.at > now => {
                let (state, at, detail) = pending(left.at);
                (state, at, format!("{detail} The eviction is due {due}, but {obstacle}."))
            }
            Some(_) => pending(eviction.at),
        }
    }

    fn explain_claim(
        &self,
        entry: String,
        claim: Result<(ObjectKey, &ResourceClaim), super::evaluate::UnusedClaim>,
    ) -> ClaimTaints {
        match claim {
            Ok((key, claim)) => {
                let taints = results(claim).flat_map(|result| self.effects_on(result)).collect();
                ClaimTaints { entry, claim: Some(key.name), unused: None, taints }
            }
            Err(unused) => ClaimTaints { entry, claim: None, unused: Some(unused.to_string()), taints: Vec::new() },
        }
    }

    /// What the NoExecute taints of an allocated device do.
    fn effects_on(&self, result: &DeviceRequestAllocationResult) -> Vec<DeviceTaintEffect> {
        let tolerations = result.tolerations.as_deref().unwrap_or_default();
        let device = format!("{}/{}/{}", result.driver, result.pool, result.device);
        let effect = |taint: &super::taints::Taint, source: String| DeviceTaintEffect {
            device: device.clone(),
            taint: taint.to_string(),
            source,
            since: taint.since.time(),
            at: taint.evicts_at(tolerations),
        };
        let selects =
            |selector: &super::rules::Selector| selector.selects(&result.driver, &result.pool, &result.device);
        let rules = self.evicting.values().filter(|rule| selects(&rule.selector));
        let mut effects: Vec<_> =
            rules.map(|rule| effect(&rule.taint, format!("DeviceTaintRule {}", rule.id))).collect();
        let pool = self.pools.get(&result.driver, &result.pool);
        for published in pool.map_or(&[][..], |pool| pool.taints(&result.device)) {
            effects.push(effect(&published.taint, format!("ResourceSlice {}", published.source.slice)));
        }
        effects
    }

    /// What would keep the pods of an eviction.
    fn kept_by(&self, eviction: &Eviction) -> Vec<String> {
        let mut ways = Vec::new();
        for reason in eviction.reasons.iter() {
            ways.push(match reason {
                Reason::Rule(rule) => format!(
                    "DeviceTaintRule {rule} is deleted, or gets another effect than NoExecute or another deviceSelector."
                ),
                Reason::Slice(taint) => format!(
                    "Driver {} removes taint number {} of device {} of pool {} from ResourceSlice {}.",
                    taint.driver, taint.index + 1, taint.device, taint.pool, taint.slice
                ),
            });
        }
        if ways.len() > 1 {
            ways.iter_mut().for_each(|way| *way = format!("{way} (All of these are necessary.)"));
        }
        ways.push(
            "The claim has a toleration of the taint. The tolerations of allocated devices cannot be changed: a toleration in the request of \
             the claim or of its template applies to the next allocation."
                .to_owned(),
        );
        if self.settings.max_evictions_per_rule.is_some() && eviction.reasons.rules().next().is_some() {
            ways.push(format!("A rule reaches its limit before the pod is due, and its annotation {CONTINUE_ANNOTATION} is not raised."));
        }
        ways
    }
}

const NO_POD: &str = "There is no pod of this name that uses ResourceClaims. Device taints evict only such pods. If the pod should use claims, \
                      check the namespace and the name.";
const NOT_SYNCED: &str = "The controller has not completed its first lists, so it evicts no pod yet, and this explanation may be \
                          incomplete.";
