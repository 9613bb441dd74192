//! Runs one probe and records its event.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::ProbePorts;
use super::definition::ProbeDefinition;
use crate::ids::ContainerId;
use crate::pod::{ContainerKind, PodObject};
use crate::ports::{GrpcHealth, NetworkError, PodEvent, RuntimeError, address};
use crate::probes::Outcome;
use crate::probes::target::{PROBE_USER_AGENT, grpc_target, http_target, tcp_target};
use crate::text::error_chain;
use crate::texts::probes as texts;

/// How often a probe that cannot run is repeated before it waits for its next period (the kubelet's `maxProbeRetries`,
/// 1.36).
const ATTEMPTS: usize = 3;

/// One probe to run.
#[derive(Clone, Copy)]
pub(super) struct ProbeRequest<'a> {
    pub(super) definition: &'a ProbeDefinition,
    pub(super) id: &'a ContainerId,
    pub(super) host: &'a str,
    pub(super) timeout: Duration,
}

/// Runs one probe and records an event, unless the probe passed.
pub(super) async fn run_probe(ports: &ProbePorts, pod: &Arc<PodObject>, request: ProbeRequest<'_>) -> Outcome {
    let definition = request.definition;
    let kind = definition.settings.kind;
    let (outcome, event) = match run_with_retries(ports, pod, request).await {
        ProbeAnswer::Passed => return Outcome::Success,
        ProbeAnswer::Redirected(output) => {
            (Outcome::Success, PodEvent::warning("ProbeWarning", texts::warning(kind, &output)))
        }
        ProbeAnswer::Failed(output) => (Outcome::Failure, PodEvent::warning("Unhealthy", texts::failed(kind, &output))),
        ProbeAnswer::Impossible(error) => {
            (Outcome::Unknown, PodEvent::warning("Unhealthy", texts::errored(kind, &error)))
        }
    };
    let list = if definition.regular { ContainerKind::Regular } else { ContainerKind::Init };
    ports.events.record(pod, event.of_container(list, definition.container.as_str()));
    outcome
}

enum ProbeAnswer {
    Passed,
    /// The probe passed with a warning: the server redirects to another host, which is not followed.
    Redirected(String),
    Failed(String),
    Impossible(String),
}

async fn run_with_retries(ports: &ProbePorts, pod: &PodObject, request: ProbeRequest<'_>) -> ProbeAnswer {
    let mut answer = ProbeAnswer::Impossible(String::new());
    for _ in 0..ATTEMPTS {
        // A panic of a port must not end the task; the container would silently no longer be probed.
        let attempt = std::panic::AssertUnwindSafe(run_once(ports, pod, request)).catch_unwind();
        answer = attempt.await.unwrap_or_else(|_| ProbeAnswer::Impossible("the probe panicked".into()));
        if !matches!(answer, ProbeAnswer::Impossible(_)) {
            break;
        }
    }
    answer
}

async fn run_once(ports: &ProbePorts, pod: &PodObject, request: ProbeRequest<'_>) -> ProbeAnswer {
    let ProbeRequest { definition, host, timeout, .. } = request;
    let (probe, container_ports) = (&definition.probe, &definition.ports);
    if let Some(action) = &probe.exec {
        let command = definition.command(action);
        return match ports.runtime.exec(request.id, &command, timeout).await {
            Ok(output) if output.exit_code == 0 => ProbeAnswer::Passed,
            Ok(output) => ProbeAnswer::Failed(String::from_utf8_lossy(&output.output).into_owned()),
            Err(RuntimeError::Timeout { .. }) => ProbeAnswer::Failed(texts::command_timed_out(&command, timeout)),
            Err(error) => ProbeAnswer::Impossible(error.of_runtime()),
        };
    }
    if let Some(action) = &probe.http_get {
        return match http_target(action, container_ports, host, PROBE_USER_AGENT) {
            Ok(target) => {
                let url = target.url();
                http_answer(&url, ports.network.http_get(target, timeout).await)
            }
            Err(error) => ProbeAnswer::Impossible(error),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        return match tcp_target(action, container_ports, host) {
            Ok(target) => {
                let address = address(&target.host, target.port);
                match ports.network.tcp_connect(target, timeout).await {
                    Ok(()) => ProbeAnswer::Passed,
                    Err(NetworkError::Timeout(_)) => ProbeAnswer::Failed(texts::dial_timeout(&address)),
                    Err(error) => ProbeAnswer::Failed(error_chain(&error).to_string()),
                }
            }
            Err(error) => ProbeAnswer::Impossible(error),
        };
    }
    if let Some(action) = &probe.grpc {
        return match grpc_target(action, host) {
            Ok(target) => {
                let address = address(&target.host, target.port);
                grpc_answer(&address, timeout, ports.network.grpc_check(target, timeout).await)
            }
            Err(error) => ProbeAnswer::Impossible(error),
        };
    }
    ProbeAnswer::Impossible(texts::no_action(pod, definition.container.as_str()))
}

/// 200 to 399 passes (core/v1 `Probe`). A remaining redirect leads to another host.
fn http_answer(url: &str, answer: Result<(u16, String), NetworkError>) -> ProbeAnswer {
    match answer {
        Ok((200..300, _)) => ProbeAnswer::Passed,
        Ok((300..400, body)) => ProbeAnswer::Redirected(texts::redirected(&body)),
        Ok((status, _)) => ProbeAnswer::Failed(texts::status_code(status)),
        Err(NetworkError::Timeout(_)) => ProbeAnswer::Failed(texts::no_http_answer(url, texts::HTTP_TIMEOUT)),
        Err(error) => ProbeAnswer::Failed(texts::no_http_answer(url, &error_chain(&error).to_string())),
    }
}

fn grpc_answer(address: &str, timeout: Duration, answer: Result<GrpcHealth, NetworkError>) -> ProbeAnswer {
    ProbeAnswer::Failed(match answer {
        Ok(GrpcHealth::Serving) => return ProbeAnswer::Passed,
        Ok(health) => texts::grpc_unhealthy(health.as_str()),
        // The kubelet's client connects again until the time limit, and reports only that.
        Err(NetworkError::Dial { .. }) => texts::grpc_connect_timeout(address, timeout),
        Err(NetworkError::Timeout(_) | NetworkError::Grpc { code: "DeadlineExceeded", .. }) => {
            texts::grpc_timeout(timeout)
        }
        Err(NetworkError::Grpc { code: "Unimplemented", message }) => texts::grpc_no_health(&message),
        Err(error) => texts::grpc_failed(&error_chain(&error).to_string()),
    })
}
