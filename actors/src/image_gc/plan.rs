//! Decides which images may be removed, and in which order. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::ids::ImageId;
use crate::ports::{DiskUsage, ImageNeed, StoredImage};
use crate::time::Time;

/// When images are removed. The defaults are the kubelet's (1.36): thresholds of 85 and 80 percent, a minimum age of 120 s, and
/// no maximum age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGcPolicy {
    high: u8,
    low: u8,
    min_age: Duration,
    max_age: Option<Duration>,
}

/// A policy with values that contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidImageGcPolicy {
    /// The high threshold is above 100 percent.
    #[error("the high threshold of images is {0} percent: give 100 or less")]
    High(u8),
    /// The low threshold is not below the high one.
    #[error("the low threshold of images, {low} percent, is not below the high one, {high}: lower it")]
    Band {
        /// The high threshold, in percent.
        high: u8,
        /// The low threshold, in percent.
        low: u8,
    },
    /// The maximum age is not above the minimum age.
    #[error("the maximum age of unused images, {max:?}, is not above the minimum, {min:?}: raise it, or 0 for none")]
    Ages {
        /// The minimum age.
        min: Duration,
        /// The maximum age.
        max: Duration,
    },
}

impl Default for ImageGcPolicy {
    fn default() -> Self {
        ImageGcPolicy { high: 85, low: 80, min_age: Duration::from_secs(120), max_age: None }
    }
}

impl ImageGcPolicy {
    /// A policy by thresholds and ages. Once the disk is `high` percent full, unused images that are older than `min_age` are
    /// removed until it is `low` percent full; a high threshold of 100 turns this off. Images that no container used for
    /// `max_age` are removed in any case; `None` or zero turns this off.
    ///
    /// # Errors
    /// [`InvalidImageGcPolicy`] if a threshold or an age is out of range.
    pub fn new(high: u8, low: u8, min_age: Duration, max_age: Option<Duration>) -> Result<Self, InvalidImageGcPolicy> {
        let max_age = max_age.filter(|age| !age.is_zero());
        if high > 100 {
            return Err(InvalidImageGcPolicy::High(high));
        }
        if low >= high {
            return Err(InvalidImageGcPolicy::Band { high, low });
        }
        match max_age {
            Some(max) if max <= min_age => Err(InvalidImageGcPolicy::Ages { min: min_age, max }),
            _ => Ok(ImageGcPolicy { high, low, min_age, max_age }),
        }
    }

    /// Whether the policy never removes an image.
    pub(super) fn is_off(&self) -> bool {
        self.high == 100 && self.max_age.is_none()
    }

    /// The number of bytes to free; `None` if the disk is not full to the high threshold.
    pub(super) fn excess(&self, disk: DiskUsage) -> Option<u64> {
        let (capacity, available) = (u128::from(disk.capacity), u128::from(disk.available.min(disk.capacity)));
        if self.high == 100 || capacity == 0 {
            return None;
        }
        let used = u128::from(disk.used_percent());
        let target = capacity * u128::from(100 - self.low) / 100;
        (used >= u128::from(self.high)).then(|| u64::try_from(target.saturating_sub(available)).unwrap_or(u64::MAX))
    }
}

/// The images of the node, with the times at which each was first seen and last used.
#[derive(Debug, Default)]
pub(super) struct ImageLedger(BTreeMap<ImageId, ImageUse>);

#[derive(Debug)]
struct ImageUse {
    first_seen: Time,
    last_used: Option<Time>,
    size: u64,
    need: ImageNeed,
}

/// An image that may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Removal {
    pub(super) id: ImageId,
    pub(super) size: u64,
}

impl ImageLedger {
    /// Records the images that exist now, and forgets all others.
    pub(super) fn note(&mut self, images: Vec<StoredImage>, now: Time) {
        let mut before = std::mem::take(&mut self.0);
        for StoredImage { id, size, need } in images {
            let known = before.remove(&id);
            let first_seen = known.as_ref().map_or(now, |entry| entry.first_seen);
            let last_used = match need {
                ImageNeed::Used => Some(now),
                ImageNeed::Unused | ImageNeed::Pinned => known.and_then(|entry| entry.last_used),
            };
            self.0.insert(id, ImageUse { first_seen, last_used, size, need });
        }
    }

    /// Forgets an image that was removed.
    pub(super) fn forget(&mut self, id: &ImageId) {
        self.0.remove(id);
    }

    /// The unused images whose last use is longer ago than the maximum age. For an image that was never used, the time it was
    /// first seen counts. Empty until the agent, which began at `started`, has run for that long, because it does not know
    /// earlier uses.
    pub(super) fn too_old(&self, policy: &ImageGcPolicy, started: Time, now: Time) -> Vec<Removal> {
        let Some(max_age) = policy.max_age.filter(|age| now.since(started) > *age) else { return vec![] };
        self.unused(|entry| now.since(entry.last_used.unwrap_or(entry.first_seen)) > max_age)
    }

    /// The images that may be removed to free space, least recently used first.
    pub(super) fn spare(&self, policy: &ImageGcPolicy, now: Time) -> Vec<Removal> {
        self.unused(|entry| now.since(entry.first_seen) >= policy.min_age)
    }

    fn unused(&self, may_be_removed: impl Fn(&ImageUse) -> bool) -> Vec<Removal> {
        let unused = self.0.iter().filter(|(_, entry)| entry.need == ImageNeed::Unused && may_be_removed(entry));
        let mut removals: Vec<_> = unused.collect();
        removals.sort_by_key(|(_, entry)| (entry.last_used, entry.first_seen));
        removals.into_iter().map(|(id, entry)| Removal { id: id.clone(), size: entry.size }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(minutes: u64) -> Time {
        Time::from_secs(minutes * 60)
    }

    fn image(id: &str, need: ImageNeed) -> StoredImage {
        StoredImage { id: id.into(), size: 10, need }
    }

    fn ids(removals: Vec<Removal>) -> Vec<String> {
        removals.into_iter().map(|removal| removal.id.to_string()).collect()
    }

    #[test]
    fn image_gc_frees_a_full_disk_down_to_the_low_threshold() {
        let policy = ImageGcPolicy::default();
        let excess = |available| policy.excess(DiskUsage { capacity: 1000, available });
        for (available, expected) in
            [(1000, None), (160, None), (151, Some(49)), (150, Some(50)), (100, Some(100)), (0, Some(200))]
        {
            assert_eq!(excess(available), expected, "{available} of 1000 left");
        }
        // The available share is rounded down to whole percent: 15.9 counts as 15.
        assert_eq!(excess(159), Some(41));
        assert_eq!(
            policy.excess(DiskUsage { capacity: 100, available: 200 }),
            None,
            "more available than the capacity"
        );
        assert_eq!(policy.excess(DiskUsage { capacity: 0, available: 0 }), None);
        let off = ImageGcPolicy::new(100, 80, MINUTE, None).unwrap();
        assert!(off.is_off() && off.excess(DiskUsage { capacity: 100, available: 0 }).is_none());
    }

    #[test]
    fn image_gc_removes_only_unused_images_that_are_not_new() {
        use ImageNeed::{Pinned, Unused, Used};
        let (policy, mut ledger) = (ImageGcPolicy::default(), ImageLedger::default());
        ledger.note(vec![image("a", Used), image("b", Used), image("never", Unused), image("pause", Pinned)], at(0));
        assert_eq!(ids(ledger.spare(&policy, at(1))), [""; 0], "all images are too new");
        let all = |a, b| vec![image("a", a), image("b", b), image("never", Unused), image("pause", Pinned)];
        ledger.note(all(Unused, Used), at(5));
        ledger.note([all(Unused, Unused), vec![image("new", Unused)]].concat(), at(10));
        // The image that was never used comes first, then by last use.
        assert_eq!(ids(ledger.spare(&policy, at(10))), ["never", "a", "b"]);
        assert_eq!(ids(ledger.spare(&policy, at(12))), ["never", "new", "a", "b"]);
        ledger.note(all(Used, Unused), at(15));
        ledger.forget(&"never".into());
        assert_eq!(ids(ledger.spare(&policy, at(15))), ["b"], "`a` is used again, `new` is gone, `never` was removed");
    }

    #[test]
    fn image_gc_removes_images_that_were_unused_for_the_maximum_age() {
        use ImageNeed::{Unused, Used};
        let policy = ImageGcPolicy::new(100, 80, MINUTE, Some(10 * MINUTE)).unwrap();
        assert!(!policy.is_off());
        let mut ledger = ImageLedger::default();
        ledger.note(vec![image("a", Used), image("never", Unused)], at(0));
        ledger.note(vec![image("a", Unused), image("never", Unused), image("late", Unused)], at(5));
        let old = |ledger: &ImageLedger, now| ids(ledger.too_old(&policy, at(0), now));
        assert_eq!(old(&ledger, at(10)), [""; 0]);
        assert_eq!(old(&ledger, at(11)), ["never", "a"]);
        assert_eq!(ids(ledger.too_old(&policy, at(2), at(11))), [""; 0], "an agent that started later");
        assert_eq!(ids(ledger.too_old(&ImageGcPolicy::default(), at(0), at(9999))), [""; 0], "off by default");
    }

    #[test]
    fn image_gc_policy_rejects_contradicting_values() {
        let new = ImageGcPolicy::new;
        assert_eq!(new(85, 80, 2 * MINUTE, Some(Duration::ZERO)), Ok(ImageGcPolicy::default()));
        assert_eq!(new(101, 80, MINUTE, None), Err(InvalidImageGcPolicy::High(101)));
        assert_eq!(new(80, 80, MINUTE, None), Err(InvalidImageGcPolicy::Band { high: 80, low: 80 }));
        assert_eq!(new(85, 80, MINUTE, Some(MINUTE)), Err(InvalidImageGcPolicy::Ages { min: MINUTE, max: MINUTE }));
    }
}
