//! Making one probe and telling people how it went.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{ContainerPort, Probe};

use super::target::{PROBE_USER_AGENT, grpc_target, http_target, tcp_target};
use super::{Outcome, ProbeKind, ProbePorts};
use crate::ids::ContainerId;
use crate::pod::PodObject;
use crate::ports::{NetworkError, PodEvent, RuntimeError};

/// How often a probe that cannot be made is tried before it is given up until its next turn (upstream
/// `maxProbeRetries`, kubelet 1.36).
const ATTEMPTS: usize = 3;

/// What to ask, of whom, how.
#[derive(Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) kind: ProbeKind,
    pub(super) probe: &'a Probe,
    pub(super) ports: &'a [ContainerPort],
    pub(super) id: &'a ContainerId,
    pub(super) host: &'a str,
    pub(super) timeout: Duration,
}

/// Makes one probe and records an event unless it simply passed.
pub(super) async fn ask(ports: &ProbePorts, pod: &Arc<PodObject>, question: Question<'_>) -> Outcome {
    let kind = question.kind;
    let (outcome, event) = match retried(ports, question).await {
        Answer::Passed => return Outcome::Success,
        Answer::Redirected(output) => {
            (Outcome::Success, PodEvent::warning("ProbeWarning", format!("{kind} probe warning: {output}")))
        }
        Answer::Failed(output) => {
            (Outcome::Failure, PodEvent::warning("Unhealthy", format!("{kind} probe failed: {output}")))
        }
        Answer::Impossible(error) => {
            (Outcome::Unknown, PodEvent::warning("Unhealthy", format!("{kind} probe could not be made: {error}")))
        }
    };
    ports.events.record(pod, event);
    outcome
}

enum Answer {
    Passed,
    /// Passed as far as can be told: the server points to another host, which is not followed.
    Redirected(String),
    Failed(String),
    Impossible(String),
}

async fn retried(ports: &ProbePorts, question: Question<'_>) -> Answer {
    let mut answer = Answer::Impossible(String::new());
    for _ in 0..ATTEMPTS {
        // A port that panics must not end the task: the container would silently go unprobed.
        let attempt = std::panic::AssertUnwindSafe(once(ports, question)).catch_unwind();
        answer = attempt.await.unwrap_or_else(|_| Answer::Impossible("the probe panicked".into()));
        if !matches!(answer, Answer::Impossible(_)) {
            break;
        }
    }
    answer
}

async fn once(ports: &ProbePorts, question: Question<'_>) -> Answer {
    let Question { probe, ports: container_ports, host, timeout, .. } = question;
    if let Some(action) = &probe.exec {
        let command = action.command.as_deref().unwrap_or_default();
        return match ports.runtime.exec(question.id, command, timeout).await {
            Ok(output) if output.exit_code == 0 => Answer::Passed,
            Ok(output) => Answer::Failed(String::from_utf8_lossy(&output.output).into_owned()),
            Err(RuntimeError::Timeout { .. }) => Answer::Failed(format!("the command ran for more than {timeout:?}")),
            Err(error) => Answer::Impossible(error.to_string()),
        };
    }
    if let Some(action) = &probe.http_get {
        return match http_target(action, container_ports, host, PROBE_USER_AGENT) {
            Ok(target) => http_answer(ports.network.http_get(target, timeout).await),
            Err(error) => Answer::Impossible(error),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        return match tcp_target(action, container_ports, host) {
            Ok(target) => match ports.network.tcp_connect(target, timeout).await {
                Ok(()) => Answer::Passed,
                Err(error) => Answer::Failed(error.to_string()),
            },
            Err(error) => Answer::Impossible(error),
        };
    }
    if let Some(action) = &probe.grpc {
        return match grpc_target(action, host) {
            Ok(target) => match ports.network.grpc_check(target, timeout).await {
                Ok(true) => Answer::Passed,
                Ok(false) => Answer::Failed("the service does not report SERVING".into()),
                Err(error) => Answer::Failed(error.to_string()),
            },
            Err(error) => Answer::Impossible(error),
        };
    }
    Answer::Impossible("it names no action: set exec, httpGet, tcpSocket or grpc".into())
}

/// 200 to 399 passes (core/v1 `Probe`); a redirect that is still there was one to another host.
fn http_answer(answer: Result<(u16, String), NetworkError>) -> Answer {
    match answer {
        Ok((200..300, _)) => Answer::Passed,
        Ok((status @ 300..400, _)) => {
            Answer::Redirected(format!("HTTP status {status} points to another host, which is not asked"))
        }
        Ok((status, _)) => Answer::Failed(format!("the server answered with HTTP status {status}")),
        Err(error) => Answer::Failed(error.to_string()),
    }
}
