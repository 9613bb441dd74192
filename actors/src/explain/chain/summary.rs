//! Summarizes the nearest wait of a pod in a few words.

use crate::explain::wait::{SubjectKind, Wait, WaitKind};
use crate::pod_worker::Hook;
use crate::status::short_age;
use crate::time::Time;

use super::node::free;

/// The nearest wait in a few words, for a table or a heading; empty if the pod waits for nothing.
pub(in crate::explain) fn short(chain: &[Wait], now: Time) -> String {
    let Some(wait) = chain.first() else { return String::new() };
    let left = |what: String| match wait.next {
        Some(next) if next > now => format!("{what}, {} left", short_age(next.since(now))),
        _ => what,
    };
    let retried = |what: String| match wait.next {
        Some(next) if next > now => format!("{what}, next try in {}", short_age(next.since(now))),
        _ => what,
    };
    let name = &wait.on.name;
    let of = |what: &str| match &wait.container {
        Some(container) => format!("{what} of container {container}"),
        None => what.to_owned(),
    };
    match wait.what {
        WaitKind::Nothing => String::new(),
        WaitKind::Housekeeping => "housekeeping".into(),
        WaitKind::Source => format!("source {name}"),
        WaitKind::Rejected => wait.released_by.clone(),
        WaitKind::Admission => format!("room on the node, used by {name}"),
        WaitKind::Worker => "its worker".into(),
        WaitKind::FullName => "its name, held by an earlier pod".into(),
        WaitKind::Circle => "itself".into(),
        WaitKind::HookCall(hook) => format!("its {} to end", goal(hook)),
        WaitKind::Retry(hook) => retried(format!("its {} to succeed", goal(hook))),
        WaitKind::Runtime => "the container runtime".into(),
        WaitKind::Network => "the network for pods".into(),
        WaitKind::Volume => retried(if name.is_empty() { "its volumes".into() } else { format!("volume {name}") }),
        WaitKind::Cgroup => "its cgroup".into(),
        WaitKind::Governor => match &wait.container {
            Some(container) => format!("the start governor, for container {container}"),
            None => "the start governor".into(),
        },
        WaitKind::Sandbox => "its sandbox".into(),
        WaitKind::Image => retried(of(&format!("image {name}"))),
        WaitKind::CrashBackoff => left(of("the crash backoff")),
        WaitKind::ContainerStart => retried(of("the start")),
        WaitKind::LifecycleHook(hook) => left(of(&format!("the {} hook", hook.as_str()))),
        WaitKind::InitContainer => format!("the end of init container {name}"),
        WaitKind::Probe => of("a probe"),
        WaitKind::ReadinessGate => format!("readiness gate {name}"),
        WaitKind::Grace => left("its containers to stop".into()),
        WaitKind::ContainerStop | WaitKind::StopOrder => left(of("the end")),
        WaitKind::Shutdown => left("its turn in the node's shutdown".into()),
        WaitKind::Resize => "its resize".into(),
        WaitKind::Pressure(condition) => free(condition).into(),
        WaitKind::Claim if name.is_empty() => retried("its ResourceClaims".into()),
        WaitKind::Claim if wait.on.kind == SubjectKind::Claim => retried(format!("ResourceClaim {name}")),
        WaitKind::Claim => retried(format!("DRA driver {name}")),
        WaitKind::StatusWrite => retried("the write of its status to the API server".into()),
    }
}

/// The purpose of a hook.
fn goal(hook: Hook) -> &'static str {
    match hook {
        Hook::Sync => "setup",
        Hook::Terminating | Hook::TerminatingRuntime => "stop",
        Hook::Terminated => "cleanup",
    }
}
