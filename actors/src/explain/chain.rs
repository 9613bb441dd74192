//! Builds the chain of waits of one pod. Pure.

mod node;
mod resources;
mod summary;

use k8s_openapi::api::core::v1::PodCondition;

use crate::admission::{WaitingPod, is_lack};
use crate::config::resource_amount::of_resource;
use crate::engine::PodSnapshot;
use crate::final_statuses::is_final;
use crate::ids::PodUid;
use crate::pod_worker::{Hook, Lifecycle, WaitFor};
use crate::ports::FailureCause;
use crate::status::reasons::{RESIZE_IN_PROGRESS, RESIZE_PENDING};
use crate::status_writer::FailedWrite;
use crate::time::Time;

use self::node::{housekeeping, runtime};
use self::resources::{is_release_awaited_alone, resource};
use super::facts::{NodeState, PodFacts};
use super::wait::{SubjectKind, Wait, WaitKind, WaitSubject};
use super::{activities, containers};

pub(super) use self::node::node_problems;
pub(super) use self::summary::short;

/// The context in which a chain is built.
pub(super) struct ExplainContext<'a> {
    pub(super) now: Time,
    pub(super) node: &'a NodeState,
    /// Finds another pod by UID.
    pub(super) find: &'a dyn Fn(&PodUid) -> Option<PodFacts>,
}

/// The waits of a pod: its own waits at depth 0, and below each wait the cause of that wait. Never empty.
pub(super) fn chain(context: &ExplainContext<'_>, pod: &PodFacts) -> Vec<Wait> {
    let mut chain = follow(context, pod, &mut vec![pod.uid.clone()]);
    let resources = pod.resources.iter().filter_map(resource);
    match chain.first() {
        Some(first) if is_release_awaited_alone(context, pod, first) => {
            let next = first.next.filter(|_| matches!(first.what, WaitKind::Retry(_)));
            let releases = resources.map(|wait| Wait { depth: 0, ..wait }.next(next));
            chain = releases.chain(chain.into_iter().skip(1)).collect();
        }
        _ => chain.extend(resources),
    }
    if let Some(failed) = &pod.failed_write {
        chain.retain(|wait| wait.what != WaitKind::Nothing);
        chain.push(status_write(failed));
    }
    chain
}

fn follow(context: &ExplainContext<'_>, pod: &PodFacts, followed: &mut Vec<PodUid>) -> Vec<Wait> {
    let mut chain = match &pod.snapshot {
        Some(snapshot) => known(context, pod, snapshot, followed),
        None => unknown(context, pod, followed),
    };
    let is_explained_by_record = pod.desired || pod.lifecycle() >= Some(Lifecycle::Terminating);
    if let (false, Some(snapshot)) = (is_explained_by_record, &pod.snapshot) {
        let since = snapshot.transitions.last().map_or(snapshot.synced_at, |last| last.at);
        chain = housekeeping(context, "no source desires it any more: a housekeeping pass stops it", since);
    }
    if pod.lifecycle() == Some(Lifecycle::Sync)
        && let Some(resize) = resize(pod)
    {
        chain.retain(|wait| wait.what != WaitKind::Nothing);
        chain.push(resize);
    }
    if let Some(turn) = &pod.stop {
        let stops = pod.lifecycle() >= Some(Lifecycle::Terminating);
        if stops && !matches!(chain[0].what, WaitKind::Nothing) {
            let detail = "the node shuts down, and stops it by then at the latest";
            let wait =
                Wait::new(WaitKind::Shutdown, WaitSubject::only(SubjectKind::Shutdown), detail, "the pod has stopped");
            chain.push(wait.since(turn.since).next(turn.ends).below(1));
        } else if !stops && turn.begins > context.now {
            let others = if turn.before == 1 { "1 pod stops".to_owned() } else { format!("{} pods stop", turn.before) };
            let detail = format!("the node shuts down: {others} before it, and it is stopped after them");
            let wait = Wait::new(
                WaitKind::Shutdown,
                WaitSubject::only(SubjectKind::Shutdown),
                detail,
                "the pods before it have stopped",
            );
            chain.retain(|wait| wait.what != WaitKind::Nothing);
            chain.insert(0, wait.since(turn.since).next(turn.begins));
        }
    }
    chain
}

/// The wait of a pod whose status cannot be written to the API server.
fn status_write(failed: &FailedWrite) -> Wait {
    let detail = format!("its status cannot be written to the API server: {}", failed.error);
    let released_by = "the API server accepts the status; each try writes the newest status";
    let on = WaitSubject::only(SubjectKind::ApiServer);
    let wait = Wait::new(WaitKind::StatusWrite, on, detail, released_by);
    wait.since(failed.since).tries(failed.tries).next(failed.next)
}

fn known(
    context: &ExplainContext<'_>,
    pod: &PodFacts,
    snapshot: &PodSnapshot,
    followed: &mut Vec<PodUid>,
) -> Vec<Wait> {
    let wait = &snapshot.wait;
    let released_by = wait.what.released_by();
    match &wait.what {
        WaitFor::Worker => {
            let detail = "its worker has not taken the last update yet";
            let wait = Wait::new(WaitKind::Worker, WaitSubject::only(SubjectKind::Worker), detail, released_by)
                .since(wait.since);
            vec![wait]
        }
        WaitFor::FullName { held_by } => {
            let holder = held_by.as_ref();
            let who = holder.map_or_else(|| "another pod".to_owned(), |uid| format!("the pod with UID {uid}"));
            let on = WaitSubject {
                kind: SubjectKind::Pod,
                name: pod.full_name.to_string(),
                uid: held_by.as_ref().map(ToString::to_string),
            };
            let detail = format!("its name {} is still held by {who}", pod.full_name);
            let mut chain = vec![Wait::new(WaitKind::FullName, on.clone(), detail, released_by).since(wait.since)];
            match holder {
                Some(uid) if followed.contains(uid) => {
                    let detail = format!("{who} is already in this chain: the pods wait for each other");
                    chain.push(Wait::new(WaitKind::Circle, on, detail, "one of them is deleted").below(1));
                }
                Some(uid) => {
                    if let Some(holder) = (context.find)(uid) {
                        followed.push(uid.clone());
                        chain.extend(follow(context, &holder, followed).into_iter().map(|wait| wait.below(1)));
                    }
                }
                None => {}
            }
            chain
        }
        WaitFor::HookCall(Hook::Terminating | Hook::TerminatingRuntime) => stopping(context, pod, snapshot),
        WaitFor::HookCall(hook) => {
            let fails = snapshot.failure.as_ref().is_some_and(|failure| failure.cause != FailureCause::Containers);
            let call = || {
                let detail = format!("{} is under way", doing(*hook));
                let call = Wait::new(
                    WaitKind::HookCall(*hook),
                    WaitSubject::new(SubjectKind::Hook, hook.as_str()),
                    detail,
                    released_by,
                );
                call.since(wait.since).tries(wait.tries.saturating_sub(1))
            };
            let mut chain = activities::waits(pod);
            if fails && chain.is_empty() {
                chain.push(call());
            }
            if let Some(first) = chain.first_mut() {
                tried_before(snapshot, first);
            }
            if snapshot.lifecycle == Lifecycle::Sync {
                // An activity for a container says more than the fact that the container does not run.
                let busy =
                    |wait: &Wait| wait.container.is_some() && chain.iter().any(|w| w.container == wait.container);
                let more: Vec<_> = containers::waits(pod).into_iter().filter(|wait| !busy(wait)).collect();
                let answers = context.node.runtime.is_none() && !fails;
                let reads = answers && chain.iter().all(|wait| wait.what == WaitKind::Runtime);
                let about_to_start = |wait: &Wait| wait.what == WaitKind::ContainerStart && wait.tries.is_none();
                chain = match (reads, more.iter().all(about_to_start)) {
                    (true, false) => more,
                    (_, true) if !chain.is_empty() => chain,
                    _ => chain.into_iter().chain(more).collect(),
                };
            }
            if chain.is_empty() {
                chain.push(call());
            }
            chain.extend(context.node.runtime.as_ref().map(|_| runtime(context)));
            chain
        }
        WaitFor::Retry { hook, error } => retry(context, pod, snapshot, *hook, error),
        WaitFor::Resync => {
            let chain = if snapshot.lifecycle == Lifecycle::Sync { containers::waits(pod) } else { vec![] };
            // The status may be old, because the runtime does not answer.
            let chain: Vec<_> =
                chain.into_iter().chain(context.node.runtime.as_ref().map(|_| runtime(context))).collect();
            if !chain.is_empty() {
                return chain;
            }
            vec![nothing("nothing: it is healthy", released_by).next(wait.next)]
        }
        WaitFor::Removal if snapshot.restart_requested => {
            // A pod of the API server that came back while it stopped has ended, and so has a static pod that had ended before.
            let restarts = pod.starts_anew || !pod.phase().is_terminal();
            let what = if restarts { "restarts it" } else { "forgets it, and it does not run again" };
            let detail = format!("it has finished and was created again: a housekeeping pass {what}");
            housekeeping(context, &detail, wait.since)
        }
        WaitFor::Removal if pod.desired => {
            vec![nothing("nothing: it has finished, and stays listed while its source desires it", released_by)]
        }
        WaitFor::Removal => housekeeping(context, "it has finished: a housekeeping pass forgets it", wait.since),
    }
}

/// The wait of a pod that does not have the resources of its spec, by its conditions.
fn resize(pod: &PodFacts) -> Option<Wait> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let find = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind && condition.status == "True");
    let message = |condition: &PodCondition| condition.message.clone().unwrap_or_default();
    let (condition, detail, released_by) = if let Some(pending) = find(RESIZE_PENDING) {
        let why = message(pending);
        if pending.reason.as_deref() == Some("Infeasible") {
            (pending, format!("its resize is not possible: {why}"), "a change of its resources")
        } else {
            (pending, format!("its resize waits for room on the node: {why}"), "the end or the resize of other pods")
        }
    } else {
        let failed = find(RESIZE_IN_PROGRESS).filter(|condition| condition.message.is_some())?;
        (failed, format!("its resize cannot be applied: {}", message(failed)), "the next try succeeds")
    };
    let since = condition.last_transition_time.as_ref().map(|time| Time::from_timestamp(time.0));
    Some(Wait::new(WaitKind::Resize, WaitSubject::only(SubjectKind::Node), detail, released_by).since(since))
}

fn nothing(detail: &str, released_by: &str) -> Wait {
    Wait::new(WaitKind::Nothing, WaitSubject::only(SubjectKind::Nobody), detail, released_by)
}

/// The waits of a pod whose hook failed. If the cause is known, the cause is the wait, with the tries of the hook.
fn retry(context: &ExplainContext<'_>, pod: &PodFacts, snapshot: &PodSnapshot, hook: Hook, error: &str) -> Vec<Wait> {
    let wait = &snapshot.wait;
    let retried = |w: Wait| w.since(wait.since).tries(wait.tries).next(wait.next);
    // A runtime that does not answer may have caused any error, and it delays the retry.
    let runtime = |depth: usize| context.node.runtime.as_ref().map(|_| runtime(context).below(depth));
    let because = |wait: Wait| std::iter::once(retried(wait)).chain(runtime(1)).collect();
    let cause = snapshot.failure.as_ref().map_or(&FailureCause::Unknown, |failure| &failure.cause);
    if let FailureCause::Volume(bad) = cause {
        let goal = if hook == Hook::Sync { "brought up" } else { "taken down" };
        let detail = format!("volume {:?} cannot be {goal}: {}", bad.volume, bad.reason);
        let on = WaitSubject::new(SubjectKind::Volume, &bad.volume);
        return because(Wait::new(WaitKind::Volume, on, detail, "the next try succeeds, or the pod is changed"));
    }
    if let FailureCause::Network(problem) = cause {
        let detail = format!("there is no network for pods: {problem}");
        let released_by = "the container runtime has its network, which a network plugin sets up";
        return because(Wait::new(WaitKind::Network, WaitSubject::only(SubjectKind::Runtime), detail, released_by));
    }
    let mut containers = if snapshot.lifecycle == Lifecycle::Sync { containers::waits(pod) } else { vec![] };
    let has_failed =
        |wait: &Wait| matches!(wait.what, WaitKind::CrashBackoff | WaitKind::Image) || wait.tries.is_some();
    containers.retain(has_failed);
    if *cause == FailureCause::Containers && !containers.is_empty() {
        // Their waits have the errors of the hook.
        return containers.into_iter().chain(runtime(0)).collect();
    }
    let orphan = if snapshot.deleted && !pod.desired { "no source desires it any more, and " } else { "" };
    let why = match &context.node.runtime {
        // The wait for the runtime has the text of the error.
        Some(outage) if outage.error == error => ", because the container runtime does not answer".to_owned(),
        _ => format!(": {error}"),
    };
    let detail = format!("{orphan}{} failed{why}", doing(hook));
    let released_by = wait.what.released_by();
    let first = retried(Wait::new(
        WaitKind::Retry(hook),
        WaitSubject::new(SubjectKind::Hook, hook.as_str()),
        detail,
        released_by,
    ));
    std::iter::once(first).chain(runtime(1)).chain(containers).collect()
}

/// Adds the error and the count of earlier tries to a wait, while a failed hook runs again.
fn tried_before(snapshot: &PodSnapshot, wait: &mut Wait) {
    // A container's own wait shows its failed starts.
    let Some(failure) = snapshot.failure.as_ref().filter(|failure| failure.cause != FailureCause::Containers) else {
        return;
    };
    wait.tries = wait.tries.or(Some(failure.count));
    wait.detail.push_str(&format!("; the last try failed: {}", failure.error));
}

/// The waits of a pod without a record in the engine: the pod was rejected, or the engine has not received it yet.
fn unknown(context: &ExplainContext<'_>, pod: &PodFacts, followed: &mut Vec<PodUid>) -> Vec<Wait> {
    if let Some(waiting) = &pod.admission {
        return admission(context, waiting, followed);
    }
    match &pod.status {
        _ if pod.starts_anew && pod.phase().is_terminal() => {
            let detail = "it was created again: a pass starts it once the containers of its earlier life are removed";
            housekeeping(context, detail, context.node.last_pass.unwrap_or(context.node.started))
        }
        Some(status) if pod.phase().is_terminal() => {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let (reason, message) = (text(&status.reason), text(&status.message));
            let ports = pod.used_ports.iter().map(|(port, user)| format!("; port {port} is used by {user}"));
            let ports: String = ports.collect();
            let detail = format!("nothing: it may not start on this node ({reason}: {message}){ports}");
            let is_rejected_for_good = pod.object.as_ref().is_none_or(|object| is_final(object, status));
            let released_by = match (is_rejected_for_good, &pod.object) {
                (false, _) if is_lack(&reason) => "the end of pods that use what it needs, or a change of its manifest",
                (false, _) => "the next start of the agent",
                (true, Some(object)) if object.is_static() => "a change of its manifest, or its removal",
                (true, _) => "its removal from its source",
            };
            vec![Wait::new(WaitKind::Rejected, WaitSubject::only(SubjectKind::Nobody), detail, released_by)]
        }
        _ if pod.held => {
            let detail = "its update from the source waits for the container runtime";
            let wait = Wait::new(
                WaitKind::Runtime,
                WaitSubject::only(SubjectKind::Runtime),
                detail,
                "the runtime's containers have been listed",
            );
            let below = context.node.runtime.as_ref().map(|_| runtime(context).below(1));
            std::iter::once(wait).chain(below).collect()
        }
        _ => {
            let first_seen = pod.object.as_ref().and_then(|object| object.first_seen()).unwrap_or(context.node.started);
            housekeeping(context, "the engine has not received it: a housekeeping pass starts it", first_seen)
        }
    }
}

/// The wait of a pod for what other pods give back, and below it how they stop or shrink.
fn admission(context: &ExplainContext<'_>, waiting: &WaitingPod, followed: &mut Vec<PodUid>) -> Vec<Wait> {
    let releasing: Vec<(PodFacts, i64)> = waiting
        .releasing
        .iter()
        .filter_map(|(pod, amount)| Some(((context.find)(pod.uid())?, *amount)))
        .filter(|(pod, _)| pod.lifecycle().is_some_and(|lifecycle| lifecycle < Lifecycle::Terminated))
        .collect();
    let joined = |describe: &dyn Fn(&PodFacts, i64) -> String| {
        let described: Vec<String> = releasing.iter().map(|(pod, amount)| describe(pod, *amount)).collect();
        if described.is_empty() { "pods that have just ended".to_owned() } else { described.join(", ") }
    };
    let on = WaitSubject {
        uid: releasing.first().map(|(pod, _)| pod.uid.to_string()),
        ..WaitSubject::new(SubjectKind::Pod, joined(&|pod, _| pod.full_name.to_string()))
    };
    let given = joined(&|pod, amount| match amount {
        0 => pod.full_name.to_string(),
        amount => {
            format!("{} gives back {}: {}", pod.full_name, waiting.resource, of_resource(&waiting.resource, amount))
        }
    });
    let detail =
        format!("the node has no room for it until other pods have stopped or shrunk ({given}): {}", waiting.lack);
    let released_by = "these pods have stopped or shrunk; what they free is reserved for it";
    let first = Wait::new(WaitKind::Admission, on, detail, released_by).since(waiting.since);
    let mut chain = vec![first];
    for (pod, _) in releasing {
        if !followed.contains(&pod.uid) {
            followed.push(pod.uid.clone());
            // A pod that shrinks runs, and may wait for nothing.
            let below = follow(context, &pod, followed).into_iter().filter(|wait| wait.what != WaitKind::Nothing);
            chain.extend(below.map(|wait| wait.below(1)));
        }
    }
    chain
}

fn stopping(context: &ExplainContext<'_>, pod: &PodFacts, snapshot: &PodSnapshot) -> Vec<Wait> {
    let since = snapshot.wait.since;
    let below = activities::waits(pod);
    let killed_at = below.iter().filter_map(|wait| wait.next).max();
    let (detail, next) = match snapshot.grace {
        Some(grace) => {
            let asked = format!("its containers were asked to stop and have {grace} for it");
            (asked, Some(killed_at.unwrap_or(since + grace.duration())))
        }
        None => ("its containers are being stopped".to_owned(), killed_at),
    };
    let released_by = "its containers end, or are killed at the end of the grace period";
    let on =
        WaitSubject { uid: Some(pod.uid.to_string()), ..WaitSubject::new(SubjectKind::Pod, pod.full_name.to_string()) };
    let first = Wait::new(WaitKind::Grace, on, detail, released_by).since(since).next(next);
    let mut first = first.tries(if snapshot.wait.tries > 1 { snapshot.wait.tries } else { 0 });
    tried_before(snapshot, &mut first);
    let below = below.into_iter().chain(context.node.runtime.as_ref().map(|_| runtime(context)));
    std::iter::once(first).chain(below.map(|wait| wait.below(1))).collect()
}

fn doing(hook: Hook) -> &'static str {
    match hook {
        Hook::Sync => "setting it up",
        Hook::Terminating | Hook::TerminatingRuntime => "stopping its containers",
        Hook::Terminated => "cleaning up after it",
    }
}
