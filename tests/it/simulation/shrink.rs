//! Smaller scenarios that still fail in the same way.

use std::sync::Arc;

use super::run::{Report, run};
use super::scenario::Scenario;
use super::trace::KEPT;

/// How many runs the search may cost.
const TRIES: usize = 300;

/// What is left of a failing scenario once every step was dropped without which it still fails.
pub(super) fn shrink(scenario: Arc<Scenario>, report: Report) -> (Arc<Scenario>, Report) {
    let wanted = report.violation.as_deref().map(gist);
    let (mut smallest, mut found) = (scenario, report);
    let mut tries = 0;
    // Halves first, then quarters, down to single steps; once more over the singles as long as that helps.
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
            if report.violation.is_some() && report.violation.as_deref().map(gist) == wanted {
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

/// A violation less what differs between runs: numbers, and whatever comes after its first clause.
fn gist(violation: &str) -> String {
    let text: String = violation.chars().filter(|c| !c.is_ascii_hexdigit()).collect();
    text.split([',', ':', ';']).take(3).collect()
}
