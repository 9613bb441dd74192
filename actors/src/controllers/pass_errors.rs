//! The errors of the failed passes of a controller.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;
use parking_lot::Mutex;

/// The error of the last pass of each key whose passes fail. Called in the span of the pass, which names the key.
#[derive(Debug)]
pub(super) struct PassErrors<K>(Mutex<HashMap<K, String, RandomState>>);

impl<K> Default for PassErrors<K> {
    fn default() -> Self {
        PassErrors(Mutex::default())
    }
}

impl<K: Eq + Hash> PassErrors<K> {
    /// A pass succeeded.
    pub(super) fn succeeded(&self, key: &K) {
        if self.0.lock().remove(key).is_some() {
            tracing::info!("the pass succeeded after it had failed");
        }
    }

    /// A pass failed and will be repeated for as long as it fails. The reason is logged once at WARN, and again when it changes.
    pub(super) fn failed(&self, key: K, error: String) {
        if self.0.lock().get(&key) == Some(&error) {
            tracing::debug!(error, "the pass failed again and will be repeated");
        } else {
            tracing::warn!(error, "the pass failed and will be repeated");
        }
        self.0.lock().insert(key, error);
    }

    /// A pass panicked and will be repeated.
    pub(super) fn panicked(&self, key: K, panic: &str) {
        tracing::error!(panic, "the pass panicked and will be repeated");
        self.0.lock().insert(key, format!("the pass panicked: {panic}"));
    }

    /// The error of the last pass. `None` if it succeeded.
    pub(super) fn get(&self, key: &K) -> Option<String> {
        self.0.lock().get(key).cloned()
    }
}
