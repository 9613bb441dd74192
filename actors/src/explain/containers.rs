//! Derives the waits of a running pod's containers from their statuses and start errors. Pure.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};

use crate::containers::definition::Definition;
use crate::ids::ContainerName;
use crate::pod::PodObject;
use crate::text::error_chain;
use crate::time::Time;

use super::facts::PodFacts;
use super::wait::{SubjectKind, Wait, WaitKind, WaitSubject};

/// The waits, in the order in which the containers start.
pub(super) fn waits(pod: &PodFacts) -> Vec<Wait> {
    let (Some(object), Some(status)) = (&pod.object, &pod.status) else { return vec![] };
    let ephemeral = object.ephemeral_containers().iter().map(Definition::Ephemeral);
    let ephemeral = pairs(ephemeral, status.ephemeral_container_statuses.as_deref());
    // Ephemeral containers start independently of the others.
    let debugging = ephemeral.filter_map(|(container, have)| wait(pod, container, have));
    let mut all = init(pod, object, status);
    if all.iter().any(|wait| wait.what == WaitKind::InitContainer) {
        // No later container can start.
        all.extend(debugging);
        return all;
    }
    let regular = object.containers().iter().map(Definition::Regular);
    for (container, have) in pairs(regular, status.container_statuses.as_deref()) {
        all.extend(wait(pod, container, have));
    }
    all.extend(debugging);
    all.extend(gates(object, status));
    all
}

fn init(pod: &PodFacts, object: &PodObject, status: &PodStatus) -> Vec<Wait> {
    let containers = object.init_containers();
    let mut all = Vec::new();
    let init = containers.iter().map(Definition::Init);
    for (container, have) in pairs(init, status.init_container_statuses.as_deref()) {
        all.extend(wait(pod, container, have));
        let runs = have.state.as_ref().and_then(|state| state.running.as_ref());
        if let Some(running) = runs
            && !container.is_sidecar()
        {
            let name = container.name();
            let number = containers.iter().take_while(|other| other.name != name).count() + 1;
            let detail = format!("init container {name:?} ({number} of {}) runs", containers.len());
            let wait = Wait::of_container(WaitKind::InitContainer, name, detail, "it ends with exit code 0");
            all.push(wait.since(running.started_at.as_ref().map(|at| Time::from_timestamp(at.0))));
        }
    }
    all
}

/// The containers that have a status, each with its status.
fn pairs<'a>(
    containers: impl Iterator<Item = Definition<'a>>,
    statuses: Option<&'a [ContainerStatus]>,
) -> impl Iterator<Item = (Definition<'a>, &'a ContainerStatus)> {
    let statuses = statuses.unwrap_or_default();
    containers
        .filter_map(move |container| Some((container, statuses.iter().find(|status| status.name == container.name())?)))
}

/// The wait of one container, except for the end of an init container.
fn wait(pod: &PodFacts, container: Definition<'_>, have: &ContainerStatus) -> Option<Wait> {
    let state = have.state.as_ref()?;
    let name = container.name();
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let message = waiting.message.as_deref().filter(|message| !message.is_empty());
        let reasons = message.map(|message| format!(": {message}")).unwrap_or_default();
        let error = pod.start_errors.get(&ContainerName::from(name));
        // The worker notices the end of a backoff at its next retry, which jitter delays.
        let retry = pod.snapshot.as_ref().and_then(|snapshot| snapshot.wait.next);
        let next = error.and_then(|error| error.until).map(|until| retry.map_or(until, |retry| retry.max(until)));
        return match reason {
            // The wait of the running init container covers this.
            "PodInitializing" => None,
            "CrashLoopBackOff" => {
                let detail = format!("container {name:?} waits out its crash backoff{}", last_end(have));
                let released_by = "the end of the backoff; it is started again then";
                let runs = u32::try_from(have.restart_count).unwrap_or(0).saturating_add(1);
                let wait = Wait::of_container(WaitKind::CrashBackoff, name, detail, released_by);
                Some(wait.since(ended_at(have)).tries(runs).next(next))
            }
            "ErrImagePull"
            | "RegistryUnavailable"
            | "SignatureValidationFailed"
            | "ImagePullBackOff"
            | "ErrImageNeverPull"
            | "InvalidImageName"
            | "ImageInspectError" => {
                let image = container.image();
                let failure = pod.pulls.get(image);
                let why = failure.map_or(reasons, |failure| format!(": {}", error_chain(&failure.error)));
                let detail = format!("container {name:?}: image {image:?} is not available ({reason}){why}");
                let wait = Wait {
                    container: Some(name.to_owned()),
                    ..Wait::new(
                        WaitKind::Image,
                        WaitSubject::new(SubjectKind::Image, image),
                        detail,
                        "the image is available",
                    )
                };
                let tries = failure.map_or(0, |failure| failure.tries);
                Some(wait.since(failure.map(|failure| failure.since)).tries(tries).next(next.or(retry)))
            }
            "" | "ContainerCreating" => {
                let detail = format!("container {name:?} is about to be started");
                let released_by = "volumes and sandbox are there, and the runtime starts it";
                Some(Wait::of_container(WaitKind::ContainerStart, name, detail, released_by))
            }
            _ => {
                let detail = format!("container {name:?} cannot be started ({reason}){reasons}");
                let released_by = start_remedy(message.unwrap_or_default());
                let snapshot = pod.snapshot.as_ref();
                let wait = Wait::of_container(WaitKind::ContainerStart, name, detail, released_by);
                let tries = snapshot.map_or(1, |snapshot| snapshot.wait.tries.max(1));
                let since = error.map(|error| error.since);
                Some(wait.since(since).tries(tries).next(next.or(retry)))
            }
        };
    }
    let running = state.running.as_ref()?;
    let probe = match (have.started, have.ready) {
        (Some(false) | None, _) if container.startup().is_some() => "startup",
        (_, false) if container.readiness().is_some() => "readiness",
        _ => return None,
    };
    let detail = format!("the {probe} probe of container {name:?} has not passed");
    let wait = Wait::of_container(WaitKind::Probe, name, detail, "the probe passes");
    Some(wait.since(running.started_at.as_ref().map(|at| Time::from_timestamp(at.0))))
}

/// What lets a container start whose waiting message is the kubelet's, which names no remedy.
fn start_remedy(message: &str) -> &'static str {
    if message.contains("breaks non-root policy") {
        "runAsUser is set to a number other than 0, or runAsNonRoot is removed"
    } else if message.contains("has runAsNonRoot and image") {
        "runAsUser is set to a number other than 0, or the image has a user with such a number"
    } else {
        "the next try succeeds, or the pod is changed"
    }
}

fn gates(object: &PodObject, status: &PodStatus) -> Vec<Wait> {
    let condition = |name: &str| {
        let conditions = status.conditions.iter().flatten();
        conditions.into_iter().find(|condition| condition.type_ == name)
    };
    let time =
        |at: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| at.map(|at| Time::from_timestamp(at.0));
    let gates = object.spec().readiness_gates.iter().flatten();
    gates
        .map(|gate| (&gate.condition_type, condition(&gate.condition_type)))
        .filter(|(_, have)| have.is_none_or(|condition| condition.status != "True"))
        .map(|(name, have)| {
            let since = have.and_then(|condition| condition.last_transition_time.as_ref());
            let detail = format!("readiness gate {name:?} is not met");
            let on = WaitSubject::new(SubjectKind::Condition, name);
            let wait = Wait::new(WaitKind::ReadinessGate, on, detail, "the condition becomes True");
            wait.since(time(since.or(status.start_time.as_ref())))
        })
        .collect()
}

/// The container's last exit, as the end of a sentence: `: it ended with exit code 1 (Error)`.
fn last_end(have: &ContainerStatus) -> String {
    let ends = [&have.state, &have.last_state];
    let Some(end) = ends.into_iter().find_map(|state| state.as_ref()?.terminated.as_ref()) else {
        return String::new();
    };
    let reason = end.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    match end.signal.filter(|signal| *signal != 0) {
        Some(signal) => format!(": it was ended by signal {signal}{reason}"),
        None => format!(": it ended with exit code {}{reason}", end.exit_code),
    }
}

fn ended_at(have: &ContainerStatus) -> Option<Time> {
    let end = have.last_state.as_ref()?.terminated.as_ref()?;
    end.finished_at.as_ref().map(|at| Time::from_timestamp(at.0))
}
