//! What the containers of a running pod wait for, from its status.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};
use podwright::actors::pod::{PodObject, is_sidecar};
use podwright::actors::time::Time;

use super::{Kind, Wait};
use crate::agent::view::PodFacts;

/// The waits, in the order in which the containers start.
pub(super) fn waits(pod: &PodFacts) -> Vec<Wait> {
    let (Some(object), Some(status)) = (&pod.object, &pod.status) else { return vec![] };
    let mut all = init(object, status);
    if all.iter().any(|wait| wait.kind == Kind::InitContainer) {
        // Nothing after it can start.
        return all;
    }
    for (container, have) in pairs(object.containers(), status.container_statuses.as_deref()) {
        all.extend(wait(container, have));
    }
    all.extend(gates(object, status));
    all
}

fn init(object: &PodObject, status: &PodStatus) -> Vec<Wait> {
    let containers = object.init_containers();
    let mut all = Vec::new();
    for (container, have) in pairs(containers, status.init_container_statuses.as_deref()) {
        all.extend(wait(container, have));
        let runs = have.state.as_ref().and_then(|state| state.running.as_ref());
        if let Some(running) = runs
            && !is_sidecar(container)
        {
            let number = containers.iter().take_while(|other| other.name != container.name).count() + 1;
            all.push(Wait {
                kind: Kind::InitContainer,
                what: format!("init container {:?} ({number} of {}) runs", container.name, containers.len()),
                since: running.started_at.as_ref().map(|at| Time::from_timestamp(at.0)),
                released_by: "it ends with exit code 0".into(),
                ..of(container)
            });
        }
    }
    all
}

/// The containers that have a status, with it.
fn pairs<'a>(
    containers: &'a [Container],
    statuses: Option<&'a [ContainerStatus]>,
) -> impl Iterator<Item = (&'a Container, &'a ContainerStatus)> {
    let statuses = statuses.unwrap_or_default();
    containers.iter().filter_map(|container| Some((container, statuses.iter().find(|s| s.name == container.name)?)))
}

/// What one container waits for, but for the end of an init container.
fn wait(container: &Container, have: &ContainerStatus) -> Option<Wait> {
    let state = have.state.as_ref()?;
    let name = &container.name;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let message = waiting.message.as_deref().filter(|message| !message.is_empty());
        let told = message.map(|message| format!(": {message}")).unwrap_or_default();
        return match reason {
            // Told by the init container that runs.
            "PodInitializing" => None,
            "CrashLoopBackOff" => Some(Wait {
                kind: Kind::CrashBackoff,
                what: format!("container {name:?} waits out its crash backoff{}", last_end(have)),
                since: ended_at(have),
                tries: u32::try_from(have.restart_count).ok().map(|restarts| restarts.saturating_add(1)),
                released_by: "the end of the backoff; it is started again then".into(),
                ..of(container)
            }),
            "ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName" | "ImageInspectError" => {
                Some(Wait {
                    kind: Kind::Image,
                    what: format!("container {name:?} waits for its image ({reason}){told}"),
                    released_by: "the image can be had".into(),
                    ..of(container)
                })
            }
            "" | "ContainerCreating" => Some(Wait {
                kind: Kind::ContainerStart,
                what: format!("container {name:?} is about to be started"),
                released_by: "volumes and sandbox are there, and the runtime starts it".into(),
                ..of(container)
            }),
            _ => Some(Wait {
                kind: Kind::ContainerStart,
                what: format!("container {name:?} cannot be started ({reason}){told}"),
                released_by: "the next try succeeds, or the pod is changed".into(),
                ..of(container)
            }),
        };
    }
    let running = state.running.as_ref()?;
    let (probe, released_by) = match (have.started, have.ready) {
        (Some(false) | None, _) if container.startup_probe.is_some() => ("startup", "the probe passes"),
        (_, false) if container.readiness_probe.is_some() => ("readiness", "the probe passes"),
        _ => return None,
    };
    Some(Wait {
        kind: Kind::Probe,
        what: format!("the {probe} probe of container {name:?} has not passed"),
        since: running.started_at.as_ref().map(|at| Time::from_timestamp(at.0)),
        released_by: released_by.into(),
        ..of(container)
    })
}

fn gates(object: &PodObject, status: &PodStatus) -> Vec<Wait> {
    let met = |name: &str| {
        let conditions = status.conditions.iter().flatten();
        conditions.into_iter().any(|condition| condition.type_ == name && condition.status == "True")
    };
    let gates = object.spec().readiness_gates.iter().flatten();
    gates
        .filter(|gate| !met(&gate.condition_type))
        .map(|gate| Wait {
            kind: Kind::ReadinessGate,
            what: format!("readiness gate {:?} is not met", gate.condition_type),
            released_by: "somebody sets that condition to True".into(),
            ..nobody()
        })
        .collect()
}

/// `: it ended with exit code 1 (Error)`.
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

fn of(container: &Container) -> Wait {
    Wait { container: Some(container.name.clone()), ..nobody() }
}

fn nobody() -> Wait {
    Wait {
        kind: Kind::ContainerStart,
        what: String::new(),
        container: None,
        pod: None,
        since: None,
        tries: None,
        until: None,
        released_by: String::new(),
        because: vec![],
    }
}
