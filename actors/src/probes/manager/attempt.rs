//! Runs one probe and records its event.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{ContainerPort, Probe};

use super::ProbePorts;
use crate::ids::ContainerId;
use crate::pod::PodObject;
use crate::ports::{NetworkError, PodEvent, RuntimeError};
use crate::probes::target::{PROBE_USER_AGENT, grpc_target, http_target, tcp_target};
use crate::probes::{Outcome, ProbeKind};
use crate::text::error_chain;

/// How often a probe that cannot run is repeated before it waits for its next period (the kubelet's `maxProbeRetries`,
/// 1.36).
const ATTEMPTS: usize = 3;

/// One probe to run.
#[derive(Clone, Copy)]
pub(super) struct ProbeRequest<'a> {
    pub(super) kind: ProbeKind,
    pub(super) probe: &'a Probe,
    pub(super) ports: &'a [ContainerPort],
    pub(super) id: &'a ContainerId,
    pub(super) host: &'a str,
    pub(super) timeout: Duration,
}

/// Runs one probe and records an event, unless the probe passed.
pub(super) async fn run_probe(ports: &ProbePorts, pod: &Arc<PodObject>, request: ProbeRequest<'_>) -> Outcome {
    let kind = request.kind;
    let (outcome, event) = match run_with_retries(ports, request).await {
        ProbeAnswer::Passed => return Outcome::Success,
        ProbeAnswer::Redirected(output) => {
            (Outcome::Success, PodEvent::warning("ProbeWarning", format!("{kind} probe warning: {output}")))
        }
        ProbeAnswer::Failed(output) => {
            (Outcome::Failure, PodEvent::warning("Unhealthy", format!("{kind} probe failed: {output}")))
        }
        ProbeAnswer::Impossible(error) => {
            (Outcome::Unknown, PodEvent::warning("Unhealthy", format!("{kind} probe could not be made: {error}")))
        }
    };
    ports.events.record(pod, event);
    outcome
}

enum ProbeAnswer {
    Passed,
    /// The probe passed with a warning: the server redirects to another host, which is not followed.
    Redirected(String),
    Failed(String),
    Impossible(String),
}

async fn run_with_retries(ports: &ProbePorts, request: ProbeRequest<'_>) -> ProbeAnswer {
    let mut answer = ProbeAnswer::Impossible(String::new());
    for _ in 0..ATTEMPTS {
        // A panic of a port must not end the task; the container would silently no longer be probed.
        let attempt = std::panic::AssertUnwindSafe(run_once(ports, request)).catch_unwind();
        answer = attempt.await.unwrap_or_else(|_| ProbeAnswer::Impossible("the probe panicked".into()));
        if !matches!(answer, ProbeAnswer::Impossible(_)) {
            break;
        }
    }
    answer
}

async fn run_once(ports: &ProbePorts, request: ProbeRequest<'_>) -> ProbeAnswer {
    let ProbeRequest { probe, ports: container_ports, host, timeout, .. } = request;
    if let Some(action) = &probe.exec {
        let command = action.command.as_deref().unwrap_or_default();
        return match ports.runtime.exec(request.id, command, timeout).await {
            Ok(output) if output.exit_code == 0 => ProbeAnswer::Passed,
            Ok(output) => ProbeAnswer::Failed(String::from_utf8_lossy(&output.output).into_owned()),
            Err(RuntimeError::Timeout { .. }) => {
                ProbeAnswer::Failed(format!("the command ran for more than {timeout:?}"))
            }
            Err(error) => ProbeAnswer::Impossible(error_chain(&error).to_string()),
        };
    }
    if let Some(action) = &probe.http_get {
        return match http_target(action, container_ports, host, PROBE_USER_AGENT) {
            Ok(target) => http_answer(ports.network.http_get(target, timeout).await),
            Err(error) => ProbeAnswer::Impossible(error),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        return match tcp_target(action, container_ports, host) {
            Ok(target) => match ports.network.tcp_connect(target, timeout).await {
                Ok(()) => ProbeAnswer::Passed,
                Err(error) => ProbeAnswer::Failed(error_chain(&error).to_string()),
            },
            Err(error) => ProbeAnswer::Impossible(error),
        };
    }
    if let Some(action) = &probe.grpc {
        return match grpc_target(action, host) {
            Ok(target) => match ports.network.grpc_check(target, timeout).await {
                Ok(true) => ProbeAnswer::Passed,
                Ok(false) => ProbeAnswer::Failed("the service does not report SERVING".into()),
                Err(error) => ProbeAnswer::Failed(error_chain(&error).to_string()),
            },
            Err(error) => ProbeAnswer::Impossible(error),
        };
    }
    ProbeAnswer::Impossible("it names no action: set exec, httpGet, tcpSocket or grpc".into())
}

/// 200 to 399 passes (core/v1 `Probe`). A remaining redirect leads to another host.
fn http_answer(answer: Result<(u16, String), NetworkError>) -> ProbeAnswer {
    match answer {
        Ok((200..300, _)) => ProbeAnswer::Passed,
        Ok((status @ 300..400, _)) => {
            ProbeAnswer::Redirected(format!("HTTP status {status} points to another host, which is not followed"))
        }
        Ok((status, _)) => ProbeAnswer::Failed(format!("the server answered with HTTP status {status}")),
        Err(error) => ProbeAnswer::Failed(error_chain(&error).to_string()),
    }
}
