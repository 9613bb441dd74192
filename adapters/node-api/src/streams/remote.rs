//! Serves a stream of a runtime that has a streaming server.
//!
//! The server speaks SPDY, and WebSocket of version 4. The agent itself serves a client of version 5, and a client that
//! forwards ports over WebSocket. It speaks SPDY to the server.

use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::response::Response;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use super::command::CommandStreams;
use super::tunnel::{self, connect, exchange};
use super::upgrade::{
    PORT_FORWARD, SPDY, SPDY_IN_WEBSOCKET, STREAM_PROTOCOL, Upgrade, UpgradeKind, UpgradedConnection, V4, V5,
};
use super::websocket::{self, MessageFormat};
use super::{Activity, Refusal, SessionTarget, Share, Writer};
use crate::spdy::{Connection, Headers, Side};
use podwright_host::streaming::{CHUNKS, LocalCommand, StartCommand, WindowSize};

/// The longest status that is passed on, in bytes.
const MAX_STATUS: usize = 64 << 10;

/// Serves the stream at a URL of the runtime.
pub(super) async fn serve(
    upgrade: Upgrade,
    url: &str,
    streams: CommandStreams,
    permit: Share,
) -> Result<Response, Refusal> {
    if upgrade.kind == UpgradeKind::WebSocket && upgrade.offers(V5) {
        let start = command(url, streams).await?;
        let format = MessageFormat::of(Some(V5));
        // The runtime writes the texts of errors.
        let target = SessionTarget::Attach;
        let session = move |socket| super::command::over_websocket(socket, format, start, streams, target, permit);
        return upgrade.accept_websocket(Some(V5), session).await;
    }
    if upgrade.kind == UpgradeKind::WebSocket && upgrade.offers(SPDY_IN_WEBSOCKET) {
        let (runtime, _) = connect(url, Method::POST, &spdy_headers(PORT_FORWARD)).await?;
        let session = move |socket| async move {
            let (client, copied) = websocket::bytes(socket);
            tokio::join!(exchange(client, runtime), copied);
            drop(permit);
        };
        return upgrade.accept_websocket(Some(SPDY_IN_WEBSOCKET), session).await;
    }
    tunnel::serve(upgrade, url, permit).await
}

/// A command at a URL of the runtime.
pub(super) async fn command(url: &str, streams: CommandStreams) -> Result<StartCommand, Refusal> {
    let (runtime, _) = connect(url, Method::POST, &spdy_headers(V4)).await?;
    Ok(StartCommand::new(start(runtime, streams)))
}

fn spdy_headers(protocol: &'static str) -> HeaderMap {
    HeaderMap::from_iter([
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (header::UPGRADE, SPDY),
        (STREAM_PROTOCOL, HeaderValue::from_static(protocol)),
        (header::CONTENT_LENGTH, HeaderValue::from_static("0")),
    ])
}

/// Creates the streams of a command at the runtime.
async fn start(runtime: impl UpgradedConnection, streams: CommandStreams) -> Result<LocalCommand, String> {
    let (connection, copied) = Connection::new(runtime, Side::Client, Activity::new());
    let mut tasks = vec![AbortOnDropHandle::new(tokio::spawn(copied))];
    let (mut stdin, mut stdout, mut stderr, mut resize, mut error) = (None, None, None, None, None);
    for (at, name) in streams.names().enumerate() {
        let number = 2 * u32::try_from(at).expect("there are five streams") + 1;
        let opened = connection.open(number, Headers::new([("streamtype", name)])).await;
        let opened = opened.ok_or("the streaming server of the container runtime ended the connection")?;
        match name {
            "stdin" => stdin = Some(opened.writer),
            "stdout" => stdout = Some(opened.data),
            "stderr" => stderr = Some(opened.data),
            "resize" => resize = Some(opened.writer),
            _ => error = Some(opened.data),
        }
    }
    let stdin = stdin.map(|writer| {
        let (sender, receiver) = mpsc::channel(CHUNKS);
        tasks.push(AbortOnDropHandle::new(tokio::spawn(copy_input(receiver, writer))));
        sender
    });
    let resize = resize.map(|writer| {
        let (sender, receiver) = watch::channel(None);
        tasks.push(AbortOnDropHandle::new(tokio::spawn(copy_sizes(receiver, writer))));
        sender
    });
    let (end, ended) = oneshot::channel();
    let mut error = error.expect("each command has an error stream");
    tasks.push(AbortOnDropHandle::new(tokio::spawn(async move {
        let mut status = Vec::new();
        while let Some(bytes) = error.recv().await {
            status.extend_from_slice(&bytes[..bytes.len().min(MAX_STATUS - status.len())]);
        }
        let _ = end.send(super::command::end_of_remote(status));
        drop(connection);
    })));
    Ok(LocalCommand { stdin, stdout, stderr, resize, ended, tasks })
}

async fn copy_input(mut from: mpsc::Receiver<Vec<u8>>, to: Writer) {
    while let Some(bytes) = from.recv().await {
        to.write(bytes).await;
    }
    to.finish().await;
}

async fn copy_sizes(mut from: watch::Receiver<Option<WindowSize>>, to: Writer) {
    while from.changed().await.is_ok() {
        let size = *from.borrow_and_update();
        if let Some(WindowSize { width, height }) = size {
            to.write(format!("{{\"Width\":{width},\"Height\":{height}}}").into_bytes()).await;
        }
    }
}
