//! Validates probes and lifecycle hooks.

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, LifecycleHandler, PodSpec, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::report::Report;
use crate::names;

/// Validates the probes and hooks of a container. `plain_init` means an init container that is no sidecar: it runs to its
/// end, so it must have neither.
pub(super) fn check(path: &str, spec: &PodSpec, container: &Container, plain_init: bool, report: &mut Report) {
    for (kind, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        let Some(probe) = probe else { continue };
        let path = format!("{path}.{kind}");
        if plain_init {
            report.add(&path, "is set on an init container", "remove it, or set restartPolicy: Always for a sidecar");
            continue;
        }
        self::probe(&path, kind, probe, report);
    }
    let Some(lifecycle) = &container.lifecycle else { return };
    if plain_init {
        let path = format!("{path}.lifecycle");
        return report.add(
            path,
            "is set on an init container",
            "remove it, or set restartPolicy: Always for a sidecar",
        );
    }
    for (kind, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        let Some(hook) = hook else { continue };
        let path = format!("{path}.lifecycle.{kind}");
        let grace = spec.termination_grace_period_seconds.map_or(30, |grace| if grace < 0 { 1 } else { grace });
        self::hook(&path, hook, grace, report);
    }
    if let Some(signal) = lifecycle.stop_signal.as_deref() {
        let path = format!("{path}.lifecycle.stopSignal");
        if spec.os.is_none() {
            report.add(&path, "is set without spec.os.name", "set spec.os.name: linux");
        }
        match spec.os.as_ref().map(|os| os.name.as_str()) {
            Some("windows") => report.one_of(&path, Some(signal), &["SIGKILL", "SIGTERM"]),
            _ if !is_signal(signal) => {
                report.add(&path, format!("is {signal:?}"), "use a signal's name such as SIGTERM or SIGRTMIN+1");
            }
            _ => {}
        }
    }
}

/// Whether the text is the name of a signal of Linux (core/v1 `Signal`).
fn is_signal(text: &str) -> bool {
    const NAMES: [&str; 36] = [
        "ABRT", "ALRM", "BUS", "CHLD", "CLD", "CONT", "FPE", "HUP", "ILL", "INT", "IO", "IOT", "KILL", "PIPE", "POLL",
        "PROF", "PWR", "QUIT", "RTMAX", "RTMIN", "SEGV", "STKFLT", "STOP", "SYS", "TERM", "TRAP", "TSTP", "TTIN",
        "TTOU", "URG", "USR1", "USR2", "VTALRM", "WINCH", "XCPU", "XFSZ",
    ];
    let Some(name) = text.strip_prefix("SIG") else { return false };
    // A number without a sign and without leading zeros.
    let upto = |number: &str, most: u32| {
        number.parse::<u32>().is_ok_and(|parsed| (1..=most).contains(&parsed) && parsed.to_string() == number)
    };
    NAMES.contains(&name)
        || name.strip_prefix("RTMIN+").is_some_and(|number| upto(number, 15))
        || name.strip_prefix("RTMAX-").is_some_and(|number| upto(number, 14))
}

fn probe(path: &str, kind: &str, probe: &Probe, report: &mut Report) {
    actions(path, probe.exec.as_ref(), probe.http_get.as_ref(), probe.tcp_socket.as_ref(), report);
    if let Some(GRPCAction { port, .. }) = &probe.grpc {
        report.port(format!("{path}.grpc.port"), *port);
    }
    report.exactly_one(
        path,
        &[
            ("exec", probe.exec.is_some()),
            ("httpGet", probe.http_get.is_some()),
            ("tcpSocket", probe.tcp_socket.is_some()),
            ("grpc", probe.grpc.is_some()),
        ],
    );
    // Zero means the default, as everywhere in the API where zero makes no sense.
    for (name, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        report.at_least(format!("{path}.{name}"), value, 0);
    }
    if kind != "readinessProbe" && probe.success_threshold.is_some_and(|threshold| threshold > 1) {
        let message = format!("is {}", probe.success_threshold.unwrap_or_default());
        report.add(format!("{path}.successThreshold"), message, "use 1: only a readiness probe may ask for more");
    }
    if let Some(grace) = probe.termination_grace_period_seconds {
        let path = format!("{path}.terminationGracePeriodSeconds");
        if kind == "readinessProbe" {
            report.add(path, "is set on a readiness probe, which stops nothing", "remove it");
        } else {
            report.at_least(path, Some(grace), 1);
        }
    }
}

fn hook(path: &str, hook: &LifecycleHandler, grace: i64, report: &mut Report) {
    actions(path, hook.exec.as_ref(), hook.http_get.as_ref(), hook.tcp_socket.as_ref(), report);
    if let Some(SleepAction { seconds }) = hook.sleep
        && !(0..=grace).contains(&seconds)
    {
        let remedy = format!("use 0 to {grace}, the pod's terminationGracePeriodSeconds");
        report.add(format!("{path}.sleep.seconds"), format!("is {seconds}"), remedy);
    }
    report.exactly_one(
        path,
        &[
            ("exec", hook.exec.is_some()),
            ("httpGet", hook.http_get.is_some()),
            ("tcpSocket", hook.tcp_socket.is_some()),
            ("sleep", hook.sleep.is_some()),
        ],
    );
}

fn actions(
    path: &str,
    exec: Option<&ExecAction>,
    http: Option<&HTTPGetAction>,
    tcp: Option<&TCPSocketAction>,
    report: &mut Report,
) {
    if let Some(exec) = exec
        && exec.command.as_deref().unwrap_or_default().is_empty()
    {
        report.add(format!("{path}.exec.command"), "is empty", "say what to run");
    }
    if let Some(http) = http {
        port(&format!("{path}.httpGet.port"), &http.port, report);
        report.one_of(format!("{path}.httpGet.scheme"), http.scheme.as_deref(), &["", "HTTP", "HTTPS"]);
        for (i, header) in http.http_headers.iter().flatten().enumerate() {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
            if header.name.is_empty() || !header.name.bytes().all(allowed) {
                let path = format!("{path}.httpGet.httpHeaders[{i}].name");
                report.add(path, format!("{:?} is not a header's name", header.name), "use letters, digits and '-'");
            }
        }
    }
    if let Some(tcp) = tcp {
        port(&format!("{path}.tcpSocket.port"), &tcp.port, report);
    }
}

fn port(path: &str, port: &IntOrString, report: &mut Report) {
    match port {
        IntOrString::Int(number) => report.port(path, *number),
        IntOrString::String(name) if names::is_port_name(name) => {}
        IntOrString::String(name) => report.add(
            path,
            format!("{name:?} is neither a port nor the name of one"),
            "use a number without quotes or the name of one of the container's ports",
        ),
    }
}
