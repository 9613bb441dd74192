//! Time limits and refusals. The protocols themselves are tested end to end.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use futures_util::{SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::oneshot;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_util::task::AbortOnDropHandle;

use super::command::over_spdy;
use super::runtime_connection::{RuntimeConnection, STALL_LIMIT};
use super::*;
use crate::spdy::{Decoder, Encoder, Headers};
use podwright_host::streaming::{LocalCommand, NoStreams, PodPorts, StartCommand};

fn permit() -> Share {
    Shares::new(NodeApiResource::Stream, SHARES, NodeApiMetrics::default()).take(&web()).unwrap()
}

fn web() -> FullName {
    FullName::new("default", "web")
}

/// A pod whose ports are those of this machine.
fn this_machine() -> ports::ForwardTarget {
    let connect = |port: u16| async move {
        let connected = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        connected.map_err(|error| error.to_string())
    };
    ports::ForwardTarget { pod: PodPorts::new(connect), sandbox: "s".to_owned() }
}

async fn open_streams(client: &mut DuplexStream, streams: &[(u32, Headers)]) {
    let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
    for (stream, headers) in streams {
        encoder.append(&Frame::SynStream { stream: *stream, headers: headers.clone(), fin: false }, &mut bytes);
    }
    client.write_all(&bytes).await.unwrap();
}

/// The frames that the agent sends until it closes the connection, or until a frame meets the condition.
async fn frames(client: &mut DuplexStream, last: impl Fn(&Frame) -> bool) -> Vec<Frame> {
    let (mut decoder, mut frames, mut buffer) = (Decoder::default(), Vec::new(), [0; 1024]);
    while !frames.last().is_some_and(&last) {
        match client.read(&mut buffer).await {
            Ok(count @ 1..) => decoder.feed(&buffer[..count]),
            _ => break,
        }
        while let Some(frame) = decoder.next_frame().unwrap() {
            frames.push(frame);
        }
    }
    frames
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_create_its_streams_in_time_is_disconnected() {
    let (mut client, bytes) = duplex(1 << 16);
    let start = StartCommand::new(async { panic!("the command starts without its streams") });
    let streams = CommandStreams { stdout: true, ..CommandStreams::default() };
    let session = tokio::spawn(over_spdy(bytes, start, streams, SessionTarget::Attach, permit()));
    let begin = Instant::now();
    open_streams(&mut client, &[(1, Headers::new([("streamtype", "error")]))]).await;
    let frames = frames(&mut client, |_| false).await;
    assert_eq!(frames.last(), Some(&Frame::GoAway { last: 0, status: 0 }));
    drop(client);
    session.await.unwrap();
    assert!(begin.elapsed() >= CREATION_LIMIT && begin.elapsed() < CREATION_LIMIT * 2, "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn the_first_stream_of_an_incomplete_pair_is_reset() {
    let (mut client, bytes) = duplex(1 << 16);
    let target = this_machine();
    let session = tokio::spawn(ports::over_spdy(bytes, target, permit()));
    let begin = Instant::now();
    let headers = Headers::new([("streamtype", "error"), ("port", "80"), ("requestid", "0")]);
    open_streams(&mut client, &[(1, headers)]).await;
    let frames = frames(&mut client, |frame| matches!(frame, Frame::Reset { .. })).await;
    assert_eq!(frames.last(), Some(&Frame::Reset { stream: 1, status: spdy::CANCEL }));
    assert!(begin.elapsed() >= CREATION_LIMIT, "{:?}", begin.elapsed());
    drop(client);
    session.await.unwrap();
}

// A pod that never ends its connections must not exhaust the descriptors of the agent.
#[tokio::test]
async fn the_connections_that_one_client_forwards_are_limited() {
    let pod = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = pod.local_addr().unwrap().port().to_string();
    let (mut client, bytes) = duplex(1 << 20);
    let target = this_machine();
    let session = tokio::spawn(ports::over_spdy(bytes, target, permit()));
    let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
    let count = u32::try_from(ports::MAX_FORWARDS).unwrap() + 2;
    for request in 0..count {
        for (kind, stream) in [("error", 4 * request + 1), ("data", 4 * request + 3)] {
            let headers = Headers::new([("streamtype", kind), ("port", &port), ("requestid", &request.to_string())]);
            encoder.append(&Frame::SynStream { stream, headers, fin: true }, &mut bytes);
        }
    }
    client.write_all(&bytes).await.unwrap();
    let refused = frames(&mut client, |frame| matches!(frame, Frame::Reset { .. }));
    let refused = tokio::time::timeout(Duration::from_secs(60), refused).await.unwrap();
    let first = 4 * u32::try_from(ports::MAX_FORWARDS).unwrap() + 1;
    let refused = refused.into_iter().find(|frame| matches!(frame, Frame::Reset { .. }));
    assert_eq!(refused, Some(Frame::Reset { stream: first, status: spdy::CANCEL }));
    drop(client);
    session.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_when_it_had_no_data_for_the_idle_limit() {
    let activity = Activity::new();
    let begin = Instant::now();
    let data = async {
        tokio::time::sleep(IDLE_LIMIT / 2).await;
        activity.record_data();
        std::future::pending().await
    };
    drive(data, std::future::pending(), &activity, permit()).await;
    assert_eq!(begin.elapsed().as_secs(), (IDLE_LIMIT * 3 / 2).as_secs());
}

/// The streams of [`endless_command`].
const INPUT_AND_OUTPUT: CommandStreams = CommandStreams { stdin: true, stdout: true, stderr: false, tty: false };

/// A command that writes once, after the idle limit, and never ends.
fn endless_command() -> StartCommand {
    StartCommand::new(async {
        let (stdin, input) = mpsc::channel(1);
        let (output, stdout) = mpsc::channel(1);
        let (end, ended) = oneshot::channel();
        let writes = tokio::spawn(async move {
            tokio::time::sleep(IDLE_LIMIT).await;
            output.send(b"out".to_vec()).await.unwrap();
            std::future::pending::<()>().await;
            drop((input, output, end));
        });
        let tasks = vec![AbortOnDropHandle::new(writes)];
        Ok(LocalCommand { stdin: Some(stdin), stdout: Some(stdout), stderr: None, resize: None, ended, tasks })
    })
}

/// Calls `send` every 5 s, as often as kubectl pings: for data after half of the idle limit, and otherwise for a ping. The pings end after
/// three times the limit, so that a session that they keep open ends late.
async fn send_periodically(mut send: impl AsyncFnMut(bool)) {
    let (begin, period) = (Instant::now(), Duration::from_secs(5));
    for count in (1..).take_while(|count| period * *count <= IDLE_LIMIT * 3) {
        sleep_until(begin + period * count).await;
        send(period * count == IDLE_LIMIT / 2).await;
    }
    std::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn a_spdy_client_that_only_pings_is_idle() {
    let (mut client, bytes) = duplex(1 << 16);
    let session = over_spdy(bytes, endless_command(), INPUT_AND_OUTPUT, SessionTarget::Attach, permit());
    let session = tokio::spawn(session);
    let begin = Instant::now();
    let kinds = [(1, "error"), (3, "stdin"), (5, "stdout")];
    open_streams(&mut client, &kinds.map(|(stream, kind)| (stream, Headers::new([("streamtype", kind)])))).await;
    let (mut from_agent, mut to_agent) = split(client);
    let sent = send_periodically(async |is_data| {
        let data = Frame::Data { stream: 3, bytes: b"in".to_vec(), fin: false };
        let (frame, mut bytes) = (if is_data { data } else { Frame::Ping(1) }, Vec::new());
        Encoder::default().append(&frame, &mut bytes);
        let _ = to_agent.write_all(&bytes).await;
    });
    let mut buffer = [0; 1024];
    let ended = async { while matches!(from_agent.read(&mut buffer).await, Ok(1..)) {} };
    tokio::select! {
        () = sent => {}
        () = ended => {}
    }
    assert_eq!(begin.elapsed().as_secs(), (IDLE_LIMIT * 2).as_secs(), "the output was the last data");
    session.await.unwrap();
}

/// The client of a command over WebSocket.
async fn websocket_client(start: StartCommand, streams: CommandStreams) -> WebSocketStream<DuplexStream> {
    let (client, bytes) = duplex(1 << 16);
    let start = Mutex::new(Some(start));
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let start = start.lock().take().unwrap();
        async move {
            let upgrade = Upgrade::of(request.map(Body::new)).unwrap();
            let answer = command::serve(upgrade, start, streams, SessionTarget::Attach, permit()).await;
            Ok::<_, Infallible>(answer.unwrap_or_else(IntoResponse::into_response))
        }
    });
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(bytes), service);
    tokio::spawn(connection.with_upgrades());
    let mut request = "ws://node/exec".into_client_request().unwrap();
    request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(upgrade::V5));
    tokio_tungstenite::client_async(request, client).await.unwrap().0
}

#[tokio::test(start_paused = true)]
async fn a_websocket_client_that_only_pings_is_idle() {
    let begin = Instant::now();
    let (mut sink, mut stream) = websocket_client(endless_command(), INPUT_AND_OUTPUT).await.split();
    let sent = send_periodically(async |is_data| {
        let data = Message::Binary(b"\x00in".to_vec().into());
        let _ = sink.send(if is_data { data } else { Message::Ping(Vec::new().into()) }).await;
    });
    let ended = async { while let Some(Ok(_)) = stream.next().await {} };
    tokio::select! {
        () = sent => {}
        () = ended => {}
    }
    assert_eq!(begin.elapsed().as_secs(), (IDLE_LIMIT * 2).as_secs(), "the output was the last data");
}

/// A client and a streaming server whose bytes the agent copies.
fn tunnel() -> (DuplexStream, DuplexStream, tokio::task::JoinHandle<()>) {
    let ((client, ours), (runtime, server)) = (duplex(64), duplex(64));
    let exchange = tokio::spawn(tunnel::exchange(ours, RuntimeConnection::new(runtime)));
    (client, server, exchange)
}

// The limit is the one that `/configz` reports.
#[tokio::test(start_paused = true)]
async fn a_tunnel_ends_when_neither_side_had_data_for_the_idle_limit() {
    let (mut client, mut server, exchange) = tunnel();
    let begin = Instant::now();
    tokio::time::sleep(IDLE_LIMIT / 2).await;
    server.write_all(b"x").await.unwrap();
    tokio::time::sleep(IDLE_LIMIT / 2).await;
    client.write_all(b"y").await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'y');
    let mut output = Vec::new();
    client.read_to_end(&mut output).await.unwrap();
    assert_eq!((output, begin.elapsed().as_secs()), (b"x".to_vec(), (IDLE_LIMIT * 2).as_secs()));
    drop(client);
    exchange.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_of_a_runtime_that_reads_no_more_gets_the_output_and_an_end() {
    let (client, mut server, exchange) = tunnel();
    let (mut output, mut input) = tokio::io::split(client);
    let endless = async { while input.write_all(&[0; 64]).await.is_ok() {} };
    server.write_all(b"output").await.unwrap();
    let begin = Instant::now();
    let mut text = String::new();
    tokio::select! {
        () = endless => panic!("the input ends before the output"),
        read = output.read_to_string(&mut text) => drop(read.unwrap()),
    }
    assert_eq!((text.as_str(), begin.elapsed().as_secs()), ("output", STALL_LIMIT.as_secs()));
    drop((input, output));
    exchange.await.unwrap();
}

#[tokio::test]
async fn a_request_is_refused_while_too_many_streams_are_open() {
    let request = || {
        let request = axum::http::Request::builder().header("connection", "Upgrade").header("upgrade", "SPDY/3.1");
        request.body(Body::empty()).unwrap()
    };
    let stream = || Stream::PortForward { sandbox: "s".into(), ports: vec![] };
    let streams = Streams::new(Arc::new(NoStreams));
    assert_eq!(streams.serve(request(), &web(), stream()).await.status(), StatusCode::NOT_IMPLEMENTED);
    let all: Vec<_> = (0..SHARES.pod).map(|_| streams.sessions.take(&web()).unwrap()).collect();
    let refused = streams.serve(request(), &web(), stream()).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers().get(header::RETRY_AFTER).unwrap(), "1");
    let other = FullName::new("default", "db");
    assert_eq!(streams.serve(request(), &other, stream()).await.status(), StatusCode::NOT_IMPLEMENTED);
    drop(all);
    assert_eq!(streams.serve(request(), &web(), stream()).await.status(), StatusCode::NOT_IMPLEMENTED);
}

#[tokio::test]
async fn a_command_without_streams_is_refused_while_too_many_streams_are_open() {
    let streams = Streams::new(Arc::new(NoStreams));
    let pod = web();
    let run = || streams.run(&pod, "c".into(), vec!["true".to_owned()]);
    assert_eq!(run().await.status(), StatusCode::NOT_IMPLEMENTED);
    let all: Vec<_> = (0..SHARES.pod).map(|_| streams.sessions.take(&pod).unwrap()).collect();
    assert_eq!(run().await.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(all);
    assert_eq!(run().await.status(), StatusCode::NOT_IMPLEMENTED);
}

#[tokio::test]
async fn requests_over_a_websocket_protocol_of_the_agent_are_counted() {
    let metrics = podwright_metrics::Metrics::new();
    let streams = Streams::new(Arc::new(NoStreams)).metrics(&metrics);
    let exec = || Stream::Exec {
        container: "c".into(),
        command: vec![],
        stdin: false,
        stdout: true,
        stderr: false,
        tty: false,
    };
    let attach = || Stream::Attach { container: "c".into(), stdin: false, stdout: true, stderr: false, tty: false };
    let ports = || Stream::PortForward { sandbox: "s".into(), ports: vec![] };
    let (v4, v5, tunnel) = ("v4.channel.k8s.io", "v5.channel.k8s.io", "SPDY/3.1+portforward.k8s.io");
    for (upgrade, protocol, stream) in [
        ("websocket", v5, exec()),
        ("websocket", v5, exec()),
        ("websocket", v5, attach()),
        ("websocket", tunnel, ports()),
        // The streaming server of a runtime serves these.
        ("websocket", v4, exec()),
        ("websocket", v4, ports()),
        ("websocket", v5, ports()),
        ("SPDY/3.1", v5, attach()),
    ] {
        let request = axum::http::Request::builder().header("connection", "Upgrade").header("upgrade", upgrade);
        let request = request.header("sec-websocket-protocol", protocol).body(Body::empty()).unwrap();
        streams.serve(request, &web(), stream).await;
    }
    let text = metrics.encode(podwright_metrics::Format::Classic);
    let count = |subresource: &str| {
        let series = format!("kubelet_streaming_websocket_requests_total{{subresource=\"{subresource}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&series).map(str::to_owned))
    };
    let counts = ["exec", "attach", "portforward"].map(count);
    assert_eq!(counts.each_ref().map(|count| count.as_deref()), [Some("2"), Some("1"), Some("1")], "{text}");
}

#[tokio::test]
async fn ports_of_forwarded_streams_are_numbers_above_zero() {
    let (mut client, bytes) = duplex(1 << 16);
    let target = this_machine();
    let session = tokio::spawn(ports::over_spdy(bytes, target, permit()));
    let stream = |number: u32, port: &str| {
        (number, Headers::new([("streamtype", "error"), ("port", port), ("requestid", &number.to_string())]))
    };
    let bad = [stream(1, "0"), stream(3, "65536"), stream(5, "-1"), stream(7, "http")];
    open_streams(&mut client, &bad).await;
    let mut count = 0;
    while count < bad.len() {
        let found = frames(&mut client, |frame| matches!(frame, Frame::Reset { .. }));
        let found = tokio::time::timeout(Duration::from_secs(180), found).await.expect("a stream is not reset");
        count += found.iter().filter(|frame| matches!(frame, Frame::Reset { .. })).count();
    }
    drop(client);
    session.await.unwrap();
}
