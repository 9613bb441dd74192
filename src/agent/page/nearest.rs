//! What a row says that its pod waits for.

use std::time::Duration;

use crate::actors::explain::{PodFacts, Wait, What};
use crate::actors::pod_worker::{Hook, WaitFor};
use crate::actors::time::Time;

use super::board::{Millis, RowWait};

/// A call that is over sooner is no wait worth telling: a pod that is checked would flicker.
const CALL: Duration = Duration::from_secs(2);

/// The nearest wait of a pod, if it is worth telling; `words` are the same in a few words.
pub(super) fn nearest(pod: &PodFacts, wait: Wait, words: String, now: Time) -> Option<RowWait> {
    let brief = wait.since.is_none_or(|since| now.since(since) <= CALL);
    let told = match wait.what {
        What::Nothing => false,
        What::HookCall(_) | What::Runtime => !(brief && is_called(pod)),
        _ => true,
    };
    told.then(|| RowWait {
        short: words,
        own: is_own(&wait, now),
        overdue: wait.is_overdue(now),
        since: wait.since.map(Millis::from),
        until: wait.next.map(Millis::from),
        what: wait.detail,
    })
}

/// Whether it changes only with what is known of the pod itself.
fn is_own(wait: &Wait, now: Time) -> bool {
    match wait.what {
        // It becomes late although nothing happens to it.
        What::Grace => wait.is_overdue(now),
        What::Rejected
        | What::Network
        | What::Volume
        | What::Image
        | What::CrashBackoff
        | What::ContainerStart
        | What::InitContainer
        | What::Probe
        | What::ReadinessGate => true,
        _ => false,
    }
}

/// Whether its hook looks at it now.
pub(super) fn is_called(pod: &PodFacts) -> bool {
    pod.snapshot.as_ref().is_some_and(|snapshot| snapshot.wait.what == WaitFor::HookCall(Hook::Sync))
}
