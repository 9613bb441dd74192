//! What a pod waits for, in the few words that fit into a table.

use podwright::actors::status::short_age;
use podwright::actors::time::Time;

use super::{Kind, Wait};

/// The nearest wait that is worth a look; empty if all is well or over.
pub(crate) fn short(waits: &[Wait], now: Time) -> String {
    let Some(wait) = waits.first() else { return String::new() };
    let of = |what: &str| match &wait.container {
        Some(container) => format!("{what} of {container}"),
        None => what.to_owned(),
    };
    let left = |what: String| match wait.until {
        Some(until) if until > now => format!("{what}, {} left", short_age(until.since(now))),
        _ => what,
    };
    match wait.kind {
        Kind::Resync | Kind::Removal => String::new(),
        Kind::Delivery => "housekeeping".into(),
        Kind::Rejected => "room on the node".into(),
        Kind::Worker => "its worker".into(),
        Kind::FullName => "its name, held by an earlier pod".into(),
        Kind::HookCall => "a call".into(),
        Kind::Grace => left("containers to stop".into()),
        Kind::Retry => left("a retry".into()),
        Kind::CrashBackoff => left(of("backoff")),
        Kind::Image => left(of("image")),
        Kind::ContainerStart => of("start"),
        Kind::InitContainer => of("end"),
        Kind::Probe => of("probe"),
        Kind::ReadinessGate => "a readiness gate".into(),
    }
}
