//! Network calls of probes and hooks to real servers on this machine.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use podwright_network::Network;
use podwright_ports::{GrpcHealth, GrpcTarget, HttpTarget, NetworkClient, NetworkError, TcpTarget};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket};
use tonic_health::ServingStatus;

/// A timeout that only prevents the test from hanging.
const PLENTY: Duration = Duration::from_secs(180);
const SHORT: Duration = Duration::from_millis(50);

fn client() -> Network {
    Network::new().unwrap()
}

fn target(server: SocketAddr, path: &str) -> HttpTarget {
    HttpTarget {
        https: false,
        host: server.ip().to_string(),
        port: server.port(),
        path: path.into(),
        headers: vec![("User-Agent".into(), "kube-probe/1.36".into()), ("Accept".into(), "*/*".into())],
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// An address at which no program listens. No other program gets its port while the socket exists.
fn reserved() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

async fn serve(router: Router) -> SocketAddr {
    let (listener, address) = listen().await;
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

fn echo_headers(headers: &HeaderMap) -> String {
    let mut lines: Vec<_> = headers.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap())).collect();
    lines.sort();
    lines.join("\n")
}

fn router() -> Router {
    Router::new()
        .route("/ok", get(|| async { "fine" }))
        .route("/bad", get(|| async { (StatusCode::SERVICE_UNAVAILABLE, "not yet") }))
        .route("/headers", get(|headers: HeaderMap| async move { echo_headers(&headers) }))
        .route("/query", get(|uri: axum::http::Uri| async move { uri.to_string() }))
        .route("/big", get(|| async { "x".repeat(100_000) }))
        .route("/near", get(|| async { Redirect::temporary("/ok") }))
        .route("/far", get(|| async { Redirect::temporary("http://other.invalid/ok") }))
        .route("/loop", get(|| async { Redirect::temporary("/loop") }))
        .route("/slow", get(|| async { std::future::pending::<&str>().await }))
        .route("/endless", get(endless))
}

/// A body that starts and never ends.
async fn endless() -> impl IntoResponse {
    let beginning = futures_util::stream::iter([Ok::<_, std::io::Error>("begun")]);
    let rest = futures_util::stream::pending();
    Body::from_stream(futures_util::StreamExt::chain(beginning, rest))
}

#[tokio::test]
async fn http_get_returns_status_and_the_start_of_the_body() {
    let server = serve(router()).await;
    let get = async |path: &str| client().http_get(target(server, path), PLENTY).await;
    assert_eq!(get("/ok").await, Ok((200, "fine".into())));
    assert_eq!(get("/bad").await, Ok((503, "not yet".into())));
    assert_eq!(get("/none").await, Ok((404, String::new())));
    assert_eq!(get("/query?a=1&b=%20x").await, Ok((200, "/query?a=1&b=%20x".into())));
    assert_eq!(get("/big").await, Ok((200, "x".repeat(10 << 10))));
}

#[tokio::test]
async fn http_redirects_are_followed_on_the_same_host_only() {
    let server = serve(router()).await;
    let get = async |path: &str| client().http_get(target(server, path), PLENTY).await;
    assert_eq!(get("/near").await, Ok((200, "fine".into())));
    assert_eq!(get("/far").await.map(|(status, _)| status), Ok(307));
    let Err(NetworkError::Failed(message)) = get("/loop").await else { panic!("a loop has no answer") };
    assert!(message.to_string().contains("stopped after 10 redirects"), "{message}");
}

#[tokio::test]
async fn http_headers_are_sent_unchanged_and_host_overrides_the_default() {
    let server = serve(router()).await;
    let plain = client().http_get(target(server, "/headers"), PLENTY).await.unwrap().1;
    let expected = format!("accept=*/*\nconnection=close\nhost={server}\nuser-agent=kube-probe/1.36");
    assert_eq!(plain, expected);

    let mut own = target(server, "/headers");
    own.headers = [("Host", "shop.test"), ("X-A", "1"), ("X-A", "2")].map(|(k, v)| (k.into(), v.into())).into();
    let lines = client().http_get(own, PLENTY).await.unwrap().1;
    assert_eq!(lines, "accept=*/*\nconnection=close\nhost=shop.test\nx-a=1\nx-a=2");

    let mut bad = target(server, "/headers");
    for (name, value) in [("no spaces", "hunter2"), ("Authorization", "hunter2\n")] {
        bad.headers = vec![(name.into(), value.into())];
        let Err(NetworkError::Failed(why)) = client().http_get(bad.clone(), PLENTY).await else {
            panic!("{name} is sent")
        };
        let why = why.to_string();
        assert!(why.contains(name) && !why.contains("hunter2"), "{why}");
    }
}

#[tokio::test]
async fn http_get_times_out_on_a_late_head_and_a_late_body() {
    let server = serve(router()).await;
    for path in ["/slow", "/endless"] {
        let answer = client().http_get(target(server, path), SHORT).await;
        assert_eq!(answer, Err(NetworkError::Timeout(SHORT)), "{path}");
    }
}

#[tokio::test]
async fn every_http_call_makes_its_own_connection() {
    let (listener, server) = listen().await;
    let client = client();
    let calls = async {
        for _ in 0..3 {
            assert_eq!(client.http_get(target(server, "/"), PLENTY).await, Ok((200, "ok".into())));
        }
    };
    let serve = async {
        let mut kept = Vec::new();
        for _ in 0..3 {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            assert!(socket.read(&mut request).await.unwrap() > 0);
            socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await.unwrap();
            kept.push(socket);
        }
    };
    tokio::time::timeout(PLENTY, async { tokio::join!(calls, serve) }).await.unwrap();
}

#[tokio::test]
async fn https_accepts_a_self_signed_certificate() {
    let made = rcgen::generate_simple_self_signed(["someone.else.test".into()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let (listener, server) = listen().await;
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let mut socket = acceptor.accept(socket).await.unwrap();
        let mut request = [0; 1024];
        assert!(socket.read(&mut request).await.unwrap() > 0);
        socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret").await.unwrap();
        socket.shutdown().await.unwrap();
    });
    let target = HttpTarget { https: true, ..target(server, "/") };
    assert_eq!(client().http_get(target, PLENTY).await, Ok((200, "secret".into())));
}

#[tokio::test]
async fn http_error_names_closed_port_and_malformed_response() {
    let (_reserved, server) = reserved();
    for answer in [
        client().http_get(target(server, "/"), PLENTY).await.map(drop),
        client().tcp_connect(TcpTarget { host: "127.0.0.1".into(), port: server.port() }, PLENTY).await,
    ] {
        let text = format!("dial tcp {server}: connect: connection refused");
        assert_eq!(answer.map_err(|error| error.to_string()), Err(text));
    }

    let (listener, server) = listen().await;
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"220 smtp ready\r\n").await.unwrap();
        socket.shutdown().await.unwrap();
    });
    assert!(matches!(client().http_get(target(server, "/"), PLENTY).await, Err(NetworkError::Failed(_))));
}

#[tokio::test]
async fn tcp_connect_succeeds_on_a_listening_port() {
    let (_listener, server) = listen().await;
    let target = |host: &str, port| TcpTarget { host: host.into(), port };
    assert_eq!(client().tcp_connect(target("127.0.0.1", server.port()), PLENTY).await, Ok(()));
    assert_eq!(client().tcp_connect(target("localhost", server.port()), PLENTY).await, Ok(()));
    if let Ok(six) = TcpListener::bind("[::1]:0").await {
        let port = six.local_addr().unwrap().port();
        assert_eq!(client().tcp_connect(target("::1", port), PLENTY).await, Ok(()));
        assert_eq!(client().tcp_connect(target("[::1]", port), PLENTY).await, Ok(()));
    }
}

#[tokio::test]
async fn grpc_check_reports_whether_a_service_is_serving() {
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("up", ServingStatus::Serving).await;
    reporter.set_service_status("down", ServingStatus::NotServing).await;
    let (listener, server) = listen().await;
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(async move {
        tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap();
    });
    let check = async |service: &str| {
        let target = GrpcTarget { host: "127.0.0.1".into(), port: server.port(), service: service.into() };
        client().grpc_check(target, PLENTY).await
    };
    assert_eq!(check("").await, Ok(GrpcHealth::Serving));
    assert_eq!(check("up").await, Ok(GrpcHealth::Serving));
    assert_eq!(check("down").await, Ok(GrpcHealth::NotServing));
    let Err(NetworkError::Grpc { code, .. }) = check("unknown").await else {
        panic!("an unknown service is no answer")
    };
    assert_eq!(code, "NotFound");
}

#[tokio::test]
async fn grpc_check_fails_on_a_server_without_grpc() {
    let (_silent, server) = listen().await;
    let target = GrpcTarget { host: "127.0.0.1".into(), port: server.port(), service: String::new() };
    assert_eq!(client().grpc_check(target, SHORT).await, Err(NetworkError::Timeout(SHORT)));
    let (_reserved, server) = reserved();
    let target = GrpcTarget { host: "127.0.0.1".into(), port: server.port(), service: String::new() };
    let refused = NetworkError::Dial { address: server.to_string(), error: "connection refused".into() };
    assert_eq!(client().grpc_check(target, PLENTY).await, Err(refused));

    let web = serve(router()).await;
    let target = GrpcTarget { host: "127.0.0.1".into(), port: web.port(), service: String::new() };
    assert!(matches!(client().grpc_check(target, PLENTY).await, Err(NetworkError::Grpc { .. })));
}

// The kubelet then repeats an HTTPS hook without TLS (`kubelet_lifecycle_handler_http_fallbacks_total`).
#[tokio::test]
async fn https_error_distinguishes_missing_tls_from_a_failing_handshake() {
    let server = serve(router()).await;
    let over_tls = HttpTarget { https: true, ..target(server, "/ok") };
    assert_eq!(client().http_get(over_tls, PLENTY).await, Err(NetworkError::PlainHttp));

    let (listener, server) = listen().await;
    tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let over_tls = HttpTarget { https: true, ..target(server, "/ok") };
    assert!(matches!(client().http_get(over_tls, PLENTY).await, Err(NetworkError::Failed(_))));
}
