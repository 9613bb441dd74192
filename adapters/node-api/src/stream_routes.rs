//! `/exec`, `/attach`, `/portForward` and `/run`: finds the container or the sandbox, and opens the stream.

use std::collections::HashMap;

use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::find::{self, FoundPod};
use super::routes::NodeApi;
use super::streams::Stream;
use podwright_model::texts::node_api as texts;

type Parameters = HashMap<String, String>;
type Pairs = Vec<(String, String)>;

pub(super) async fn exec(
    State(api): State<NodeApi>,
    Path(path): Path<Parameters>,
    Query(query): Query<Pairs>,
    request: Request,
) -> Response {
    let streams = match RequestedStreams::parse(&query) {
        Ok(streams) => streams,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let (pod, container) = match container(&api, &path) {
        Ok(found) => found,
        Err(refusal) => return refusal.into_response(),
    };
    let RequestedStreams { stdin, stdout, stderr, tty } = streams;
    let stream = Stream::Exec { container, command: values(&query, "command"), stdin, stdout, stderr, tty };
    api.streams.serve(request, pod.object.full_name(), stream).await
}

pub(super) async fn attach(
    State(api): State<NodeApi>,
    Path(path): Path<Parameters>,
    Query(query): Query<Pairs>,
    request: Request,
) -> Response {
    let streams = match RequestedStreams::parse(&query) {
        Ok(streams) => streams,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let (pod, container) = match container(&api, &path) {
        Ok(found) => found,
        Err(refusal) => return refusal.into_response(),
    };
    // Whether a process has a terminal cannot change, so the setting of the container counts.
    let Some(tty) = pod.has_terminal(path_value(&path, "container")) else {
        let why = texts::no_container_to_attach(path_value(&path, "container"), pod.object.full_name().as_str());
        return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    };
    let RequestedStreams { stdin, stdout, stderr, .. } = streams;
    let stream = Stream::Attach { container, stdin, stdout, stderr: stderr && !tty, tty };
    api.streams.serve(request, pod.object.full_name(), stream).await
}

pub(super) async fn port_forward(
    State(api): State<NodeApi>,
    Path(path): Path<Parameters>,
    Query(query): Query<Pairs>,
    request: Request,
) -> Response {
    let ports = match ports(&query) {
        Ok(ports) => ports,
        Err(why) => return (StatusCode::BAD_REQUEST, why).into_response(),
    };
    let pod = match pod(&api, &path) {
        Ok(pod) => pod,
        Err(refusal) => return refusal.into_response(),
    };
    if !pod.has_uid(&*api.queries, path.get("uid").map(String::as_str)) {
        return (StatusCode::NOT_FOUND, texts::OTHER_POD).into_response();
    }
    let Some(sandbox) = pod.sandbox() else {
        let why = texts::pod_not_found(pod.object.full_name().as_str());
        return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
    };
    api.streams.serve(request, pod.object.full_name(), Stream::PortForward { sandbox, ports }).await
}

/// Runs a command to its end and answers with its output.
pub(super) async fn run(
    State(api): State<NodeApi>,
    Path(path): Path<Parameters>,
    Query(query): Query<Pairs>,
) -> Response {
    let (pod, container) = match container(&api, &path) {
        Ok(found) => found,
        Err(refusal) => return refusal.into_response(),
    };
    let words = values(&query, "cmd").into_iter().next().unwrap_or_default();
    api.streams.run(pod.object.full_name(), container, words.split(' ').map(str::to_owned).collect()).await
}

/// Which streams a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RequestedStreams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl RequestedStreams {
    /// Parses the parameters (`NewOptions`, `cri-streaming/pkg/streaming/remotecommand`, kubelet 1.36). A terminal has no standard error
    /// of its own.
    fn parse(query: &Pairs) -> Result<Self, &'static str> {
        let is_set = |name: &str| query.iter().find(|(key, _)| key == name).is_some_and(|(_, value)| value == "1");
        let tty = is_set("tty");
        let streams =
            RequestedStreams { stdin: is_set("input"), stdout: is_set("output"), stderr: is_set("error") && !tty, tty };
        if streams.stdin || streams.stdout || streams.stderr { Ok(streams) } else { Err(texts::NO_STREAM) }
    }
}

/// The ports of a request, each parameter with one port or several with commas between them (`NewV4Options`,
/// `cri-streaming/pkg/streaming/portforward`, kubelet 1.36).
fn ports(query: &Pairs) -> Result<Vec<u16>, String> {
    let parse = |text: &str| match text.trim().parse::<u16>() {
        Ok(0) => Err("port \"0\" must be > 0".to_owned()),
        Ok(port) => Ok(port),
        Err(_) => Err(format!("unable to parse {text:?} as a port: use a number from 1 to 65535")),
    };
    let texts = query.iter().filter(|(key, _)| key == "port").flat_map(|(_, value)| value.split(','));
    texts.map(parse).collect()
}

fn values(query: &Pairs, name: &str) -> Vec<String> {
    query.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
}

fn path_value<'a>(path: &'a Parameters, name: &str) -> &'a str {
    path.get(name).map(String::as_str).unwrap_or_default()
}

/// An answer without a stream.
type Refused = (StatusCode, String);

fn pod(api: &NodeApi, path: &Parameters) -> Result<FoundPod, Refused> {
    let found = find::pod(&*api.queries, path_value(path, "namespace"), path_value(path, "pod"));
    found.ok_or_else(|| (StatusCode::NOT_FOUND, texts::NO_POD.to_owned()))
}

/// The pod of a request, and its container that runs.
fn container(api: &NodeApi, path: &Parameters) -> Result<(FoundPod, podwright_model::ids::ContainerId), Refused> {
    let (pod, name) = (pod(api, path)?, path_value(path, "container"));
    let is_it = pod.has_uid(&*api.queries, path.get("uid").map(String::as_str));
    match pod.running(name).filter(|_| is_it) {
        Some(container) => Ok((pod, container)),
        None => Err((StatusCode::INTERNAL_SERVER_ERROR, texts::container_not_found(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(query: &str) -> Pairs {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn a_terminal_has_no_standard_error_and_a_stream_carries_something() {
        let of = |query: &str| RequestedStreams::parse(&pairs(query));
        let streams = |stdin, stdout, stderr, tty| Ok(RequestedStreams { stdin, stdout, stderr, tty });
        assert_eq!(of("input=1&output=1&error=1&tty=1"), streams(true, true, false, true));
        assert_eq!(of("output=1&error=1"), streams(false, true, true, false));
        assert_eq!(of("input=1&output=true"), streams(true, false, false, false), "only 1 is true");
        for nothing in ["", "tty=1", "error=1&tty=1", "output=0"] {
            assert_eq!(of(nothing), Err(texts::NO_STREAM), "{nothing}");
        }
    }

    #[test]
    fn ports_are_numbers_that_may_be_listed_with_commas() {
        assert_eq!(ports(&pairs("port=80,443&port=8080&other=1")), Ok(vec![80, 443, 8080]));
        assert_eq!(ports(&pairs("")), Ok(vec![]), "each SPDY stream names its port");
        for bad in ["port=0", "port=x", "port=65536", "port=80,", "port=-1"] {
            assert!(ports(&pairs(bad)).is_err(), "{bad}");
        }
    }
}
