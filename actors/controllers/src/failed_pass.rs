//! The failed passes of an item of the queue, as explanations show them.

use std::fmt;

use podwright_model::time::Time;
use serde::{Serialize, Serializer};

/// A pass that fails and is repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct FailedPass {
    /// The item of the queue, such as `pod:shop/web`.
    pub item: String,
    /// When the first pass failed.
    #[serde(serialize_with = "time")]
    pub since: Time,
    /// The number of failed passes.
    pub tries: u32,
    /// When the next pass is due. `None` while it runs.
    #[serde(serialize_with = "optional_time", skip_serializing_if = "Option::is_none")]
    pub next: Option<Time>,
    /// The error of the last pass.
    pub error: String,
}

impl FailedPass {
    /// The failures of an item of the queue.
    pub fn new(item: &impl fmt::Display, since: Time, tries: u32, next: Option<Time>, error: String) -> Self {
        FailedPass { item: item.to_string(), since, tries, next, error }
    }
}

/// Prints the failures in one line, with times in whole seconds.
impl fmt::Display for FailedPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tries = if self.tries == 1 { "1 try".to_owned() } else { format!("{} tries", self.tries) };
        let next = self.next.map_or_else(|| "now".to_owned(), |next| format!("at {:.0}", next.to_timestamp()));
        write!(f, "{}: {tries} since {:.0}, next {next}: {}", self.item, self.since.to_timestamp(), self.error)
    }
}

/// Serializes a time as text.
pub(super) fn time<S: Serializer>(at: &Time, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&at.to_timestamp())
}

/// Serializes a time as text, if there is one.
pub(super) fn optional_time<S: Serializer>(at: &Option<Time>, to: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => time(at, to),
        None => to.serialize_none(),
    }
}
