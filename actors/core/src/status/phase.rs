//! Computes a pod's phase from the states of its containers.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};

use super::reasons;
use crate::containers::restart::{Exit, OnExit, on_exit};
use crate::pod::{Phase, PodObject, is_sidecar};

/// Computes the phase from the container statuses in `status` (the kubelet's `getPhase`, 1.36).
///
/// `is_terminal` says that no container runs or may start again; it never ends a static pod. `initialized` says that a
/// regular container was started in the current sandbox, so that a sidecar's restart does not make the pod Pending.
/// `is_starting` says whether a regular container has a new run that is about to start. Such a container keeps the pod alive,
/// whatever the policy says of its last exit: a container with a changed definition is replaced under every policy. A kubelet
/// that restarts before the new run starts ends a pod with the policy `Never`.
pub fn phase(
    pod: &PodObject,
    status: &PodStatus,
    is_terminal: bool,
    initialized: bool,
    is_starting: impl Fn(&str) -> bool,
) -> Phase {
    let mut count = StateCounts::default();

    for init in pod.init_containers() {
        let state = find(&status.init_container_statuses, &init.name);
        if is_sidecar(init) {
            count.sidecar(state);
        } else {
            count.init(pod, init, state);
        }
    }
    for container in pod.containers() {
        count.regular(pod, container, find(&status.container_statuses, &container.name));
        count.may_restart |= is_starting(&container.name);
    }

    if count.init_failed {
        Phase::Failed
    } else if count.init_pending || (count.sidecar_pending && !initialized) || count.waiting || count.unknown {
        Phase::Pending
    } else if count.running {
        Phase::Running
    } else if count.stopped {
        let ended = if count.failed { Phase::Failed } else { Phase::Succeeded };
        let for_good = is_terminal && !pod.is_static();
        if count.may_restart && !for_good { Phase::Running } else { ended }
    } else {
        Phase::Pending
    }
}

fn find<'a>(list: &'a Option<Vec<ContainerStatus>>, name: &str) -> Option<CountedState<'a>> {
    list.as_deref().unwrap_or_default().iter().find(|status| status.name == name).map(CountedState::of)
}

/// Whether a container waits because all containers of its pod start again.
fn restarts_with_all(exit: Exit<'_>) -> bool {
    exit.reason == reasons::RESTARTING_ALL
}

/// The counted container states. Several may be set at once.
#[derive(Default)]
struct StateCounts {
    init_failed: bool,
    init_pending: bool,
    sidecar_pending: bool,
    waiting: bool,
    running: bool,
    stopped: bool,
    /// A stopped container has an exit code other than 0.
    failed: bool,
    may_restart: bool,
    unknown: bool,
}

/// The container states that the phase distinguishes.
#[derive(Clone, Copy)]
enum CountedState<'a> {
    Running {
        started: bool,
    },
    Exited(Exit<'a>),
    /// The container waits after an exit.
    Again(Exit<'a>),
    Waiting,
    Nothing,
}

impl<'a> CountedState<'a> {
    fn of(status: &'a ContainerStatus) -> Self {
        let Some(state) = &status.state else { return CountedState::Nothing };
        let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
        if state.running.is_some() {
            CountedState::Running { started: status.started == Some(true) }
        } else if let Some(end) = &state.terminated {
            CountedState::Exited(end.into())
        } else if state.waiting.is_some() {
            last.map_or(CountedState::Waiting, |last| CountedState::Again(last.into()))
        } else {
            CountedState::Nothing
        }
    }
}

impl StateCounts {
    fn init(&mut self, pod: &PodObject, init: &Container, state: Option<CountedState<'_>>) {
        match state {
            Some(CountedState::Exited(exit)) if exit.is_success() => {}
            Some(CountedState::Again(exit)) if restarts_with_all(exit) => self.init_pending = true,
            Some(CountedState::Exited(exit) | CountedState::Again(exit)) => {
                if exit.code != 0 && on_exit(pod.spec(), init, exit, true) == OnExit::Stay {
                    self.init_failed = true;
                } else {
                    self.init_pending = true;
                }
            }
            Some(CountedState::Running { .. } | CountedState::Waiting | CountedState::Nothing) | None => {
                self.init_pending = true
            }
        }
    }

    fn sidecar(&mut self, state: Option<CountedState<'_>>) {
        match state {
            Some(CountedState::Running { started }) => {
                self.running = true;
                self.sidecar_pending |= !started;
            }
            // A stopped sidecar does not count.
            Some(CountedState::Exited(_) | CountedState::Again(_)) => {}
            Some(CountedState::Waiting) => {
                self.sidecar_pending = true;
                self.waiting = true;
            }
            Some(CountedState::Nothing) => {
                self.sidecar_pending = true;
                self.unknown = true;
            }
            None => self.unknown = true,
        }
    }

    fn regular(&mut self, pod: &PodObject, container: &Container, state: Option<CountedState<'_>>) {
        let may_restart = |exit: Exit<'_>| on_exit(pod.spec(), container, exit, false) != OnExit::Stay;
        match state {
            Some(CountedState::Running { .. }) => self.running = true,
            Some(CountedState::Exited(exit)) => {
                self.stopped = true;
                self.failed |= exit.code != 0;
                self.may_restart |= may_restart(exit);
            }
            Some(CountedState::Again(exit)) => {
                self.stopped = true;
                // The container waits for a restart, so its last exit does not count as a success.
                self.failed = true;
                self.may_restart |= restarts_with_all(exit) || may_restart(exit);
            }
            Some(CountedState::Waiting) => self.waiting = true,
            Some(CountedState::Nothing) | None => self.unknown = true,
        }
    }
}
