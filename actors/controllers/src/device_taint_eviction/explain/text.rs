//! Formats explanations as text.

use std::fmt;

use super::super::preview::text::{line, stamp};
use super::{ClaimTaints, DeviceTaintEffect, FailedPass, PodTaintExplanation, RuleExplanation};

impl fmt::Display for PodTaintExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, &format!("{}/{}: {}", self.namespace, self.name, self.detail))?;
        if !self.claims.is_empty() {
            writeln!(f, "\nclaims")?;
        }
        for claim in &self.claims {
            write_claim(f, claim)?;
        }
        write_end(f, &self.kept_by, &self.failures)
    }
}

fn write_claim(f: &mut fmt::Formatter<'_>, claim: &ClaimTaints) -> fmt::Result {
    let entry = &claim.entry;
    match (&claim.claim, &claim.unused) {
        (Some(name), _) if claim.taints.is_empty() => {
            line(f, &format!("  {entry}: ResourceClaim {name}, no NoExecute taint"))
        }
        (Some(name), _) => {
            line(f, &format!("  {entry}: ResourceClaim {name}"))?;
            claim.taints.iter().try_for_each(|taint| write_taint(f, taint))
        }
        (None, unused) => {
            line(f, &format!("  {entry}: not used: {}", unused.as_deref().unwrap_or("the claim is not known")))
        }
    }
}

fn write_taint(f: &mut fmt::Formatter<'_>, effect: &DeviceTaintEffect) -> fmt::Result {
    let DeviceTaintEffect { device, taint, source, since, at } = effect;
    let result = match at {
        None => "tolerated for ever".to_owned(),
        Some(at) if at == since => {
            format!("evicts at {}, because no toleration matches, or the toleration has 0 seconds", stamp(*at))
        }
        Some(at) => format!("tolerated for {} s, evicts at {}", at.since(*since).as_secs(), stamp(*at)),
    };
    line(f, &format!("    device {device}: taint {taint} of {source} since {}: {result}", stamp(*since)))
}

impl fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, &format!("{}: {}", self.name, self.detail))?;
        if self.counts.evicted > 0 {
            line(f, &format!("  pods evicted since the start of the controller: {}", self.counts.evicted))?;
        }
        if let Some(limit) = self.limit {
            line(f, &format!("  largest number of evictions: {limit}"))?;
        }
        if let Some(counted) = self.counted {
            line(f, &format!("  evictions that count for the limit, with those of earlier leaders: {counted}"))?;
        }
        if let Some(preview) = &self.preview {
            write!(f, "\n{preview}")?;
        }
        write_end(f, &self.kept_by, &self.failures)
    }
}

fn write_end(f: &mut fmt::Formatter<'_>, kept_by: &[String], failures: &[FailedPass]) -> fmt::Result {
    if !kept_by.is_empty() {
        writeln!(f, "\nwhat would keep the pods")?;
    }
    kept_by.iter().try_for_each(|way| line(f, &format!("  {way}")))?;
    if !failures.is_empty() {
        writeln!(f, "\nfailed passes")?;
    }
    failures.iter().try_for_each(|failure| line(f, &format!("  {failure}")))
}
