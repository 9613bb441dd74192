//! What a pod waits for, as a chain.

use podwright::actors::engine::PodSnapshot;
use podwright::actors::ids::PodUid;
use podwright::actors::pod_worker::{Hook, Lifecycle, WaitFor};

use super::containers;
use super::{Kind, Wait};
use crate::agent::view::PodFacts;

/// How many pods a chain follows: one that names more says nothing new.
const DEPTH: usize = 4;

/// What a pod waits for, the nearest first. Never empty.
pub(crate) fn waits(pod: &PodFacts, find: &dyn Fn(&PodUid) -> Option<PodFacts>) -> Vec<Wait> {
    follow(pod, find, DEPTH)
}

fn follow(pod: &PodFacts, find: &dyn Fn(&PodUid) -> Option<PodFacts>, depth: usize) -> Vec<Wait> {
    let Some(snapshot) = &pod.snapshot else { return vec![unknown(pod)] };
    let running = || {
        if snapshot.lifecycle == Lifecycle::Sync { containers::waits(pod) } else { vec![] }
    };
    let base = Wait {
        kind: Kind::Worker,
        what: String::new(),
        container: None,
        pod: None,
        since: Some(snapshot.wait.since),
        tries: None,
        until: snapshot.wait.next,
        released_by: snapshot.wait.what.released_by().to_owned(),
        because: vec![],
    };
    match &snapshot.wait.what {
        WaitFor::Worker => {
            vec![Wait { kind: Kind::Worker, what: "its worker has not taken the last update yet".into(), ..base }]
        }
        WaitFor::FullName { held_by } => {
            let holder = held_by.as_ref().filter(|_| depth > 0).and_then(find);
            let who =
                held_by.as_ref().map_or_else(|| "another pod".to_owned(), |uid| format!("the pod with UID {uid}"));
            vec![Wait {
                kind: Kind::FullName,
                what: format!("its name {} is still held by {who}", pod.full_name),
                pod: held_by.as_ref().map(ToString::to_string),
                because: holder.map(|holder| follow(&holder, find, depth - 1)).unwrap_or_default(),
                ..base
            }]
        }
        WaitFor::HookCall(Hook::Terminating) => vec![stopping(snapshot, base)],
        WaitFor::HookCall(hook) => {
            let mut all = running();
            let what = format!("{} is under way ({})", doing(*hook), hook.as_str());
            // A check that runs now is news only if nothing else keeps the pod.
            if all.is_empty() || *hook != Hook::Sync {
                let tries = (snapshot.wait.tries > 1).then_some(snapshot.wait.tries);
                all.push(Wait { kind: Kind::HookCall, what, tries, ..base });
            }
            all
        }
        WaitFor::Retry { hook, error } => {
            let mut because = running();
            // The retry comes when the backoff is over.
            for wait in because.iter_mut().filter(|wait| wait.kind == Kind::CrashBackoff) {
                wait.until = snapshot.wait.next;
            }
            if !because.is_empty() && because.iter().all(|wait| matches!(wait.kind, Kind::CrashBackoff | Kind::Image)) {
                return because;
            }
            let what = format!("{} failed ({}): {error}", doing(*hook), hook.as_str());
            vec![Wait { kind: Kind::Retry, what, tries: Some(snapshot.wait.tries), because, ..base }]
        }
        WaitFor::Resync => {
            let mut all = running();
            if all.is_empty() {
                let what = "nothing: all is as it should be".into();
                all.push(Wait { kind: Kind::Resync, what, since: None, ..base });
            }
            all
        }
        WaitFor::Removal => {
            let what = if pod.desired {
                "nothing: it is over, and stays listed because its source still wants it"
            } else {
                "it is over; the next housekeeping pass forgets it"
            };
            vec![Wait { kind: Kind::Removal, what: what.into(), ..base }]
        }
    }
}

/// A pod of which the engine has no record: it was refused, or the engine is about to hear of it.
fn unknown(pod: &PodFacts) -> Wait {
    let nothing = String::new();
    let base = Wait {
        kind: Kind::Delivery,
        what: "the engine has not heard of it yet".into(),
        container: None,
        pod: None,
        since: None,
        tries: None,
        until: None,
        released_by: "the next housekeeping pass".into(),
        because: vec![],
    };
    match &pod.status {
        Some(status) if pod.phase().is_terminal() => {
            let reason = status.reason.as_ref().unwrap_or(&nothing);
            let message = status.message.as_ref().unwrap_or(&nothing);
            Wait {
                kind: Kind::Rejected,
                what: format!("nothing: it may not start on this node ({reason}: {message})"),
                released_by: "a new version of the pod, or a new start of the agent, once there is room".into(),
                ..base
            }
        }
        _ => base,
    }
}

fn stopping(snapshot: &PodSnapshot, base: Wait) -> Wait {
    let since = snapshot.wait.since;
    let tries = (snapshot.wait.tries > 1).then_some(snapshot.wait.tries);
    match snapshot.grace {
        Some(grace) => Wait {
            kind: Kind::Grace,
            what: format!("its containers were asked to stop and have {grace} for it"),
            until: Some(since + grace.duration()),
            tries,
            released_by: "its containers end, or are killed when the time is over".into(),
            ..base
        },
        None => Wait { kind: Kind::Grace, what: "its containers are being stopped".into(), tries, ..base },
    }
}

fn doing(hook: Hook) -> &'static str {
    match hook {
        Hook::Sync => "setting it up",
        Hook::Terminating | Hook::TerminatingRuntime => "stopping its containers",
        Hook::Terminated => "cleaning up after it",
    }
}
