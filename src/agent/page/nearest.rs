//! What a row says that its pod waits for.

use std::time::Duration;

use podwright::actors::pod_worker::{Hook, WaitFor};
use podwright::actors::time::Time;

use super::board::{Millis, RowWait};
use crate::agent::explain::{Kind, Wait, short, waits};
use crate::agent::view::PodFacts;

/// A call that is over sooner is no wait worth telling: a pod that is checked would flicker.
const CALL: Duration = Duration::from_secs(2);

/// The nearest wait, if it is worth telling.
pub(super) fn nearest(pod: &PodFacts, now: Time) -> Option<RowWait> {
    // Who holds its name is told in the details: a row is about one pod.
    let waits = waits(pod, &|_| None);
    let wait = waits.first().filter(|wait| is_worth_telling(pod, wait, now))?;
    Some(RowWait {
        // As if its time were up: how much of it is left is for the page to count.
        short: short(&waits, wait.until.unwrap_or(now)),
        what: wait.what.clone(),
        since: wait.since.map(Millis::from),
        until: wait.until.map(Millis::from),
        own: true,
    })
}

fn is_worth_telling(pod: &PodFacts, wait: &Wait, now: Time) -> bool {
    match wait.kind {
        Kind::Resync | Kind::Removal => false,
        Kind::HookCall => !is_called(pod) || wait.since.is_some_and(|since| now.since(since) > CALL),
        _ => true,
    }
}

/// Whether its hook looks at it now.
pub(super) fn is_called(pod: &PodFacts) -> bool {
    pod.snapshot.as_ref().is_some_and(|snapshot| snapshot.wait.what == WaitFor::HookCall(Hook::Sync))
}
