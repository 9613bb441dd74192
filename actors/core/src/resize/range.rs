//! The smallest and the largest of several possible values.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::allocation::{Bounds, same};
use super::decide::amount;
use crate::quantity::Amount;

/// A value of several amounts, which are compared one by one.
pub trait Range: Clone {
    /// Whether each amount is equal.
    fn is_same(&self, other: &Self) -> bool;

    /// The smaller one of each amount.
    fn smaller(&self, other: &Self) -> Self;

    /// The larger one of each amount.
    fn larger(&self, other: &Self) -> Self;
}

impl Range for ResourceRequirements {
    fn is_same(&self, other: &Self) -> bool {
        same(Some(self), Some(other))
    }

    fn smaller(&self, other: &Self) -> Self {
        choose(self, other, |own, other| other < own)
    }

    fn larger(&self, other: &Self) -> Self {
        choose(self, other, |own, other| other > own)
    }
}

/// A request or a limit, in its order. A missing request is the smallest one, and a missing limit is the largest one.
type Rank = (bool, Option<Amount>);

/// The resources `one`, with those amounts of `other` for which `is_chosen` returns true.
fn choose(
    one: &ResourceRequirements,
    other: &ResourceRequirements,
    is_chosen: fn(Rank, Rank) -> bool,
) -> ResourceRequirements {
    type List = Option<BTreeMap<String, Quantity>>;
    let rank = |of: &ResourceRequirements, requirement: &str, name: &str| {
        let amount = amount(Some(of), requirement, name);
        (requirement == "limits" && amount.is_none(), amount)
    };
    let list = |requirement: &str, own: &List, others: &List| -> List {
        let mut list = own.clone().unwrap_or_default();
        let names = own.iter().chain(others).flatten().map(|(name, _)| name);
        for name in names.filter(|name| is_chosen(rank(one, requirement, name), rank(other, requirement, name))) {
            match others.as_ref().and_then(|others| others.get(name)) {
                Some(quantity) => list.insert(name.clone(), quantity.clone()),
                None => list.remove(name),
            };
        }
        (!list.is_empty()).then_some(list)
    };
    ResourceRequirements {
        claims: one.claims.clone(),
        limits: list("limits", &one.limits, &other.limits),
        requests: list("requests", &one.requests, &other.requests),
    }
}

/// A missing limit of a cgroup comes first, as in the order of the steps.
impl Range for Bounds {
    fn is_same(&self, other: &Self) -> bool {
        self == other
    }

    fn smaller(&self, other: &Self) -> Self {
        Bounds {
            cpu_request: self.cpu_request.min(other.cpu_request),
            cpu_limit: self.cpu_limit.min(other.cpu_limit),
            memory_limit: self.memory_limit.min(other.memory_limit),
        }
    }

    fn larger(&self, other: &Self) -> Self {
        Bounds {
            cpu_request: self.cpu_request.max(other.cpu_request),
            cpu_limit: self.cpu_limit.max(other.cpu_limit),
            memory_limit: self.memory_limit.max(other.memory_limit),
        }
    }
}
