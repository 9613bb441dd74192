//! Serves a command: connects the streams of the command to the streams of the client, and reports the status of the command.

mod status;

use axum::extract::ws::WebSocket;
use axum::response::Response;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::upgrade::{Upgrade, UpgradeKind, UpgradedConnection, V1, V1_BASE64, V4, V4_BASE64, V5};
use super::websocket::{self, Inputs, MessageFormat};
use super::{Activity, CREATION_LIMIT, Refusal, SessionTarget, Share, Stream, Writer, drive};
use crate::spdy::{Connection, Side};
use podwright_host::streaming::{CommandEnd, LocalCommand, StartCommand, WindowSize};
use podwright_model::texts::streams::no_common_protocol;

/// The protocols over SPDY. All clients since Kubernetes 1.4 offer version 4.
const SPDY_PROTOCOLS: &[&str] = &[V5, V4];
/// The protocols over WebSocket, best first.
const WEBSOCKET_PROTOCOLS: &[&str] = &[V5, V4, V4_BASE64, V1, V1_BASE64];

/// The numbers of the channels over WebSocket.
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// The most bytes of a message with a window size.
const MAX_SIZE_BYTES: usize = 4 << 10;

/// The streams that the client requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandStreams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

impl CommandStreams {
    /// The streams of a command. Forwarded ports have none.
    pub(super) fn of(stream: &Stream) -> Self {
        match *stream {
            Stream::Exec { stdin, stdout, stderr, tty, .. } | Stream::Attach { stdin, stdout, stderr, tty, .. } => {
                CommandStreams { stdin, stdout, stderr: stderr && !tty, tty }
            }
            Stream::PortForward { .. } => CommandStreams::default(),
        }
    }

    /// The streams in the order in which clients create them.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        let all = [
            ("error", true),
            ("stdin", self.stdin),
            ("stdout", self.stdout),
            ("stderr", self.stderr),
            ("resize", self.tty),
        ];
        all.into_iter().filter_map(|(name, requested)| requested.then_some(name))
    }
}

/// The client's ends of the streams.
struct ClientStreams {
    stdin: Option<mpsc::Receiver<Vec<u8>>>,
    resize: Option<mpsc::Receiver<Vec<u8>>>,
    stdout: Option<Writer>,
    stderr: Option<Writer>,
    error: Writer,
    /// Whether the error stream carries a status in JSON. Otherwise it carries the text of an error.
    has_status: bool,
}

/// Accepts the client's upgrade and runs the command.
pub(super) async fn serve(
    upgrade: Upgrade,
    start: StartCommand,
    streams: CommandStreams,
    target: SessionTarget,
    permit: Share,
) -> Result<Response, Refusal> {
    match upgrade.kind {
        UpgradeKind::Spdy => {
            let none = || Refusal::Protocol(no_common_protocol(&[], SPDY_PROTOCOLS));
            let protocol = upgrade.choose(SPDY_PROTOCOLS)?.ok_or_else(none)?;
            let session = move |bytes| over_spdy(bytes, start, streams, target, permit);
            Ok(upgrade.accept_spdy(Some(protocol), session))
        }
        UpgradeKind::WebSocket => {
            let protocol = upgrade.choose(WEBSOCKET_PROTOCOLS)?;
            let format = MessageFormat::of(protocol);
            let session = move |socket| over_websocket(socket, format, start, streams, target, permit);
            upgrade.accept_websocket(protocol, session).await
        }
    }
}

pub(super) async fn over_spdy(
    bytes: impl UpgradedConnection,
    start: StartCommand,
    streams: CommandStreams,
    target: SessionTarget,
    permit: Share,
) {
    let activity = Activity::new();
    let (connection, copied) = Connection::new(bytes, Side::Server, activity.clone());
    let session = async move {
        match timeout(CREATION_LIMIT, client_streams(connection, streams)).await {
            Ok(Some(client)) => run(start, client, &target).await,
            Ok(None) => {}
            Err(_) => tracing::debug!(?streams, "a client of the node API did not create its streams in time"),
        }
    };
    drive(session, copied, &activity, permit).await;
}

/// Waits until the client has created its streams. `None` if the client ends the connection.
async fn client_streams(mut connection: Connection, streams: CommandStreams) -> Option<ClientStreams> {
    let mut found: Vec<(&str, _)> = Vec::new();
    let mut missing: Vec<&str> = streams.names().collect();
    while !missing.is_empty() {
        let opened = connection.accepted.recv().await?;
        let kind = opened.headers.get("streamtype").unwrap_or_default();
        match missing.iter().position(|name| *name == kind) {
            Some(at) => found.push((missing.swap_remove(at), opened)),
            None => tracing::debug!(kind, "a client of the node API created an unexpected stream"),
        }
    }
    let mut take = |name: &str| {
        let at = found.iter().position(|(own, _)| *own == name)?;
        Some(found.swap_remove(at).1)
    };
    Some(ClientStreams {
        stdin: take("stdin").map(|stream| stream.data),
        resize: take("resize").map(|stream| stream.data),
        stdout: take("stdout").map(|stream| stream.writer),
        stderr: take("stderr").map(|stream| stream.writer),
        error: take("error")?.writer,
        has_status: true,
    })
}

/// Serves a command over WebSocket.
pub(super) async fn over_websocket(
    socket: WebSocket,
    format: MessageFormat,
    start: StartCommand,
    streams: CommandStreams,
    target: SessionTarget,
    permit: Share,
) {
    let activity = Activity::new();
    let mut inputs = Inputs::default();
    let stdin = streams.stdin.then(|| inputs.add(STDIN));
    let resize = streams.tty.then(|| inputs.add(RESIZE));
    let (frames, copied) = websocket::channels(socket, format, inputs, activity.clone());
    let writer = |channel: u8| Writer::new(channel.into(), frames.clone());
    let client = ClientStreams {
        stdin,
        resize,
        stdout: streams.stdout.then(|| writer(STDOUT)),
        stderr: streams.stderr.then(|| writer(STDERR)),
        error: writer(ERROR),
        has_status: format.has_status,
    };
    drop(frames);
    let session = async move {
        // Some clients wait for the first message.
        client.stdout.as_ref().or(client.stderr.as_ref()).unwrap_or(&client.error).write(Vec::new()).await;
        run(start, client, &target).await;
    };
    drive(session, copied, &activity, permit).await;
}

/// Runs the command, and writes its status to the client.
async fn run(start: StartCommand, client: ClientStreams, target: &SessionTarget) {
    let ClientStreams { stdin, resize, stdout, stderr, error, has_status } = client;
    let end = match start.start().await {
        Ok(command) => copy(command, stdin, resize, stdout, stderr).await,
        Err(reason) => CommandEnd::Failed(reason),
    };
    let written = if has_status { Some(status::json(&end, target)) } else { status::text(&end, target) };
    if let Some(bytes) = written {
        error.write(bytes).await;
    }
    error.finish().await;
}

/// Copies the streams until the command has ended and its output was queued.
async fn copy(
    command: LocalCommand,
    stdin: Option<mpsc::Receiver<Vec<u8>>>,
    resize: Option<mpsc::Receiver<Vec<u8>>>,
    stdout: Option<Writer>,
    stderr: Option<Writer>,
) -> CommandEnd {
    let input = async {
        copy_input(stdin, command.stdin).await;
        std::future::pending().await
    };
    let sizes = async {
        copy_sizes(resize, command.resize).await;
        std::future::pending().await
    };
    let end = async {
        tokio::join!(copy_output(command.stdout, stdout), copy_output(command.stderr, stderr));
        let lost = || CommandEnd::Failed("the agent is shutting down".to_owned());
        command.ended.await.unwrap_or_else(|_| lost())
    };
    tokio::select! {
        end = end => end,
        end = input => end,
        end = sizes => end,
    }
}

async fn copy_input(from: Option<mpsc::Receiver<Vec<u8>>>, to: Option<mpsc::Sender<Vec<u8>>>) {
    let (Some(mut from), Some(to)) = (from, to) else { return };
    while let Some(bytes) = from.recv().await {
        // The command has closed its input, so the rest of the data is discarded.
        if to.send(bytes).await.is_err() {
            return;
        }
    }
}

async fn copy_output(from: Option<mpsc::Receiver<Vec<u8>>>, to: Option<Writer>) {
    if let Some(mut from) = from {
        while let Some(bytes) = from.recv().await {
            if let Some(to) = &to {
                to.write(bytes).await;
            }
        }
    }
    if let Some(to) = to {
        to.finish().await;
    }
}

async fn copy_sizes(from: Option<mpsc::Receiver<Vec<u8>>>, to: Option<watch::Sender<Option<WindowSize>>>) {
    let (Some(mut from), Some(to)) = (from, to) else { return };
    let mut text = Vec::new();
    while let Some(bytes) = from.recv().await {
        text.extend_from_slice(&bytes);
        for size in sizes(&mut text) {
            to.send_replace(Some(size));
        }
    }
}

/// Takes the complete window sizes from the beginning of a text. Text that is not JSON is discarded.
fn sizes(text: &mut Vec<u8>) -> Vec<WindowSize> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Size {
        width: u16,
        height: u16,
    }
    let mut read = serde_json::Deserializer::from_slice(text).into_iter::<Size>();
    let (mut sizes, mut end, mut broken) = (Vec::new(), 0, false);
    loop {
        match read.next() {
            Some(Ok(Size { width, height })) => {
                end = read.byte_offset();
                sizes.push(WindowSize { width, height });
            }
            Some(Err(error)) => {
                broken = !error.is_eof();
                break;
            }
            None => {
                end = text.len();
                break;
            }
        }
    }
    if broken || text.len() - end > MAX_SIZE_BYTES {
        end = text.len();
    }
    text.drain(..end);
    sizes
}

/// A status that was read from the error stream of a runtime.
pub(super) fn end_of_remote(status: Vec<u8>) -> CommandEnd {
    if status.is_empty() {
        let reason = "the streaming server of the container runtime ended the stream without a status";
        return CommandEnd::Failed(reason.to_owned());
    }
    CommandEnd::Status(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_sizes_are_read_in_any_chunking() {
        let mut text = br#"{"Width":80,"Height":24}{"Width":10"#.to_vec();
        assert_eq!(sizes(&mut text), [WindowSize { width: 80, height: 24 }]);
        text.extend_from_slice(b"0,\"Height\":30}\n");
        assert_eq!(sizes(&mut text), [WindowSize { width: 100, height: 30 }]);
        assert!(text.is_empty());
        text.extend_from_slice(b"resize please");
        assert!(sizes(&mut text).is_empty() && text.is_empty());
        text = vec![b' '; MAX_SIZE_BYTES * 2];
        text.extend_from_slice(b"{\"Width\":");
        sizes(&mut text);
        assert!(text.len() <= MAX_SIZE_BYTES);
    }
}
