//! Failures that repeat with every pass and are logged once.

use std::collections::HashSet;
use std::hash::Hash;

use parking_lot::Mutex;

/// The failures of the last pass. A failure is logged when it begins and when all failures have ended, because the same line
/// every two seconds would fill the node's log.
#[derive(Debug)]
pub(super) struct FailureLog<K>(Mutex<HashSet<K>>);

/// What to log after a pass.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FailureChanges<K> {
    /// Failures that the last pass did not have.
    pub(super) begun: Vec<K>,
    /// Whether the last pass had failures, and this one has none.
    pub(super) ended: bool,
}

impl<K> Default for FailureLog<K> {
    fn default() -> Self {
        FailureLog(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone> FailureLog<K> {
    /// Replaces the failures of the last pass by those of this one.
    pub(super) fn update(&self, failures: impl IntoIterator<Item = K>) -> FailureChanges<K> {
        let mut failing = self.0.lock();
        let before = std::mem::replace(&mut *failing, failures.into_iter().collect());
        let begun = failing.iter().filter(|failure| !before.contains(failure)).cloned().collect();
        FailureChanges { begun, ended: failing.is_empty() && !before.is_empty() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_repeat_are_logged_when_they_begin_and_end() {
        let log = FailureLog::default();
        let nothing = || FailureChanges { begun: vec![], ended: false };
        assert_eq!(log.update([]), nothing());
        assert_eq!(log.update(["a"]), FailureChanges { begun: vec!["a"], ended: false });
        assert_eq!(log.update(["a"]), nothing());
        assert_eq!(log.update(["a", "b"]), FailureChanges { begun: vec!["b"], ended: false });
        assert_eq!(log.update(["b"]), nothing());
        assert_eq!(log.update([]), FailureChanges { begun: vec![], ended: true });
        assert_eq!(log.update([]), nothing());
        assert_eq!(log.update(["a"]), FailureChanges { begun: vec!["a"], ended: false });
    }
}
