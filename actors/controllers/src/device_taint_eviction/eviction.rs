//! When a pod must be evicted, and which taints are the reasons.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use podwright_model::time::Time;

use super::api::RuleId;

/// A taint of a device in a ResourceSlice.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceTaint {
    /// The driver of the pool.
    pub driver: Box<str>,
    /// The pool.
    pub pool: Box<str>,
    /// The device.
    pub device: Box<str>,
    /// The index of the taint in the list of the device.
    pub index: usize,
    /// The slice.
    pub slice: Box<str>,
}

/// A taint that contributes to an eviction. In the order of reasons, rules come before slices.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The taint of a DeviceTaintRule.
    Rule(RuleId),
    /// The taint of a device in a slice.
    Slice(Arc<SliceTaint>),
}

/// Prints the object that has the taint, such as `DeviceTaintRule r`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Rule(rule) => write!(f, "DeviceTaintRule {rule}"),
            Reason::Slice(taint) => {
                let SliceTaint { driver, pool, device, index, slice } = &**taint;
                write!(f, "ResourceSlice {slice}, taint {index} of device {driver}/{pool}/{device}")
            }
        }
    }
}

/// The reasons of an eviction: at least one, each once, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasons(BTreeSet<Reason>);

impl Reasons {
    /// The reasons in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Reason> {
        self.0.iter()
    }

    /// The rules among the reasons.
    pub fn rules(&self) -> impl Iterator<Item = &RuleId> {
        self.0.iter().filter_map(|reason| match reason {
            Reason::Rule(rule) => Some(rule),
            Reason::Slice(_) => None,
        })
    }

    /// Whether a rule is among the reasons.
    pub fn names(&self, rule: &RuleId) -> bool {
        self.rules().any(|other| other == rule)
    }
}

/// Prints the reasons in their order.
impl fmt::Display for Reasons {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, reason) in self.0.iter().enumerate() {
            write!(f, "{}{reason}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// When a pod or the users of a claim must be evicted, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The earliest time at which one of the reasons evicts.
    pub at: Time,
    /// All reasons, also those that would evict later.
    pub reasons: Reasons,
}

impl Eviction {
    /// The eviction for one reason.
    pub(super) fn new(at: Time, reason: Reason) -> Self {
        Eviction { at, reasons: Reasons(BTreeSet::from([reason])) }
    }

    /// The eviction for all reasons of both.
    pub(super) fn merge(into: &mut Option<Eviction>, other: Eviction) {
        match into {
            None => *into = Some(other),
            Some(eviction) => {
                eviction.at = eviction.at.min(other.at);
                eviction.reasons.0.extend(other.reasons.0);
            }
        }
    }
}
