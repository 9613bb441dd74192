//! What goes wrong with every pass and is to be told of once.

use std::collections::HashSet;
use std::hash::Hash;

use parking_lot::Mutex;

/// What was told of and still goes wrong. Looked at every two seconds, it would fill the log of a node that nobody looks at.
#[derive(Debug)]
pub(super) struct Told<K>(Mutex<HashSet<K>>);

/// What is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct News<K> {
    /// What goes wrong now and did not the last time.
    pub(super) begun: Vec<K>,
    /// Something went wrong the last time, and nothing does any more.
    pub(super) over: bool,
}

impl<K> Default for Told<K> {
    fn default() -> Self {
        Told(Mutex::default())
    }
}

impl<K: Eq + Hash + Clone> Told<K> {
    /// Takes all that goes wrong now.
    pub(super) fn take(&self, wrong: impl IntoIterator<Item = K>) -> News<K> {
        let mut told = self.0.lock();
        let before = std::mem::replace(&mut *told, wrong.into_iter().collect());
        let begun = told.iter().filter(|what| !before.contains(what)).cloned().collect();
        News { begun, over: told.is_empty() && !before.is_empty() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn begin_and_end_are_told_once_each() {
        let told = Told::default();
        let quiet = || News { begun: vec![], over: false };
        assert_eq!(told.take([]), quiet());
        assert_eq!(told.take(["a"]), News { begun: vec!["a"], over: false });
        assert_eq!(told.take(["a"]), quiet());
        assert_eq!(told.take(["a", "b"]), News { begun: vec!["b"], over: false });
        assert_eq!(told.take(["b"]), quiet());
        assert_eq!(told.take([]), News { begun: vec![], over: true });
        assert_eq!(told.take([]), quiet());
        assert_eq!(told.take(["a"]), News { begun: vec!["a"], over: false });
    }
}
