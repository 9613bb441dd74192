//! A cache whose entries expire. The caller passes the time.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// A cache with a limited number of values. Each value is valid for a limited time.
#[derive(Debug)]
pub(super) struct ExpiringCache<K, V> {
    most: usize,
    entries: HashMap<K, (V, Instant)>,
}

impl<K: Eq + Hash + Clone, V: Clone> ExpiringCache<K, V> {
    /// A cache of at most this many values.
    pub(super) fn new(most: usize) -> Self {
        ExpiringCache { most, entries: HashMap::new() }
    }

    /// The value of a key, unless it has expired.
    pub(super) fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.entries.get(key).filter(|(_, end)| now < *end).map(|(value, _)| value.clone())
    }

    /// Keeps a value for `life`. If the cache is full, removes the expired values, or else the one that expires first.
    pub(super) fn insert(&mut self, key: K, value: V, life: Duration, now: Instant) {
        if self.entries.len() >= self.most && !self.entries.contains_key(&key) {
            self.entries.retain(|_, (_, end)| now < *end);
            if self.entries.len() >= self.most {
                let first = self.entries.iter().min_by_key(|(_, (_, end))| *end).map(|(key, _)| key.clone());
                first.map(|key| self.entries.remove(&key));
            }
        }
        self.entries.insert(key, (value, now + life));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_expire_and_their_number_is_limited() {
        let (mut cache, now) = (ExpiringCache::new(2), Instant::now());
        let second = Duration::from_secs(1);
        cache.insert("a", 1, 3 * second, now);
        cache.insert("b", 2, second, now);
        assert_eq!((cache.get(&"a", now), cache.get(&"b", now + second)), (Some(1), None));
        cache.insert("a", 3, 2 * second, now);
        assert_eq!(
            (cache.get(&"a", now), cache.get(&"b", now)),
            (Some(3), Some(2)),
            "a value of a known key displaces no other value"
        );
        cache.insert("c", 4, 9 * second, now);
        assert_eq!((cache.get(&"b", now), cache.get(&"a", now)), (None, Some(3)), "the first to expire is displaced");
        cache.insert("d", 5, second, now + 5 * second);
        assert_eq!(cache.entries.len(), 2, "expired values are displaced first");
        assert_eq!(cache.get(&"c", now + 5 * second), Some(4));
    }
}
