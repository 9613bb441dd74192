//! The waits for the node: its runtime, its sources, its resources and its housekeeping.

use crate::eviction::{NodePressure, Pressure};
use crate::explain::wait::{SubjectKind, Wait, WaitKind, WaitSubject};
use crate::health::{HOUSEKEEPING_PERIOD, OngoingFailure};
use crate::ids::PodUid;
use crate::ports::{ResourceWait, Unready};
use crate::time::Time;

use super::ExplainContext;

/// The wait for a runtime that does not answer.
pub(super) fn runtime(context: &ExplainContext<'_>) -> Wait {
    let on = WaitSubject::only(SubjectKind::Runtime);
    let wait = |error: &str| {
        let detail = format!("the container runtime does not answer: {error}");
        Wait::new(WaitKind::Runtime, on.clone(), detail, "the runtime answers again; it is called every second")
    };
    match &context.node.runtime {
        Some(failing) => wait(&failing.error).since(failing.since).tries(failing.tries),
        None => wait("it has not answered yet"),
    }
}

/// The problems that delay every pod: the runtime does not answer or is not ready, or a source has not sent its pods. Then one for
/// each removed pod of which something is left, and for each resource of such a pod.
pub(in crate::explain) fn node_problems(context: &ExplainContext<'_>) -> Vec<Wait> {
    let silent = context.node.runtime.as_ref().map(|_| runtime(context));
    let Unready { runtime, network } = &context.node.unready;
    let lacks = |what, why: &Option<String>| {
        Some(Wait::new(
            what,
            WaitSubject::only(SubjectKind::Runtime),
            why.as_ref()?,
            "the runtime says that it is there",
        ))
    };
    let (runtime, network) = (lacks(WaitKind::Runtime, runtime), lacks(WaitKind::Network, network));
    let pressures = context.node.pressures.iter().map(pressure);
    let leftovers = context.node.leftovers.iter().map(leftover);
    let ended = context.node.ended_pods.iter().filter_map(|(uid, wait, next)| ended_pod(uid, wait, *next));
    let of_node = [silent, runtime, network, sources(context)].into_iter().flatten();
    of_node.chain(pressures).chain(leftovers).chain(ended).collect()
}

/// The wait for the release of a resource of a pod that has ended, and that no source may know any more.
fn ended_pod(uid: &PodUid, wait: &ResourceWait, next: Option<Time>) -> Option<Wait> {
    let wait = super::resource(wait)?;
    let detail =
        format!("the pod with UID {uid} has ended, and {}; it is released when {}", wait.detail, wait.released_by);
    Some(Wait { depth: 0, detail, next, ..wait })
}

/// The wait for the removal of what a pod has left, which no source desires.
fn leftover((uid, failing): &(PodUid, OngoingFailure)) -> Wait {
    let detail = format!("the pod with UID {uid} is gone, and what it has left cannot be removed: {}", failing.error);
    let on = WaitSubject::new(SubjectKind::Pod, uid.to_string());
    let released_by = "the next try succeeds; each housekeeping pass tries";
    Wait::new(WaitKind::Housekeeping, on, detail, released_by).since(failing.since).tries(failing.tries)
}

/// The rejection of new pods by a node that lacks a resource.
fn pressure(pressure: &NodePressure) -> Wait {
    let NodePressure { condition, signal, threshold, available, .. } = pressure;
    let pods = if *condition == Pressure::Memory { "new pods of class BestEffort" } else { "new pods" };
    let detail = format!(
        "{pods} are rejected, because the node has the condition {}: {signal} was {available}, less than {threshold}",
        condition.as_str()
    );
    let on = WaitSubject::only(SubjectKind::Node);
    Wait::new(WaitKind::Pressure(*condition), on, detail, free(*condition)).since(pressure.since)
}

/// The resource that a pod waits for until a condition of the node ends.
pub(super) fn free(condition: Pressure) -> &'static str {
    match condition {
        Pressure::Memory => "free memory",
        Pressure::Disk => "free disk space",
        Pressure::Pid => "free process ids",
    }
}

/// The wait of housekeeping passes for a source that has not sent its pods.
fn sources(context: &ExplainContext<'_>) -> Option<Wait> {
    let missing = &context.node.missing_sources;
    let names = missing.iter().map(|source| source.kind.as_str()).collect::<Vec<_>>();
    let reasons = missing.iter().map(|source| format!("{}{}", source.kind, source.reason())).collect::<Vec<_>>();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    let reasons = reasons.join(", ");
    let detail = format!("housekeeping begins when every source has sent its pods; missing: {reasons}");
    let on = WaitSubject::new(SubjectKind::Source, names);
    Some(Wait::new(WaitKind::Source, on, detail, "the source sends its pods").since(context.node.started))
}

/// The wait for a housekeeping pass, and the reason if passes do not run.
pub(super) fn housekeeping(context: &ExplainContext<'_>, detail: &str, since: Time) -> Vec<Wait> {
    let on = WaitSubject::only(SubjectKind::Housekeeping);
    let mut first = Wait::new(WaitKind::Housekeeping, on, detail, "the next housekeeping pass").since(since);
    let mut below = Vec::new();
    if let Some(source) = sources(context) {
        below.push(source);
    } else if let Some(failing) = &context.node.passes {
        first.detail.push_str(&format!("; passes end early: {}", failing.error));
        first.tries = Some(failing.tries);
        if context.node.runtime.is_some() {
            below.push(runtime(context));
        }
    }
    if below.iter().all(|wait| wait.what != WaitKind::Source) {
        first.next = context.node.last_pass.map(|last| (last + HOUSEKEEPING_PERIOD).max(context.now));
    }
    std::iter::once(first).chain(below.into_iter().map(|wait| wait.below(1))).collect()
}
