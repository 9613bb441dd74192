//! What a rule does to pods, or would do: the devices that it selects, and the pods that use them.

pub(super) mod text;

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use podwright_model::time::Time;
use serde::Serialize;

use super::super::failed_pass::{optional_time, time};
use super::super::owners::{node_name, object_key};
use super::api::{NO_EXECUTE, ObjectKey};
use super::cache::Core;
use super::evaluate::results;
use super::pools::PoolKey;
use super::rules::{EvictingRule, Selector};

/// What a rule does, or would do if its effect were NoExecute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RulePreview {
    /// The name of the rule.
    pub rule: String,
    /// The taint, such as `key=value:NoExecute`.
    pub taint: String,
    /// The time from which the seconds of tolerations count.
    #[serde(serialize_with = "time")]
    pub since: Time,
    /// Whether the effect evicts pods. Otherwise the pods are those that the effect NoExecute would evict.
    pub evicts: bool,
    /// The devices that the rule selects, in words.
    pub selects: String,
    /// Whether the rule selects each device of each driver.
    pub selects_all: bool,
    /// The selected devices, sorted.
    pub devices: Vec<PreviewedDevice>,
    /// The number of allocations of these devices, as in the status of the rule: a device that two claims have counts twice.
    pub allocations: usize,
    /// The pods that the rule evicts, in the order of their evictions.
    pub pods: Vec<PreviewedPod>,
    /// The pods that use a selected device and stay, because they tolerate the taint for ever.
    pub tolerating: Vec<ObjectName>,
    /// The number of namespaces of the evicted pods.
    pub namespaces: usize,
    /// The time of the preview.
    #[serde(serialize_with = "time")]
    pub now: Time,
}

/// A device that a rule selects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PreviewedDevice {
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// The name.
    pub device: String,
    /// Whether a current ResourceSlice has the device.
    pub is_published: bool,
    /// The claims that the device is allocated for.
    pub claims: Vec<ObjectName>,
}

/// A namespace and a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ObjectName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl From<ObjectKey> for ObjectName {
    fn from(key: ObjectKey) -> Self {
        ObjectName { namespace: key.namespace, name: key.name }
    }
}

/// A pod that a rule evicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PreviewedPod {
    /// The pod.
    #[serde(flatten)]
    pub pod: ObjectName,
    /// The node.
    pub node: String,
    /// The priority.
    pub priority: i32,
    /// When the pod is evicted. It is evicted at once if this time has passed.
    #[serde(serialize_with = "time")]
    pub at: Time,
    /// When other taints evict the pod in any case.
    #[serde(serialize_with = "optional_time", skip_serializing_if = "Option::is_none")]
    pub in_any_case_at: Option<Time>,
    /// Whether the eviction is due, and the limit of a rule holds the pod. Only a running controller knows that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_held: bool,
}

/// The objects that a rule selects.
pub(super) struct Selected<'a> {
    pub(super) published: Vec<(&'a PoolKey, &'a str)>,
    pub(super) allocated: Vec<(&'a ResourceClaim, &'a DeviceRequestAllocationResult)>,
    /// The pods that use a selected device and may be evicted, with the time at which the rule evicts them. `None` if a pod tolerates the
    /// taint for ever.
    pub(super) users: Vec<(&'a Arc<Pod>, Option<Time>)>,
}

impl Core {
    /// What a rule would do if it were applied now in place of the known rule of its name. The rule need not be known.
    #[must_use]
    pub fn preview(&self, rule: &DeviceTaintRule, now: Time) -> RulePreview {
        let evicting = EvictingRule::pretended(&self.with_time(rule), now);
        let selected = self.selected_by(&evicting);
        let mut devices: Vec<PreviewedDevice> = Vec::new();
        let mut add = |driver: &str, pool: &str, device: &str, claim: Option<ObjectName>| {
            let (driver, pool, device) = (driver.to_owned(), pool.to_owned(), device.to_owned());
            let claims = claim.iter().cloned().collect();
            devices.push(PreviewedDevice { driver, pool, device, is_published: claim.is_none(), claims });
        };
        selected.published.iter().for_each(|(pool, device)| add(&pool.driver, &pool.pool, device, None));
        for (claim, result) in &selected.allocated {
            let claim = object_key(&claim.metadata).into();
            add(&result.driver, &result.pool, &result.device, Some(claim));
        }
        let mut pods = Vec::new();
        let mut tolerating = Vec::new();
        for (pod, at) in &selected.users {
            let name = ObjectName::from(object_key(&pod.metadata));
            let Some(at) = *at else {
                tolerating.push(name);
                continue;
            };
            let in_any_case_at = self.without(pod, &evicting.id.name);
            let at = in_any_case_at.map_or(at, |other| at.min(other));
            let node = node_name(pod).unwrap_or_default().to_owned();
            let priority = pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0);
            pods.push(PreviewedPod { pod: name, node, priority, at, in_any_case_at, is_held: false });
        }
        pods.sort_by(|a, b| (a.at, &a.pod).cmp(&(b.at, &b.pod)));
        tolerating.sort();
        let namespaces: BTreeSet<_> = pods.iter().map(|pod| &pod.pod.namespace).collect();
        let effect = &rule.spec.taint.effect;
        RulePreview {
            rule: evicting.id.name.to_string(),
            taint: format!("{}:{effect}", evicting.taint),
            since: evicting.taint.since.time(),
            evicts: effect == NO_EXECUTE,
            selects: evicting.selector.to_string(),
            selects_all: evicting.selector.selects_all(),
            devices: merged(devices),
            allocations: selected.allocated.len(),
            namespaces: namespaces.len(),
            pods,
            tolerating,
            now,
        }
    }

    /// The rule with the time of its taint: the known one, or else the time that the API server sets when the rule is applied.
    fn with_time(&self, rule: &DeviceTaintRule) -> DeviceTaintRule {
        let mut timed = rule.clone();
        let taint = &mut timed.spec.taint;
        let name = rule.metadata.name.as_deref().unwrap_or_default();
        let Some(known) = self.rules.get(&ObjectKey::new("", name)) else { return timed };
        let is_same_effect = known.spec.taint.effect == taint.effect;
        if is_same_effect && taint.time_added.is_none() {
            let seen = self.evicting.get(name).map(|known| known.taint.since.time().to_api());
            taint.time_added = known.spec.taint.time_added.clone().or(seen);
        } else if !is_same_effect && taint.time_added == known.spec.taint.time_added {
            taint.time_added = None;
        }
        timed
    }

    /// The objects that a rule selects.
    pub(super) fn selected_by(&self, rule: &EvictingRule) -> Selected<'_> {
        let selects = |result: &DeviceRequestAllocationResult| {
            rule.selector.selects(&result.driver, &result.pool, &result.device)
        };
        let mut selected =
            Selected { published: self.published(&rule.selector), allocated: Vec::new(), users: Vec::new() };
        let mut users = BTreeSet::new();
        for claim in self.claims.iter() {
            let before = selected.allocated.len();
            selected.allocated.extend(results(claim).filter(|result| selects(result)).map(|result| (&**claim, result)));
            if selected.allocated.len() > before {
                self.add_users(claim, &mut users);
            }
        }
        for pod in users.iter().filter_map(|pod| self.pods.get(pod)).filter(|pod| Core::is_evictable(pod)) {
            let used: Vec<_> =
                self.used_claims(pod).flat_map(|(_, claim)| results(claim)).filter(|r| selects(r)).collect();
            if !used.is_empty() {
                let times =
                    used.iter().filter_map(|r| rule.taint.evicts_at(r.tolerations.as_deref().unwrap_or_default()));
                selected.users.push((pod, times.min()));
            }
        }
        selected
    }

    /// When the slices and all rules but one evict a pod.
    fn without(&self, pod: &Arc<Pod>, rule: &str) -> Option<Time> {
        let others = || self.evicting.values().filter(|other| *other.id.name != *rule);
        self.pod_eviction(pod, |_, claim| self.claim_eviction_by(claim, others())).map(|eviction| eviction.at)
    }

    /// The published devices that a selector selects.
    fn published(&self, selector: &Selector) -> Vec<(&PoolKey, &str)> {
        let of_pool = |(key, pool)| {
            let (key, pool): (&PoolKey, &super::pools::Pool) = (key, pool);
            pool.devices()
                .filter(|device| selector.selects(&key.driver, &key.pool, device))
                .map(move |device| (key, device))
        };
        self.pools.iter().flat_map(of_pool).collect()
    }
}

/// Sorts the devices, and merges those with the same name.
fn merged(mut devices: Vec<PreviewedDevice>) -> Vec<PreviewedDevice> {
    devices.sort();
    let mut merged: Vec<PreviewedDevice> = Vec::with_capacity(devices.len());
    for device in devices {
        match merged.last_mut() {
            Some(last)
                if (&last.driver, &last.pool, &last.device) == (&device.driver, &device.pool, &device.device) =>
            {
                last.is_published |= device.is_published;
                last.claims.extend(device.claims);
                last.claims.sort();
                last.claims.dedup();
            }
            _ => merged.push(device),
        }
    }
    merged
}
