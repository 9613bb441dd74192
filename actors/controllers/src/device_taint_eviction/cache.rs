//! The known objects, and what follows from them.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use podwright_model::time::Time;

use super::super::resource_claim::Features;
use super::super::table::{Index, Table};
use super::api::{ObjectKey, PodId, RuleId};
use super::effects::Effects;
use super::eviction::Eviction;
use super::limit::RuleRecord;
use super::pending::{MarkedPods, PendingEvictions};
use super::pools::{PoolKey, Pools};
use super::rules::{EvictingRule, rule_id};

/// The delay after which the status of a rule is written when its pods change. It is also the shortest time between two such writes.
pub(super) const STATUS_DELAY: Duration = Duration::from_secs(10);

/// The feature gates of the controller, and the limit of evictions for a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `DRADeviceTaintRules`: DeviceTaintRules evict.
    pub rules: bool,
    /// `DRAWorkloadResourceClaims`: pod groups have claims.
    pub pod_groups: bool,
    /// The largest number of evictions for a rule. `None` if there is no limit.
    pub max_evictions_per_rule: Option<NonZeroU64>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { rules: true, pod_groups: false, max_evictions_per_rule: None }
    }
}

/// What the controller knows. The owner locks it for each event, evaluation and step, and awaits nothing meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Core {
    pub(super) settings: Settings,
    pub(super) pods: Table<Pod>,
    pub(super) claims: Table<ResourceClaim>,
    pub(super) slices: Table<ResourceSlice>,
    pub(super) rules: Table<DeviceTaintRule>,
    pub(super) pools: Pools,
    /// The rules with the effect NoExecute, by name.
    pub(super) evicting: BTreeMap<Arc<str>, EvictingRule>,
    pub(super) records: BTreeMap<RuleId, RuleRecord>,
    pub(super) pods_by_group: Index<ObjectKey>,
    pub(super) claims_by_pool: Index<PoolKey>,
    /// The evictions of the users of allocated claims.
    pub(super) evictions: HashMap<ObjectKey, Eviction>,
    pub(super) pending: PendingEvictions,
    /// The pods that must be evaluated.
    pub(super) marked: MarkedPods,
    /// The rules whose waiting pods may have slots since the last effects were taken, and from when on.
    pub(super) released: BTreeMap<RuleId, Time>,
    pub(super) effects: Effects,
}

impl Core {
    /// A core without objects.
    pub fn new(settings: Settings) -> Self {
        Core { settings, ..Core::default() }
    }

    /// Whether each watch has completed its first list. No item may be worked on before.
    pub fn is_synced(&self) -> bool {
        let has_rules = !self.settings.rules || self.rules.is_synced();
        self.pods.is_synced() && self.claims.is_synced() && self.slices.is_synced() && has_rules
    }

    /// Takes what the caller has to queue and to record.
    pub fn take_effects(&mut self) -> Effects {
        for (rule, not_before) in std::mem::take(&mut self.released) {
            self.queue_waiting(&rule, not_before);
        }
        let mut effects = std::mem::take(&mut self.effects);
        effects.pods.sort_unstable();
        effects
    }

    /// Whether there are effects to take, or pods to evaluate.
    pub fn has_work(&self) -> bool {
        !self.effects.is_empty() || !self.released.is_empty() || !self.marked.is_empty()
    }

    /// The pods that wait for their eviction, sorted.
    pub fn pending(&self) -> BTreeMap<PodId, Eviction> {
        self.pending.iter().map(|(pod, eviction)| (pod.clone(), eviction.clone())).collect()
    }

    /// The number of pods that wait for their eviction.
    pub fn pending_pods(&self) -> usize {
        self.pending.len()
    }

    /// The number of pods that must be evaluated.
    pub fn marked_pods(&self) -> usize {
        self.marked.len()
    }

    /// The evictions of claims, sorted.
    pub fn claim_evictions(&self) -> BTreeMap<ObjectKey, Eviction> {
        self.evictions.iter().map(|(claim, eviction)| (claim.clone(), eviction.clone())).collect()
    }

    /// The number of slices of each known pool.
    pub fn pools(&self) -> BTreeMap<PoolKey, usize> {
        self.pools.sizes()
    }

    /// The known rule of this UID.
    pub(super) fn rule(&self, id: &RuleId) -> Option<&Arc<DeviceTaintRule>> {
        self.rules.get(&ObjectKey::new("", &id.name)).filter(|rule| rule_id(rule) == *id)
    }

    /// The feature gates for the functions that this controller shares with the ResourceClaim controller.
    pub(super) fn features(&self) -> Features {
        Features { pod_groups: self.settings.pod_groups, ..Features::default() }
    }

    /// Queues the writes of the statuses of these rules, due after [`STATUS_DELAY`].
    pub(super) fn status_later<'a>(&mut self, rules: impl Iterator<Item = &'a RuleId>, now: Time) {
        for rule in rules {
            self.effects.rule_at(rule, now + STATUS_DELAY);
        }
    }
}
