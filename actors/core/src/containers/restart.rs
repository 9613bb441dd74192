//! Decides whether a container that exited may be started again. Pure.

use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, ContainerStateTerminated, PodSpec};

use crate::pod::is_sidecar;
use crate::ports::ContainerStatus;

/// The reason of the exit of a run that the agent stopped to start its container again with other resources. The exit code of such a run
/// says nothing about the work of the container: a process that handles the signal often exits with 0.
pub const STOPPED_FOR_RESIZE: &str = "StoppedForResize";

/// The exit of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit<'a> {
    /// The exit code.
    pub code: i32,
    /// The reason; empty if there is none.
    pub reason: &'a str,
}

impl Exit<'_> {
    /// Whether the container has completed its work.
    pub fn is_success(self) -> bool {
        self.code == 0 && !self.is_for_resize()
    }

    /// Whether the agent stopped the run to start its container again with other resources.
    pub fn is_for_resize(self) -> bool {
        self.reason == STOPPED_FOR_RESIZE
    }
}

impl From<i32> for Exit<'_> {
    fn from(code: i32) -> Self {
        Exit { code, reason: "" }
    }
}

impl<'a> From<&'a ContainerStatus> for Exit<'a> {
    fn from(run: &'a ContainerStatus) -> Self {
        Exit { code: run.exit_code, reason: &run.reason }
    }
}

impl<'a> From<&'a ContainerStateTerminated> for Exit<'a> {
    fn from(end: &'a ContainerStateTerminated) -> Self {
        Exit { code: end.exit_code, reason: end.reason.as_deref().unwrap_or_default() }
    }
}

/// The restart policy of a pod or of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestartPolicy {
    /// Restart after every exit.
    Always,
    /// Restart after a failure.
    OnFailure,
    /// Never restart.
    Never,
}

impl RestartPolicy {
    /// Parses the API's text; unset means `Always` (the kubelet's `ShouldContainerBeRestarted`).
    pub fn parse(text: Option<&str>) -> Self {
        match text {
            Some("OnFailure") => RestartPolicy::OnFailure,
            Some("Never") => RestartPolicy::Never,
            _ => RestartPolicy::Always,
        }
    }

    /// Whether a container that exited with `exit_code` starts again.
    pub fn restarts(self, exit_code: i32) -> bool {
        match self {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit_code != 0,
            RestartPolicy::Never => false,
        }
    }

    /// The policy of a container: its own, else the pod's. For an init container without its own policy, the pod's
    /// `Always` means `OnFailure`. A sidecar has its own policy `Always`.
    pub fn effective(spec: &PodSpec, container: &Container) -> Self {
        RestartPolicy::parse(container.restart_policy.as_deref().or(spec.restart_policy.as_deref()))
    }
}

/// The result of a container's exit, by its `restartPolicyRules` (KEP-5307) and its policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnExit {
    /// The container stays exited.
    Stay,
    /// The container starts again.
    Restart,
    /// Every container of the pod starts again (KEP-5532).
    RestartAllContainers,
}

const RESTART_ALL: &str = "RestartAllContainers";

/// Decides the result of an exit of a regular or init container: the first rule that matches decides, else the policy. A container that
/// was stopped for a resize starts again under every policy.
///
/// An init container that succeeded does not restart under the pod's policy.
pub fn on_exit<'a>(spec: &PodSpec, container: &Container, exit: impl Into<Exit<'a>>, init: bool) -> OnExit {
    let exit = exit.into();
    if exit.is_for_resize() {
        return OnExit::Restart;
    }
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    if let Some(rule) = rules.iter().find(|rule| matches(rule, exit.code)) {
        return match rule.action.as_str() {
            RESTART_ALL => OnExit::RestartAllContainers,
            _ => OnExit::Restart,
        };
    }
    let policy = match RestartPolicy::effective(spec, container) {
        RestartPolicy::Always if init && !is_sidecar(container) => RestartPolicy::OnFailure,
        policy => policy,
    };
    if policy.restarts(exit.code) { OnExit::Restart } else { OnExit::Stay }
}

/// Whether an exit rule of a regular or init container can restart all containers of the pod.
pub(crate) fn may_restart_all(spec: &PodSpec) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    containers
        .flat_map(|container| container.restart_policy_rules.iter().flatten())
        .any(|rule| rule.action == RESTART_ALL)
}

fn matches(rule: &ContainerRestartRule, exit_code: i32) -> bool {
    rule.exit_codes.as_ref().is_some_and(|codes| {
        let listed = codes.values.as_deref().unwrap_or_default().contains(&exit_code);
        match codes.operator.as_str() {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ContainerRestartRuleOnExitCodes;

    use super::*;

    fn pod(policy: &str) -> PodSpec {
        PodSpec { restart_policy: Some(policy.into()), ..PodSpec::default() }
    }

    fn rule(operator: &str, values: &[i32], action: &str) -> ContainerRestartRule {
        ContainerRestartRule {
            action: action.into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes {
                operator: operator.into(),
                values: Some(values.to_vec()),
            }),
        }
    }

    // POD-S66: the container's own policy wins over the pod's.
    #[test]
    fn a_container_policy_wins_over_the_pods() {
        let always = Container { restart_policy: Some("Always".into()), ..Container::default() };
        let never = Container { restart_policy: Some("Never".into()), ..Container::default() };
        assert_eq!(on_exit(&pod("Never"), &always, 0, false), OnExit::Restart);
        assert_eq!(on_exit(&pod("Never"), &always, 111, false), OnExit::Restart);
        assert_eq!(on_exit(&pod("Always"), &never, 111, false), OnExit::Stay);
    }

    #[test]
    fn the_first_matching_rule_wins_over_any_policy() {
        let container = Container {
            restart_policy: Some("Never".into()),
            restart_policy_rules: Some(vec![
                rule("In", &[42], "Restart"),
                rule("NotIn", &[0, 42], "RestartAllContainers"),
            ]),
            ..Container::default()
        };
        assert_eq!(on_exit(&pod("Never"), &container, 42, false), OnExit::Restart);
        assert_eq!(on_exit(&pod("Never"), &container, 7, false), OnExit::RestartAllContainers);
        assert_eq!(on_exit(&pod("Never"), &container, 0, false), OnExit::Stay);
    }

    #[test]
    fn a_container_that_was_stopped_for_a_resize_restarts_under_every_policy_and_rule() {
        let rules = vec![rule("In", &[0, 143], "RestartAllContainers")];
        let with_rules = Container { restart_policy_rules: Some(rules), ..Container::default() };
        for container in [Container::default(), with_rules] {
            for (policy, init, code) in [("Never", false, 143), ("OnFailure", false, 0), ("Always", true, 0)] {
                let exit = Exit { code, reason: STOPPED_FOR_RESIZE };
                assert_eq!(on_exit(&pod(policy), &container, exit, init), OnExit::Restart, "{policy} {code}");
            }
        }
    }

    #[test]
    fn an_init_container_that_succeeded_stays() {
        let init = Container::default();
        assert_eq!(on_exit(&pod("Always"), &init, 0, true), OnExit::Stay);
        assert_eq!(on_exit(&pod("Always"), &init, 1, true), OnExit::Restart);
        assert_eq!(on_exit(&pod("Never"), &init, 1, true), OnExit::Stay);
    }
}
