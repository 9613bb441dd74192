//! The DeviceTaintRules that evict.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::resource::v1beta2::{DeviceTaintRule, DeviceTaintSelector};
use podwright_model::time::Time;

use super::api::{NO_EXECUTE, RuleId};
use super::taints::Taint;

/// A rule with the effect NoExecute.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EvictingRule {
    pub(super) id: RuleId,
    pub(super) selector: Selector,
    pub(super) taint: Taint,
}

/// Which devices a rule selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selector {
    /// A rule without a selector selects nothing.
    Nothing,
    /// All fields that are set must be equal.
    Devices { driver: Option<Box<str>>, pool: Option<Box<str>>, device: Option<Box<str>> },
}

impl Selector {
    pub(super) fn new(selector: Option<&DeviceTaintSelector>) -> Self {
        let field = |field: &Option<String>| field.as_deref().map(Box::from);
        match selector {
            None => Selector::Nothing,
            Some(DeviceTaintSelector { driver, pool, device }) => {
                Selector::Devices { driver: field(driver), pool: field(pool), device: field(device) }
            }
        }
    }

    /// Whether the rule selects each device of each driver.
    pub(super) fn selects_all(&self) -> bool {
        *self == Selector::Devices { driver: None, pool: None, device: None }
    }

    /// Whether the rule selects a device. The device need not be in a slice.
    pub(super) fn selects(&self, driver: &str, pool: &str, device: &str) -> bool {
        let fits = |field: &Option<Box<str>>, name: &str| field.as_deref().is_none_or(|field| field == name);
        match self {
            Selector::Nothing => false,
            Selector::Devices { driver: d, pool: p, device: n } => fits(d, driver) && fits(p, pool) && fits(n, device),
        }
    }
}

/// Prints the selected devices in words.
impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Selector::Devices { driver, pool, device } = self else {
            return f.write_str("no device, because the rule has no deviceSelector");
        };
        let fields = [("device", device), ("pool", pool), ("driver", driver)];
        let set: Vec<_> = fields.iter().filter_map(|(field, name)| Some((field, name.as_deref()?))).collect();
        if set.is_empty() {
            return f.write_str("every device of every driver, because deviceSelector has no fields");
        }
        f.write_str(if device.is_some() { "devices with" } else { "all devices with" })?;
        for (at, (field, name)) in set.iter().enumerate() {
            write!(f, "{} {field} {name:?}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl EvictingRule {
    /// The rule, if its effect is NoExecute. `known` is the rule before the change.
    pub(super) fn new(rule: &DeviceTaintRule, known: Option<&EvictingRule>, now: Time) -> Option<Self> {
        (rule.spec.taint.effect == NO_EXECUTE).then(|| EvictingRule::with(rule, known, now))
    }

    /// The rule as if its effect were NoExecute.
    pub(super) fn pretended(rule: &DeviceTaintRule, now: Time) -> Self {
        EvictingRule::with(rule, None, now)
    }

    fn with(rule: &DeviceTaintRule, known: Option<&EvictingRule>, now: Time) -> Self {
        let id = rule_id(rule);
        let taint = &rule.spec.taint;
        let added = taint.time_added.as_ref().map(|added| Time::from_timestamp(added.0));
        let first_received =
            |key: &str, value: &str| known.filter(|known| known.id == id)?.taint.first_received(key, value);
        let taint = Taint::new(&taint.key, taint.value.as_deref(), added, first_received, now);
        EvictingRule { selector: Selector::new(rule.spec.device_selector.as_ref()), taint, id }
    }
}

/// The identity of a rule.
pub(super) fn rule_id(rule: &DeviceTaintRule) -> RuleId {
    let text = |text: Option<&str>| Arc::from(text.unwrap_or_default());
    RuleId { name: text(rule.metadata.name.as_deref()), uid: text(rule.metadata.uid.as_deref()) }
}
