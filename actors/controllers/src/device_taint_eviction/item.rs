//! The items of the work queue.

use std::fmt;

use super::api::{PodId, RuleId};

/// An item of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Item {
    /// A rule, whose status is to be written.
    Rule(RuleId),
    /// A pod, which is to be deleted.
    Pod(PodId),
}

/// Prints `pod:NAMESPACE/NAME` or `rule:NAME`.
impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Rule(rule) => write!(f, "rule:{rule}"),
            Item::Pod(pod) => write!(f, "pod:{pod}"),
        }
    }
}
