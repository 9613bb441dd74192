//! Requests that the server passes on to the kubelet of a pod's node.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use hyper::StatusCode;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use podwright_stand_in::{Grant, StandIn, User};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::http::Client;

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Answers with the request, and echoes the bytes of an upgraded connection.
async fn kubelet(mut request: Request) -> Response {
    let path = request.uri().to_string();
    if path.contains("missing") {
        return (StatusCode::NOT_FOUND, "no such container").into_response();
    }
    let upgrade = request.headers().get("upgrade").cloned();
    match (request.extensions_mut().remove::<OnUpgrade>(), upgrade) {
        (Some(connection), Some(protocol)) => {
            tokio::spawn(async move {
                let mut stream = TokioIo::new(connection.await.unwrap());
                stream.write_all(path.as_bytes()).await.unwrap();
                let mut bytes = [0; 4];
                while stream.read_exact(&mut bytes).await.is_ok() {
                    stream.write_all(&bytes).await.unwrap();
                }
            });
            let headers = [("connection", "Upgrade"), ("upgrade", protocol.to_str().unwrap())];
            (StatusCode::SWITCHING_PROTOCOLS, headers, Body::empty()).into_response()
        }
        _ => format!("{} {path}", request.method()).into_response(),
    }
}

/// Starts a kubelet that accepts only clients with a certificate of the cluster's authority. Returns its port.
async fn start_kubelet(server: &StandIn) -> u16 {
    let provider = Arc::new(ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(server.ca_certificate().as_bytes()).unwrap()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
    let made = rcgen::generate_simple_self_signed(["n1".to_owned()]).unwrap();
    let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config =
        config.with_client_cert_verifier(clients).with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let stream = TokioIo::new(acceptor.accept(stream).await.unwrap());
                let service = TowerToHyperService::new(Router::new().fallback(kubelet));
                let _ =
                    hyper::server::conn::http1::Builder::new().serve_connection(stream, service).with_upgrades().await;
            });
        }
    });
    port
}

async fn start() -> (StandIn, Client) {
    let server = StandIn::start().await.unwrap();
    let client = Client::admin(&server);
    let port = start_kubelet(&server).await;
    let node = json!({
        "metadata": {"name": "n1"},
        "status": {
            "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    });
    server.create("/api/v1/nodes", node).unwrap();
    let containers = json!([{"name": "a", "image": "x:1"}]);
    server
        .create(PODS, json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": containers}}))
        .unwrap();
    server.create(PODS, json!({"metadata": {"name": "free"}, "spec": {"containers": containers}})).unwrap();
    let two = json!([{"name": "a", "image": "x:1"}, {"name": "missing", "image": "x:1"}]);
    server.create(PODS, json!({"metadata": {"name": "two"}, "spec": {"nodeName": "n1", "containers": two}})).unwrap();
    (server, client)
}

#[tokio::test]
async fn logs_come_from_the_kubelet() {
    let (server, client) = start().await;
    let found = client.get_text(&format!("{PODS}/p/log?follow=true&tailLines=5&pretty=1")).await;
    assert_eq!(found, (200, "GET /containerLogs/default/p/a?follow=true&tailLines=5".to_owned()));
    assert_eq!(client.get_text(&format!("{PODS}/free/log")).await, (200, String::new()));
    let unnamed = client.get(&format!("{PODS}/two/log")).await.body;
    assert_eq!(unnamed["message"], "a container name must be specified for pod two, choose one of: [a missing]");
    assert_eq!(
        client.get(&format!("{PODS}/p/log?container=b")).await.body["message"],
        "container b is not valid for pod p"
    );
    let refused = client.get(&format!("{PODS}/two/log?container=missing")).await;
    assert_eq!((refused.code, &refused.body["message"]), (404, &json!("no such container")));
    let eve = Client::new(&server, Some(server.token(User::new("eve", &[]))));
    assert_eq!(eve.get(&format!("{PODS}/p/log")).await.code, 403);
    let gone = json!({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}});
    client.send("PATCH", "/api/v1/nodes/n1/status", "application/merge-patch+json", &gone).await;
    let refused = client.get(&format!("{PODS}/p/log")).await.body;
    assert!(
        refused["message"].as_str().unwrap().starts_with("error dialing backend: dial tcp 127.0.0.1:1:"),
        "{refused}"
    );
}

#[tokio::test]
async fn streams_are_upgraded_to_the_kubelet() {
    let (server, _) = start().await;
    for (request, expected) in [
        (
            "POST /api/v1/namespaces/default/pods/p/exec?stdin=true&stdout=true&stderr=false&command=sh&command=-c+a%26b",
            "/exec/default/p/a?input=1&output=1&command=sh&command=-c%20a%26b",
        ),
        ("GET /api/v1/namespaces/default/pods/p/attach?container=a&tty=true", "/attach/default/p/a?tty=1"),
        ("POST /api/v1/namespaces/default/pods/p/portforward", "/portForward/default/p"),
    ] {
        let mut stream = TcpStream::connect(server.plain_url().trim_start_matches("http://")).await.unwrap();
        let head = format!(
            "{request} HTTP/1.1\r\nhost: s\r\nauthorization: Bearer {}\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\
             content-length: 0\r\n\r\n",
            server.admin_token()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(expected.as_bytes()) {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "{}", String::from_utf8_lossy(&answer));
            assert!(
                b"HTTP/1.1 101".starts_with(&answer[..answer.len().min(12)]),
                "{}",
                String::from_utf8_lossy(&answer)
            );
        }
        let text = String::from_utf8_lossy(&answer).to_lowercase();
        assert!(text.starts_with("http/1.1 101") && text.contains("upgrade: spdy/3.1"), "{text}");
        stream.write_all(b"ping").await.unwrap();
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"ping");
    }
    let free = Client::admin(&server).post(&format!("{PODS}/free/exec"), Value::Null).await;
    assert_eq!((free.code, &free.body["message"]), (400, &json!("pod free does not have a host assigned")));
    server.grant(Grant::new("eve", "get", "pods/exec"));
    let eve = Client::new(&server, Some(server.token(User::new("eve", &[]))));
    let refused = eve.get(&format!("{PODS}/free/exec")).await;
    assert!(refused.code == 403 && refused.body["message"].as_str().unwrap().contains("cannot create"), "{refused:?}");
    server.grant(Grant::new("eve", "create", "pods/exec"));
    assert_eq!(eve.get(&format!("{PODS}/free/exec")).await.code, 400);
    server.stop().await;
}
