//! Searches for a smaller scenario with the same violation.

use std::sync::Arc;

use super::runner::{Report, run};
use super::scenario::Scenario;
use super::trace::KEPT;

/// The most simulations that the search may run.
const TRIES: usize = 300;

/// Drops every step that a failing scenario does not need to fail in the same way.
pub(super) fn shrink(scenario: Arc<Scenario>, report: Report) -> (Arc<Scenario>, Report) {
    let original = report.violation.as_deref().map(normalized);
    let (mut smallest, mut found) = (scenario, report);
    let mut tries = 0;
    // Drops halves of the steps first, then quarters, down to single steps, and repeats single steps as long as one can
    // be dropped.
    let mut size = smallest.steps.len().div_ceil(2).max(1);
    loop {
        let mut dropped = false;
        let mut first = 0;
        while first < smallest.steps.len() && tries < TRIES {
            tries += 1;
            let mut less = Scenario::clone(&smallest);
            less.steps.drain(first..(first + size).min(less.steps.len()));
            let less = Arc::new(less);
            let report = run(&less, KEPT);
            if report.violation.is_some() && report.violation.as_deref().map(normalized) == original {
                (smallest, found, dropped) = (less, report, true);
            } else {
                first += size;
            }
        }
        if tries >= TRIES || (size == 1 && !dropped) {
            return (smallest, found);
        }
        size = size.div_ceil(2).max(1);
    }
}

/// A violation without the parts that differ between runs: numbers, and everything after its third clause.
fn normalized(violation: &str) -> String {
    let text: String = violation.chars().filter(|c| !c.is_ascii_hexdigit()).collect();
    text.split([',', ':', ';']).take(3).collect()
}
