//! When the users of a claim must be evicted, and when a pod must be evicted.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use podwright_model::time::Time;

use super::super::names::{NameError, Named};
use super::super::owners::{Owner, extended_claim, is_terminal, node_name, pod_claims};
use super::super::ownership::{NotOwned, belongs_to_pod, is_allocated, is_reserved_for_pod};
use super::api::{EvictionEventKind, ObjectKey, PodId};
use super::cache::Core;
use super::eviction::{Eviction, Reason};
use super::rules::EvictingRule;

/// The devices that are allocated for a claim.
pub(super) fn results(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    allocation.and_then(|allocation| allocation.devices.as_ref()).into_iter().flat_map(|d| d.results.iter().flatten())
}

/// Why a claim of a pod does not count: no taint of its devices can evict the pod.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnusedClaim {
    #[error(transparent)]
    Name(NameError),
    #[error("the pod needs no claim for this entry")]
    NotNeeded,
    #[error("ResourceClaim {0} does not exist")]
    Unknown(ObjectKey),
    #[error(transparent)]
    NotOwned(#[from] NotOwned),
    #[error("no devices are allocated for ResourceClaim {0}")]
    NotAllocated(ObjectKey),
    #[error("ResourceClaim {0} is not reserved for the pod")]
    NotReserved(ObjectKey),
}

impl Core {
    /// When the users of a claim must be evicted.
    pub(super) fn claim_eviction(&self, claim: &ResourceClaim) -> Option<Eviction> {
        self.claim_eviction_by(claim, self.evicting.values())
    }

    /// When the users of a claim must be evicted, by the taints of slices and of these rules.
    pub(super) fn claim_eviction_by<'a>(
        &self,
        claim: &ResourceClaim,
        rules: impl Iterator<Item = &'a EvictingRule> + Clone,
    ) -> Option<Eviction> {
        let mut eviction = None;
        for result in results(claim) {
            let tolerations = result.tolerations.as_deref().unwrap_or_default();
            let pool = self.pools.get(&result.driver, &result.pool);
            for published in pool.map_or(&[][..], |pool| pool.taints(&result.device)) {
                if let Some(at) = published.taint.evicts_at(tolerations) {
                    Eviction::merge(&mut eviction, Eviction::new(at, Reason::Slice(published.source.clone())));
                }
            }
            for rule in rules.clone().filter(|r| r.selector.selects(&result.driver, &result.pool, &result.device)) {
                if let Some(at) = rule.taint.evicts_at(tolerations) {
                    Eviction::merge(&mut eviction, Eviction::new(at, Reason::Rule(rule.id.clone())));
                }
            }
        }
        eviction
    }

    /// Whether the pod may be evicted at all: it has a node, has not ended, and is not being deleted.
    pub(super) fn is_evictable(pod: &Pod) -> bool {
        node_name(pod).is_some() && !is_terminal(pod) && pod.metadata.deletion_timestamp.is_none()
    }

    /// The claims of a pod by the names in its spec, and why a claim does not count.
    pub(super) fn claims_of_pod<'a>(
        &'a self,
        pod: &'a std::sync::Arc<Pod>,
    ) -> impl Iterator<Item = (String, Result<(ObjectKey, &'a ResourceClaim), UnusedClaim>)> {
        let statuses = Owner::Pod(pod.clone()).statuses();
        let named = pod_claims(pod).into_iter().map(move |entry| {
            let named = entry.named(&statuses);
            (entry.name, named)
        });
        let extended = extended_claim(pod).map(|name| {
            let name = name.to_owned();
            ("extended resources".to_owned(), Ok(Named::Claim { name, is_generated: true }))
        });
        named.chain(extended).map(move |(entry, named)| {
            let claim = match named {
                Ok(Named::Claim { name, is_generated }) => self.used_claim(pod, &name, is_generated),
                Ok(Named::NotNeeded) => Err(UnusedClaim::NotNeeded),
                Err(error) => Err(UnusedClaim::Name(error)),
            };
            (entry, claim)
        })
    }

    fn used_claim(
        &self,
        pod: &Pod,
        name: &str,
        is_generated: bool,
    ) -> Result<(ObjectKey, &ResourceClaim), UnusedClaim> {
        let key = ObjectKey::new(pod.metadata.namespace.as_deref().unwrap_or_default(), name);
        let Some(claim) = self.claims.get(&key) else { return Err(UnusedClaim::Unknown(key)) };
        if is_generated {
            belongs_to_pod(claim, pod, self.features())?;
        }
        if !is_allocated(claim) {
            return Err(UnusedClaim::NotAllocated(key));
        }
        if !is_reserved_for_pod(claim, pod, self.features()) {
            return Err(UnusedClaim::NotReserved(key));
        }
        Ok((key, claim))
    }

    /// The claims that a pod uses: allocated, its own if generated, and reserved for it.
    pub(super) fn used_claims<'a>(
        &'a self,
        pod: &'a std::sync::Arc<Pod>,
    ) -> impl Iterator<Item = (ObjectKey, &'a ResourceClaim)> {
        self.claims_of_pod(pod).filter_map(|(_, claim)| claim.ok())
    }

    /// When a pod must be evicted. `of_claim` returns the eviction of a claim.
    pub(super) fn pod_eviction(
        &self,
        pod: &std::sync::Arc<Pod>,
        of_claim: impl Fn(&ObjectKey, &ResourceClaim) -> Option<Eviction>,
    ) -> Option<Eviction> {
        if !Core::is_evictable(pod) {
            return None;
        }
        let mut eviction = None;
        for (key, claim) in self.used_claims(pod) {
            if let Some(of_claim) = of_claim(&key, claim) {
                Eviction::merge(&mut eviction, of_claim);
            }
        }
        eviction
    }

    /// Evaluates the pod that was marked first. Returns whether there was one.
    pub fn evaluate_next(&mut self, now: Time) -> bool {
        let Some(pod) = self.marked.take_first() else { return false };
        self.evaluate(&pod, now);
        true
    }

    /// Evaluates a pod if it is marked.
    pub(super) fn evaluate_marked(&mut self, pod: &ObjectKey, now: Time) {
        if self.marked.take(pod) {
            self.evaluate(pod, now);
        }
    }

    fn evaluate(&mut self, key: &ObjectKey, now: Time) {
        let Some(pod) = self.pods.get(key).cloned() else { return };
        let Some(id) = PodId::of(&pod) else { return };
        if self.pending.was_evicted(&id) {
            return;
        }
        match self.pod_eviction(&pod, |claim, _| self.evictions.get(claim).cloned()) {
            Some(eviction) => self.set_pending(&id, eviction, now),
            None => {
                let Some(former) = self.pending.remove(&id) else { return };
                self.leave_rules(&id, &former, now);
                self.status_later(former.reasons.rules(), now);
                if pod.metadata.deletion_timestamp.is_none() {
                    self.effects.event(&id, EvictionEventKind::Cancellation);
                }
            }
        }
    }

    fn set_pending(&mut self, pod: &PodId, eviction: Eviction, now: Time) {
        self.status_later(eviction.reasons.rules(), now);
        let former = self.pending.insert(pod, eviction.clone());
        if former.as_ref() == Some(&eviction) {
            // The item of the pod is in the queue, in work or held.
            return;
        }
        if let Some(former) = former {
            self.leave_rules(pod, &former, now);
            self.status_later(former.reasons.rules(), now);
        }
        self.effects.pod(eviction.at, pod, now);
    }
}
