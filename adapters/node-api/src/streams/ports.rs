//! Serves forwarded ports: connects the client's streams to ports of a pod.
//!
//! Over SPDY, each connection that the client forwards has two streams, `data` and `error`, with one request number. Over WebSocket
//! of version 4, the request names the ports, and each port has two channels and one connection.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use axum::extract::ws::WebSocket;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::upgrade::{PORT_FORWARD, SPDY_IN_WEBSOCKET, Upgrade, UpgradeKind, UpgradedConnection, V4, V4_BASE64};
use super::websocket::{self, Inputs, MessageFormat};
use super::{Activity, CREATION_LIMIT, Refusal, SessionTarget, Share, Writer, drive};
use crate::spdy::{Connection, Side, SpdyStream};
use podwright_host::streaming::{CHUNK_BYTES, PodPorts};
use podwright_model::texts::streams::cannot_forward;

/// How long a connection attempt may take. The ports are on this machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The most ports of a WebSocket connection: a text message has one digit for the channel.
const MAX_PORTS: usize = 5;
/// The most connections that one SPDY connection forwards at a time, with those that have one of their two streams.
pub(super) const MAX_FORWARDS: usize = 256;

/// The pod whose ports are forwarded.
#[derive(Clone)]
pub(super) struct ForwardTarget {
    pub(super) pod: PodPorts,
    /// The pod's sandbox, for the texts of errors.
    pub(super) sandbox: String,
}

/// Accepts the client's upgrade and forwards its connections.
pub(super) async fn serve(
    upgrade: Upgrade,
    pod: PodPorts,
    target: SessionTarget,
    permit: Share,
) -> Result<Response, Refusal> {
    let (sandbox, ports) = match target {
        SessionTarget::Ports { sandbox, ports } => (sandbox, ports),
        SessionTarget::Exec(_) | SessionTarget::Attach => (String::new(), Vec::new()),
    };
    let target = ForwardTarget { pod, sandbox };
    if upgrade.kind == UpgradeKind::Spdy {
        let protocol = upgrade.choose(&[PORT_FORWARD])?;
        return Ok(upgrade.accept_spdy(protocol, move |bytes| over_spdy(bytes, target, permit)));
    }
    let protocol = upgrade.choose(&[SPDY_IN_WEBSOCKET, V4, V4_BASE64])?;
    if protocol == Some(SPDY_IN_WEBSOCKET) {
        let session = move |socket| async move {
            let (bytes, copied) = websocket::bytes(socket);
            tokio::join!(over_spdy(bytes, target, permit), copied);
        };
        return upgrade.accept_websocket(protocol, session).await;
    }
    if ports.is_empty() || ports.len() > MAX_PORTS {
        let why = format!("a WebSocket connection forwards 1 to {MAX_PORTS} ports: name them in the query as `port`");
        return Err(Refusal::Answered((StatusCode::BAD_REQUEST, why).into_response().into()));
    }
    let format = MessageFormat::of(protocol.or(Some(V4)));
    upgrade.accept_websocket(protocol, move |socket| over_websocket(socket, format, target, ports, permit)).await
}

pub(super) async fn over_spdy(bytes: impl UpgradedConnection, target: ForwardTarget, permit: Share) {
    let activity = Activity::new();
    let (connection, copied) = Connection::new(bytes, Side::Server, activity.clone());
    drive(forward_pairs(connection, target), copied, &activity, permit).await;
}

/// The first stream of a forwarded connection.
struct HalfPair {
    stream: SpdyStream,
    kind: StreamKind,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamKind {
    Data,
    Error,
}

/// Forwards a connection for each pair of streams. Never returns before the client ends the connection.
async fn forward_pairs(mut connection: Connection, target: ForwardTarget) {
    let mut pairs: HashMap<String, HalfPair> = HashMap::new();
    let mut forwards = JoinSet::new();
    loop {
        let late = pairs.values().map(|pair| pair.since).min().map(|since| since + CREATION_LIMIT);
        let stream = tokio::select! {
            opened = connection.accepted.recv() => match opened {
                Some(stream) => stream,
                None => std::future::pending().await,
            },
            Some(_) = forwards.join_next() => continue,
            () = async { sleep_until(late.unwrap_or_else(Instant::now)).await }, if late.is_some() => {
                let now = Instant::now();
                for (_, pair) in pairs.extract_if(|_, pair| pair.since + CREATION_LIMIT <= now) {
                    pair.stream.writer.reset().await;
                }
                continue;
            }
        };
        let Some((kind, port)) = kind_and_port(&stream) else {
            stream.writer.reset().await;
            continue;
        };
        let request = request_number(&stream, kind);
        match pairs.remove(&request) {
            // The streams of a forwarded connection may all be finished by the client, so the limit of open streams does not count it.
            None if pairs.len() + forwards.len() >= MAX_FORWARDS => stream.writer.reset().await,
            None => {
                pairs.insert(request, HalfPair { stream, kind, since: Instant::now() });
            }
            Some(first) if first.kind == kind => {
                stream.writer.reset().await;
                pairs.insert(request, first);
            }
            Some(first) => {
                let (data, error) =
                    if kind == StreamKind::Data { (stream, first.stream) } else { (first.stream, stream) };
                let target = target.clone();
                forwards.spawn(async move {
                    let SpdyStream { data: input, writer, reset, .. } = data;
                    forward(&target, port, input, &writer, &error.writer, &reset).await;
                });
            }
        }
    }
}

fn kind_and_port(stream: &SpdyStream) -> Option<(StreamKind, u16)> {
    let kind = match stream.headers.get("streamtype")? {
        "data" => StreamKind::Data,
        "error" => StreamKind::Error,
        _ => return None,
    };
    let port = stream.headers.get("port")?.parse().ok().filter(|port| *port > 0)?;
    Some((kind, port))
}

/// The request of a stream. A client of an old version numbers no requests; it opens the error stream, and then the data stream.
fn request_number(stream: &SpdyStream, kind: StreamKind) -> String {
    match stream.headers.get("requestid").filter(|request| !request.is_empty()) {
        Some(request) => request.to_owned(),
        None if kind == StreamKind::Data => format!("stream {}", stream.id.saturating_sub(2)),
        None => format!("stream {}", stream.id),
    }
}

/// Forwards one connection until the pod or the client has ended it.
async fn forward(
    target: &ForwardTarget,
    port: u16,
    input: mpsc::Receiver<Vec<u8>>,
    output: &Writer,
    error: &Writer,
    reset: &CancellationToken,
) {
    let copied = async {
        let connection = match timeout(CONNECT_LIMIT, target.pod.connect(port)).await {
            Ok(connected) => connected?,
            Err(_) => return Err(io::Error::from(io::ErrorKind::TimedOut).to_string()),
        };
        copy(connection, input, output).await.map_err(|error| error.to_string())
    };
    tokio::select! {
        result = copied => {
            if let Err(reason) = result {
                let text = cannot_forward(port, &target.sandbox, "", &reason);
                error.write(text.into_bytes()).await;
            }
        }
        () = reset.cancelled() => {}
    }
    output.finish().await;
    error.finish().await;
}

async fn copy(connection: TcpStream, mut input: mpsc::Receiver<Vec<u8>>, output: &Writer) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (mut read, mut write) = connection.into_split();
    let sent = async {
        while let Some(bytes) = input.recv().await {
            if write.write_all(&bytes).await.is_err() {
                break;
            }
        }
        // The pod may still answer.
        let _ = write.shutdown().await;
        std::future::pending::<()>().await;
    };
    let received = async {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            match read.read(&mut buffer).await? {
                0 => return Ok(()),
                count => output.write(buffer[..count].to_vec()).await,
            }
        }
    };
    tokio::select! {
        () = sent => Ok(()),
        result = received => result,
    }
}

async fn over_websocket(
    socket: WebSocket,
    format: MessageFormat,
    target: ForwardTarget,
    ports: Vec<u16>,
    permit: Share,
) {
    let activity = Activity::new();
    let mut inputs = Inputs::default();
    let channels: Vec<_> = (0_u8..).step_by(2).zip(ports).map(|(data, port)| (data, port, inputs.add(data))).collect();
    let (frames, copied) = websocket::channels(socket, format, inputs, activity.clone());
    let forwards = channels.into_iter().map(|(data, port, input)| {
        let (output, error) =
            (Writer::new(data.into(), frames.clone()), Writer::new((data + 1).into(), frames.clone()));
        let target = &target;
        async move {
            output.write(port.to_le_bytes().into()).await;
            error.write(port.to_le_bytes().into()).await;
            forward(target, port, input, &output, &error, &CancellationToken::new()).await;
        }
    });
    let forwards: Vec<_> = forwards.collect();
    drop(frames);
    let session = async move {
        join_all(forwards).await;
    };
    drive(session, copied, &activity, permit).await;
}
