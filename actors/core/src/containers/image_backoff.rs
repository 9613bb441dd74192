//! Image pull backoff: how long a failed pull waits before the next try. Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::ids::PodUid;
use crate::ports::ImageError;
use crate::time::Time;

/// The delay after the first failure; it doubles with each further failure (the kubelet's `imageBackOff`, 1.36).
const FIRST: Duration = Duration::from_secs(10);
/// The longest delay (the kubelet's `MaxContainerBackOff`).
const MAX: Duration = Duration::from_secs(300);
/// A failure this long ago no longer counts (the kubelet's backoff forgets after twice its maximum).
const FORGET: Duration = Duration::from_secs(600);

/// The image pull backoffs of all pods. Containers of a pod with the same image share one backoff.
#[derive(Debug, Default)]
pub struct ImageBackoff {
    pods: HashMap<PodUid, HashMap<String, PullFailure>>,
}

/// A failed image pull.
#[derive(Clone, Debug, PartialEq)]
pub struct PullFailure {
    /// The error of the last try.
    pub error: ImageError,
    /// The number of consecutive failures.
    pub tries: u32,
    /// When it first failed.
    pub since: Time,
    /// The earliest time of the next pull.
    pub until: Time,
    /// When the last try failed.
    failed_at: Time,
    delay: Duration,
}

impl ImageBackoff {
    /// The failure whose backoff keeps a pod from pulling an image now, if any.
    pub fn waits(&self, uid: &PodUid, image: &str, now: Time) -> Option<&PullFailure> {
        self.pods.get(uid)?.get(image).filter(|failure| now < failure.until)
    }

    /// The images that could not be pulled for a pod, with their last failures.
    pub fn of(&self, uid: &PodUid) -> BTreeMap<String, PullFailure> {
        self.pods
            .get(uid)
            .map(|images| images.iter().map(|(i, f)| (i.clone(), f.clone())).collect())
            .unwrap_or_default()
    }

    /// Records a failed pull and lengthens the delay.
    pub fn failed(&mut self, uid: &PodUid, image: &str, error: ImageError, now: Time) {
        let images = self.pods.entry(uid.clone()).or_default();
        let last = images.get(image).filter(|last| now.since(last.failed_at) <= FORGET);
        let (delay, tries, since) = match last {
            Some(last) => ((last.delay * 2).min(MAX), last.tries.saturating_add(1), last.since),
            None => (FIRST, 1, now),
        };
        let failure = PullFailure { error, tries, since, until: now + delay, failed_at: now, delay };
        images.insert(image.to_owned(), failure);
    }

    /// Records that the image is present.
    pub fn present(&mut self, uid: &PodUid, image: &str) {
        if let Some(images) = self.pods.get_mut(uid) {
            images.remove(image);
            if images.is_empty() {
                self.pods.remove(uid);
            }
        }
    }

    /// Removes the pods that `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.pods.retain(|uid, _| keep(uid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_secs(1000 + seconds)
    }

    #[test]
    fn image_backoff_doubles_from_10_to_300_seconds() {
        let (mut backoff, uid, mut now) = (ImageBackoff::default(), PodUid::new("u"), at(0));
        let mut waits = Vec::new();
        for tries in 1..=8 {
            assert_eq!(backoff.waits(&uid, "img", now), None);
            backoff.failed(&uid, "img", ImageError::pull("gone"), now);
            let failure = backoff.waits(&uid, "img", now).unwrap();
            assert_eq!((failure.tries, failure.since), (tries, at(0)));
            waits.push(failure.until.since(now).as_secs());
            now = failure.until;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(backoff.waits(&uid, "other", at(0)), None, "another image is not held back");
        assert_eq!(backoff.waits(&PodUid::new("v"), "img", at(0)), None, "nor is another pod");
    }

    #[test]
    fn a_present_image_or_an_old_failure_resets_image_backoff() {
        let (mut backoff, uid) = (ImageBackoff::default(), PodUid::new("u"));
        let delay =
            |backoff: &ImageBackoff, now: Time| backoff.waits(&uid, "img", now).unwrap().until.since(now).as_secs();
        backoff.failed(&uid, "img", ImageError::pull("gone"), at(0));
        backoff.present(&uid, "img");
        assert_eq!(backoff.waits(&uid, "img", at(1)), None);
        backoff.failed(&uid, "img", ImageError::pull("gone"), at(10));
        backoff.failed(&uid, "img", ImageError::pull("gone"), at(20));
        assert_eq!(delay(&backoff, at(20)), 20);
        backoff.failed(&uid, "img", ImageError::pull("gone"), at(621));
        assert_eq!(delay(&backoff, at(621)), 10);
    }
}
