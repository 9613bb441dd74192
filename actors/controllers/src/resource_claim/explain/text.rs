//! Formats an explanation as text.

use std::fmt;

use podwright_model::text::plain;

use super::{ClaimExplanation, ClaimState};

/// The maximum length of a line in bytes. An error contains the message of a server, which is shorter.
const LINE: usize = 8192;

impl ClaimState {
    /// The state in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            ClaimState::Unknown => "not known yet",
            ClaimState::Absent => "the claim does not exist",
            ClaimState::NotAllocated => "no devices are allocated",
            ClaimState::Allocated => "allocated, and reserved for nobody",
            ClaimState::Reserved => "allocated and reserved",
            ClaimState::Deleting => "being deleted",
        }
    }
}

impl fmt::Display for ClaimExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, &format!("{}/{}: {}", self.namespace, self.name, self.state.as_str()))?;
        if let Some(owner) = &self.owner {
            line(f, &format!("  controlled by {owner}"))?;
        }
        if !self.reasons.is_empty() {
            writeln!(f, "\nreasons")?;
        }
        for reason in &self.reasons {
            line(f, &format!("  {}", reason.detail))?;
            line(f, &format!("    released by: {}", reason.released_by))?;
        }
        if !self.consumers.is_empty() {
            writeln!(f, "\nreserved for")?;
        }
        for consumer in &self.consumers {
            line(f, &format!("  {} {}, uid {}: {}", consumer.resource, consumer.name, consumer.uid, consumer.detail))?;
        }
        if !self.failures.is_empty() {
            writeln!(f, "\nfailed passes")?;
        }
        for failure in &self.failures {
            line(f, &format!("  {failure}"))?;
        }
        Ok(())
    }
}

/// Writes one line with control characters escaped, because a terminal may show it.
fn line(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    writeln!(f, "{}", plain(text, LINE))
}
