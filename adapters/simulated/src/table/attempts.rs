//! Counts the attempts of pods to create a sandbox or to pull an image.

use std::collections::HashMap;
use std::time::Duration;

use podwright_model::ids::PodUid;
use podwright_model::time::Time;

/// How long a count is kept after its last attempt: twice the longest backoff of a pull.
const KEPT: Duration = Duration::from_secs(600);

/// The attempts of all pods.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    by_pod: HashMap<(PodUid, Box<str>), Tries>,
    /// The number of counts above which old ones are removed.
    limit: usize,
}

#[derive(Clone, Copy, Debug)]
struct Tries {
    count: u32,
    last: Time,
}

impl Attempts {
    /// Counts one more attempt, and returns how many there were before.
    pub(crate) fn count(&mut self, uid: &PodUid, what: &str, now: Time) -> u32 {
        if self.by_pod.len() > self.limit {
            self.by_pod.retain(|_, tries| now.since(tries.last) < KEPT);
            self.limit = self.by_pod.len() * 2 + 64;
        }
        let tries = self.by_pod.entry((uid.clone(), what.into())).or_insert(Tries { count: 0, last: now });
        tries.last = now;
        tries.count += 1;
        tries.count - 1
    }

    /// Whether there was an attempt within [`KEPT`].
    pub(crate) fn has_tried(&self, uid: &PodUid, what: &str) -> bool {
        self.by_pod.contains_key(&(uid.clone(), what.into()))
    }
}
