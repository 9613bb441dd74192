//! Builds the chain of waits of one pod.

use crate::engine::PodSnapshot;
use crate::health::HOUSEKEEPING_PERIOD;
use crate::ids::PodUid;
use crate::pod_worker::{Hook, Lifecycle, WaitFor};
use crate::ports::{Blame, Unready};
use crate::status::short_age;
use crate::time::Time;

use super::facts::{NodeState, PodFacts};
use super::wait::{On, Subject, Wait, What};
use super::{activities, containers};

/// The context in which a chain is built.
pub(super) struct Cx<'a> {
    pub(super) now: Time,
    pub(super) node: &'a NodeState,
    /// Finds another pod by UID.
    pub(super) find: &'a dyn Fn(&PodUid) -> Option<PodFacts>,
}

/// The waits of a pod: its own waits at depth 0, and below each wait the cause of that wait. Never empty.
pub(super) fn chain(cx: &Cx<'_>, pod: &PodFacts) -> Vec<Wait> {
    follow(cx, pod, &mut vec![pod.uid.clone()])
}

fn follow(cx: &Cx<'_>, pod: &PodFacts, seen: &mut Vec<PodUid>) -> Vec<Wait> {
    let mut chain = match &pod.snapshot {
        Some(snapshot) => known(cx, pod, snapshot, seen),
        None => unknown(cx, pod),
    };
    let is_explained_by_record = pod.desired || pod.lifecycle() >= Some(Lifecycle::Terminating);
    if let (false, Some(snapshot)) = (is_explained_by_record, &pod.snapshot) {
        let since = snapshot.transitions.last().map_or(snapshot.synced_at, |last| last.at);
        chain = housekeeping(cx, "no source desires it any more: a housekeeping pass stops it", since);
    }
    if let Some(turn) = &pod.stop {
        let stops = pod.lifecycle() >= Some(Lifecycle::Terminating);
        if stops && !matches!(chain[0].what, What::Nothing) {
            let detail = "the node shuts down, and stops it by then at the latest";
            let wait = Wait::new(What::Shutdown, On::only(Subject::Shutdown), detail, "the pod has stopped");
            chain.push(wait.since(turn.since).next(turn.ends).below(1));
        } else if !stops && turn.begins > cx.now {
            let others = if turn.before == 1 { "1 pod stops".to_owned() } else { format!("{} pods stop", turn.before) };
            let detail = format!("the node shuts down: {others} before it, and it is stopped after them");
            let wait =
                Wait::new(What::Shutdown, On::only(Subject::Shutdown), detail, "the pods before it have stopped");
            chain.retain(|wait| wait.what != What::Nothing);
            chain.insert(0, wait.since(turn.since).next(turn.begins));
        }
    }
    chain
}

fn known(cx: &Cx<'_>, pod: &PodFacts, snapshot: &PodSnapshot, seen: &mut Vec<PodUid>) -> Vec<Wait> {
    let wait = &snapshot.wait;
    let released_by = wait.what.released_by();
    match &wait.what {
        WaitFor::Worker => {
            let detail = "its worker has not taken the last update yet";
            let wait = Wait::new(What::Worker, On::only(Subject::Worker), detail, released_by).since(wait.since);
            vec![wait]
        }
        WaitFor::FullName { held_by } => {
            let holder = held_by.as_ref();
            let who = holder.map_or_else(|| "another pod".to_owned(), |uid| format!("the pod with UID {uid}"));
            let on = On {
                kind: Subject::Pod,
                name: pod.full_name.to_string(),
                uid: held_by.as_ref().map(ToString::to_string),
            };
            let detail = format!("its name {} is still held by {who}", pod.full_name);
            let mut chain = vec![Wait::new(What::FullName, on.clone(), detail, released_by).since(wait.since)];
            match holder {
                Some(uid) if seen.contains(uid) => {
                    let detail = format!("{who} is already in this chain: the pods wait for each other");
                    chain.push(Wait::new(What::Circle, on, detail, "one of them is deleted").below(1));
                }
                Some(uid) => {
                    if let Some(holder) = (cx.find)(uid) {
                        seen.push(uid.clone());
                        chain.extend(follow(cx, &holder, seen).into_iter().map(|wait| wait.below(1)));
                    }
                }
                None => {}
            }
            chain
        }
        WaitFor::HookCall(Hook::Terminating | Hook::TerminatingRuntime) => stopping(cx, pod, snapshot),
        WaitFor::HookCall(hook) => {
            let fails = snapshot.failure.as_ref().is_some_and(|failure| failure.blame != Blame::Containers);
            let call = || {
                let detail = format!("{} is under way ({})", doing(*hook), hook.as_str());
                let call = Wait::new(What::HookCall(*hook), On::new(Subject::Hook, hook.as_str()), detail, released_by);
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
                let answers = cx.node.runtime.is_none() && !fails;
                let reads = answers && chain.iter().all(|wait| wait.what == What::Runtime);
                let about_to_start = |wait: &Wait| wait.what == What::ContainerStart && wait.tries.is_none();
                chain = match (reads, more.iter().all(about_to_start)) {
                    (true, false) => more,
                    (_, true) if !chain.is_empty() => chain,
                    _ => chain.into_iter().chain(more).collect(),
                };
            }
            if chain.is_empty() {
                chain.push(call());
            }
            chain.extend(cx.node.runtime.as_ref().map(|_| runtime(cx)));
            chain
        }
        WaitFor::Retry { hook, error } => retry(cx, pod, snapshot, *hook, error),
        WaitFor::Resync => {
            let chain = if snapshot.lifecycle == Lifecycle::Sync { containers::waits(pod) } else { vec![] };
            // The status may be old, because the runtime does not answer.
            let chain: Vec<_> = chain.into_iter().chain(cx.node.runtime.as_ref().map(|_| runtime(cx))).collect();
            if !chain.is_empty() {
                return chain;
            }
            vec![nothing("nothing: it is healthy", released_by).next(wait.next)]
        }
        WaitFor::Removal if snapshot.restart_requested => {
            housekeeping(cx, "it has finished and was created again: a housekeeping pass restarts it", wait.since)
        }
        WaitFor::Removal if pod.desired => {
            vec![nothing("nothing: it has finished, and stays listed while its source desires it", released_by)]
        }
        WaitFor::Removal => housekeeping(cx, "it has finished: a housekeeping pass forgets it", wait.since),
    }
}

fn nothing(detail: &str, released_by: &str) -> Wait {
    Wait::new(What::Nothing, On::only(Subject::Nobody), detail, released_by)
}

/// The waits of a pod whose hook failed. If the cause is known, the cause is the wait, with the tries of the hook.
fn retry(cx: &Cx<'_>, pod: &PodFacts, snapshot: &PodSnapshot, hook: Hook, error: &str) -> Vec<Wait> {
    let wait = &snapshot.wait;
    let retried = |w: Wait| w.since(wait.since).tries(wait.tries).next(wait.next);
    // Whatever the error was, a runtime that does not answer may have caused it and delays the retry.
    let runtime = |depth: usize| cx.node.runtime.as_ref().map(|_| runtime(cx).below(depth));
    let because = |wait: Wait| std::iter::once(retried(wait)).chain(runtime(1)).collect();
    let blame = snapshot.failure.as_ref().map_or(&Blame::Nothing, |failure| &failure.blame);
    if let Blame::Volume(bad) = blame {
        let goal = if hook == Hook::Sync { "brought up" } else { "taken down" };
        let detail = format!("volume {:?} cannot be {goal}: {}", bad.volume, bad.reason);
        let on = On::new(Subject::Volume, &bad.volume);
        return because(Wait::new(What::Volume, on, detail, "the next try succeeds, or the pod is changed"));
    }
    if let Blame::Network(problem) = blame {
        let detail = format!("there is no network for pods: {problem}");
        let released_by = "the container runtime has its network, which a network plugin sets up";
        return because(Wait::new(What::Network, On::only(Subject::Runtime), detail, released_by));
    }
    let containers = if snapshot.lifecycle == Lifecycle::Sync { containers::waits(pod) } else { vec![] };
    let own = |wait: &Wait| matches!(wait.what, What::CrashBackoff | What::Image);
    if *blame == Blame::Containers && !containers.is_empty() && containers.iter().all(own) {
        return containers.into_iter().chain(runtime(0)).collect();
    }
    let orphan = if snapshot.deleted && !pod.desired { "no source desires it any more, and " } else { "" };
    let detail = format!("{orphan}{} failed ({}): {error}", doing(hook), hook.as_str());
    let released_by = wait.what.released_by();
    let first = retried(Wait::new(What::Retry(hook), On::new(Subject::Hook, hook.as_str()), detail, released_by));
    // The waits of the containers are the cause of the failure, or come after it.
    let depth = usize::from(*blame == Blame::Containers);
    let containers = containers.into_iter().filter(|wait| own(wait) || wait.tries.is_some());
    let (why, later): (Vec<Wait>, Vec<Wait>) =
        containers.map(|wait| wait.below(depth)).partition(|wait| wait.depth > 0);
    std::iter::once(first).chain(why).chain(runtime(1)).chain(later).collect()
}

/// Adds the error and the count of earlier tries to a wait, while a failed hook runs again.
fn tried_before(snapshot: &PodSnapshot, wait: &mut Wait) {
    // A container's own wait shows its failed starts.
    let Some(failure) = snapshot.failure.as_ref().filter(|failure| failure.blame != Blame::Containers) else { return };
    wait.tries = wait.tries.or(Some(failure.count));
    wait.detail.push_str(&format!("; the last try failed: {}", failure.error));
}

/// The wait for a runtime that does not answer.
fn runtime(cx: &Cx<'_>) -> Wait {
    let on = On::only(Subject::Runtime);
    let wait = |error: &str| {
        let detail = format!("the container runtime does not answer: {error}");
        Wait::new(What::Runtime, on.clone(), detail, "the runtime answers again; it is called every second")
    };
    match &cx.node.runtime {
        Some(failing) => wait(&failing.error).since(failing.since).tries(failing.tries),
        None => wait("it has not answered yet"),
    }
}

/// The problems that hold up every pod: the runtime does not answer or is not ready, or a source has not sent its pods.
pub(super) fn node_problems(cx: &Cx<'_>) -> Vec<Wait> {
    let silent = cx.node.runtime.as_ref().map(|_| runtime(cx));
    let Unready { runtime, network } = &cx.node.unready;
    let lacks = |what, why: &Option<String>| {
        Some(Wait::new(what, On::only(Subject::Runtime), why.as_ref()?, "the runtime says that it is there"))
    };
    let (runtime, network) = (lacks(What::Runtime, runtime), lacks(What::Network, network));
    [silent, runtime, network, sources(cx)].into_iter().flatten().collect()
}

/// Why housekeeping passes do not run yet: a source has not sent its pods.
fn sources(cx: &Cx<'_>) -> Option<Wait> {
    let missing = &cx.node.missing_sources;
    let names = missing.iter().map(|source| source.kind.as_str()).collect::<Vec<_>>();
    let reasons = missing.iter().map(|source| format!("{}{}", source.kind, source.reason())).collect::<Vec<_>>();
    let names = (!names.is_empty()).then(|| names.join(", "))?;
    let reasons = reasons.join(", ");
    let detail = format!("housekeeping begins when every source has sent its pods; missing: {reasons}");
    let on = On::new(Subject::Source, names);
    Some(Wait::new(What::Source, on, detail, "the source sends its pods").since(cx.node.started))
}

/// The wait for a housekeeping pass, and why passes do not run.
fn housekeeping(cx: &Cx<'_>, detail: &str, since: Time) -> Vec<Wait> {
    let on = On::only(Subject::Housekeeping);
    let mut first = Wait::new(What::Housekeeping, on, detail, "the next housekeeping pass").since(since);
    let mut below = Vec::new();
    if let Some(source) = sources(cx) {
        below.push(source);
    } else if let Some(failing) = &cx.node.passes {
        first.detail.push_str(&format!("; passes end early: {}", failing.error));
        first.tries = Some(failing.tries);
        if cx.node.runtime.is_some() {
            below.push(runtime(cx));
        }
    }
    if below.iter().all(|wait| wait.what != What::Source) {
        first.next = cx.node.last_pass.map(|last| (last + HOUSEKEEPING_PERIOD).max(cx.now));
    }
    std::iter::once(first).chain(below.into_iter().map(|wait| wait.below(1))).collect()
}

/// The waits of a pod without a record in the engine: the pod was rejected, or the engine has not received it yet.
fn unknown(cx: &Cx<'_>, pod: &PodFacts) -> Vec<Wait> {
    match &pod.status {
        Some(status) if pod.phase().is_terminal() => {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let (reason, message) = (text(&status.reason), text(&status.message));
            let detail = format!("nothing: it may not start on this node ({reason}: {message})");
            let remedy = "a new version of the pod, or a new start of the agent, once there is room";
            vec![Wait::new(What::Rejected, On::only(Subject::Nobody), detail, remedy)]
        }
        _ if pod.held => {
            let detail = "its update from the source waits for the container runtime";
            let wait = Wait::new(
                What::Runtime,
                On::only(Subject::Runtime),
                detail,
                "the runtime's containers have been listed",
            );
            let below = cx.node.runtime.as_ref().map(|_| runtime(cx).below(1));
            std::iter::once(wait).chain(below).collect()
        }
        _ => {
            let first_seen = pod.object.as_ref().and_then(|object| object.first_seen()).unwrap_or(cx.node.started);
            housekeeping(cx, "the engine has not received it: a housekeeping pass starts it", first_seen)
        }
    }
}

fn stopping(cx: &Cx<'_>, pod: &PodFacts, snapshot: &PodSnapshot) -> Vec<Wait> {
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
    let on = On { uid: Some(pod.uid.to_string()), ..On::new(Subject::Pod, pod.full_name.to_string()) };
    let first = Wait::new(What::Grace, on, detail, released_by).since(since).next(next);
    let mut first = first.tries(if snapshot.wait.tries > 1 { snapshot.wait.tries } else { 0 });
    tried_before(snapshot, &mut first);
    let below = below.into_iter().chain(cx.node.runtime.as_ref().map(|_| runtime(cx)));
    std::iter::once(first).chain(below.map(|wait| wait.below(1))).collect()
}

fn doing(hook: Hook) -> &'static str {
    match hook {
        Hook::Sync => "setting it up",
        Hook::Terminating | Hook::TerminatingRuntime => "stopping its containers",
        Hook::Terminated => "cleaning up after it",
    }
}

/// The nearest wait in a few words, for a table or a heading; empty if the pod waits for nothing.
pub(super) fn short(chain: &[Wait], now: Time) -> String {
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
        What::Nothing => String::new(),
        What::Housekeeping => "housekeeping".into(),
        What::Source => format!("source {name}"),
        What::Rejected => "room on the node".into(),
        What::Worker => "its worker".into(),
        What::FullName => "its name, held by an earlier pod".into(),
        What::Circle => "itself".into(),
        What::HookCall(hook) => format!("its {} to end", goal(hook)),
        What::Retry(hook) => retried(format!("its {} to succeed", goal(hook))),
        What::Runtime => "the container runtime".into(),
        What::Network => "the network for pods".into(),
        What::Volume => retried(if name.is_empty() { "its volumes".into() } else { format!("volume {name}") }),
        What::Resources => "its cgroup".into(),
        What::Governor => match &wait.container {
            Some(container) => format!("the start governor, for container {container}"),
            None => "the start governor".into(),
        },
        What::Sandbox => "its sandbox".into(),
        What::Image => retried(of(&format!("image {name}"))),
        What::CrashBackoff => left(of("the crash backoff")),
        What::ContainerStart => retried(of("the start")),
        What::LifecycleHook(hook) => left(of(&format!("the {} hook", hook.as_str()))),
        What::InitContainer => format!("the end of init container {name}"),
        What::Probe => of("a probe"),
        What::ReadinessGate => format!("readiness gate {name}"),
        What::Grace => left("its containers to stop".into()),
        What::ContainerStop | What::StopOrder => left(of("the end")),
        What::Shutdown => left("its turn in the node's shutdown".into()),
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
