//! Texts of probes.

use std::fmt::Display;
use std::time::Duration;

use super::format::{duration, pod as format_pod, quoted};
use crate::pod::PodObject;

/// The event of a probe that failed. `kind` is `Readiness`, `Liveness` or `Startup` (`prober/prober.go`, `probe`).
pub fn failed(kind: impl Display, output: &str) -> String {
    format!("{kind} probe failed: {output}")
}

/// The event of a probe that could not run (`prober/prober.go`, `probe`).
pub fn errored(kind: impl Display, error: &str) -> String {
    format!("{kind} probe errored and resulted in unknown state: {error}")
}

/// The event of a probe that passed with a warning (`prober/prober.go`, `probe`).
pub fn warning(kind: impl Display, output: &str) -> String {
    format!("{kind} probe warning: {output}")
}

/// The output of an HTTP probe with a status below 200 or from 400 up (`pkg/probe/http/http.go`, `DoHTTPProbe`).
pub fn status_code(status: u16) -> String {
    format!("HTTP probe failed with statuscode: {status}")
}

/// The warning of an HTTP probe whose server redirects to another host (`pkg/probe/http/http.go`, `DoHTTPProbe`).
pub fn redirected(body: &str) -> String {
    format!("Probe terminated redirects, Response body: {body}")
}

/// The output of an HTTP probe without an answer (Go `net/url`, `Error`).
pub fn no_http_answer(url: &str, error: &str) -> String {
    format!("Get {}: {error}", quoted(url))
}

/// The error of an HTTP call that did not end in time (Go `net/http`, `Client`).
pub const HTTP_TIMEOUT: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";

/// The error of a TCP connection that was not open in time (Go `net`, `OpError`).
pub fn dial_timeout(address: &str) -> String {
    format!("dial tcp {address}: i/o timeout")
}

/// The error of a TCP connection that failed; `error` is the text of the operating system (Go `net`, `OpError`).
pub fn dial_failed(address: &str, error: &str) -> String {
    format!("dial tcp {address}: connect: {error}")
}

/// The output of a gRPC probe that could not connect in time (`pkg/probe/grpc/grpc.go`, `Probe`).
pub fn grpc_connect_timeout(address: &str, limit: Duration) -> String {
    let (address, limit) = (quoted(address), duration(limit));
    format!("timeout: failed to connect service {address} within {limit}: context deadline exceeded")
}

/// The output of a gRPC probe whose server lacks the health service (`pkg/probe/grpc/grpc.go`, `Probe`).
pub fn grpc_no_health(message: &str) -> String {
    format!("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {message}")
}

/// The output of a gRPC probe without an answer in time (`pkg/probe/grpc/grpc.go`, `Probe`).
pub fn grpc_timeout(limit: Duration) -> String {
    format!("timeout: health rpc did not complete within {}", duration(limit))
}

/// The output of a gRPC probe that failed with a status (`pkg/probe/grpc/grpc.go`, `Probe`).
pub fn grpc_failed(status: &str) -> String {
    format!("error: health rpc probe failed: {status}")
}

/// The output of a gRPC probe whose service is not healthy (`pkg/probe/grpc/grpc.go`, `Probe`).
pub fn grpc_unhealthy(status: &str) -> String {
    format!("service unhealthy (responded with {})", quoted(status))
}

/// The output of a command that did not end in time (`cri-client/pkg/remote_runtime.go`, `execSyncV1`).
pub fn command_timed_out(command: &[String], limit: Duration) -> String {
    format!("command timed out: {} timed out after {}", quoted(&command.join(" ")), duration(limit))
}

/// The error of a probe without an action (`prober/prober.go`, `runProbe`).
pub fn no_action(pod: &PodObject, container: &str) -> String {
    format!("missing probe handler for {}:{container}", format_pod(pod))
}

/// The error of a port outside of 1 to 65535 (`pkg/probe/util.go`, `ResolveContainerPort`).
pub fn invalid_port(port: impl Display) -> String {
    format!("invalid port number: {port}")
}

/// The error of a port name that no port of the container has (`pkg/probe/util.go`, `ResolveContainerPort`; Go `strconv`).
pub fn unknown_port(name: &str) -> String {
    format!("strconv.Atoi: parsing {}: invalid syntax", quoted(name))
}
