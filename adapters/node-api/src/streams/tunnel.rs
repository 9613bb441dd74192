//! The streaming server of a container runtime: forwards the upgrade of a client to it and copies bytes in both directions.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::io::InspectReader;

use super::runtime_connection::RuntimeConnection;
use super::upgrade::{STREAM_PROTOCOL, Upgrade, UpgradedConnection};
use super::{Activity, IDLE_LIMIT, LINGER, Refusal, Share};

/// How long the streaming server may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The most bytes of an error that is passed on.
const MAX_ERROR: usize = 64 << 10;
/// The headers of an upgrade. Credentials of the client stay in the agent.
const PASSED_ON: [HeaderName; 8] = [
    header::CONNECTION,
    header::UPGRADE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
    header::SEC_WEBSOCKET_PROTOCOL,
    header::SEC_WEBSOCKET_EXTENSIONS,
    header::SEC_WEBSOCKET_ACCEPT,
    STREAM_PROTOCOL,
];

/// Forwards the client's request to the streaming server, as it is.
pub(super) async fn serve(upgrade: Upgrade, url: &str, permit: Share) -> Result<Response, Refusal> {
    let parts = upgrade.parts();
    let (runtime, headers) = connect(url, parts.method.clone(), &parts.headers).await?;
    let client = upgrade.connection();
    tokio::spawn(async move {
        if let Ok(client) = client.await {
            exchange(TokioIo::new(client), runtime).await;
        }
        drop(permit);
    });
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = headers;
    Ok(answer)
}

/// Copies bytes in both directions until one side ends, or until neither had data for [`IDLE_LIMIT`].
pub(super) async fn exchange(client: impl UpgradedConnection, runtime: impl UpgradedConnection) {
    let ((from_client, mut to_client), (from_runtime, mut to_runtime)) = (split(client), split(runtime));
    let activity = Activity::new();
    let mut from_client = InspectReader::new(from_client, |_: &[u8]| activity.record_data());
    let mut from_runtime = InspectReader::new(from_runtime, |_: &[u8]| activity.record_data());
    tokio::select! {
        ended = copy(&mut from_client, &mut to_runtime) => match ended {
            Ok(_) => {
                let _ = to_runtime.shutdown().await;
                return;
            }
            Err(error) => tracing::debug!(%error, "the input of a stream of the node API ended early"),
        },
        _ = copy(&mut from_runtime, &mut to_client) => {}
        () = activity.idle(IDLE_LIMIT) => tracing::debug!("a stream of the node API was idle for too long"),
    }
    // If a connection is closed while it has unread data, the client's system discards what was written to it last.
    let closed = async {
        let _ = to_client.shutdown().await;
        let mut rest = vec![0; 4096];
        while matches!(from_client.read(&mut rest).await, Ok(1..)) {}
    };
    let _ = timeout(LINGER, closed).await;
}

/// Requests an upgrade from the streaming server. Returns the connection and the headers of the answer.
pub(super) async fn connect(
    url: &str,
    method: Method,
    headers: &HeaderMap,
) -> Result<(RuntimeConnection<TokioIo<Upgraded>>, HeaderMap), Refusal> {
    let server = StreamingServer::parse(url).map_err(Refusal::Server)?;
    let answer = timeout(ANSWER_LIMIT, request(&server, method, headers)).await;
    let no_answer = || Refusal::Server(format!("the runtime's streaming server {} does not answer", server.address));
    let mut answer = answer.map_err(|_| no_answer())?.map_err(|error| {
        Refusal::Server(format!("cannot use the runtime's streaming server {}: {error}", server.address))
    })?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(Refusal::Answered(pass_on(answer).await.into()));
    }
    let headers = passed_on(answer.headers());
    match hyper::upgrade::on(&mut answer).await {
        Ok(connection) => Ok((RuntimeConnection::new(TokioIo::new(connection)), headers)),
        Err(error) => Err(Refusal::Server(format!("the runtime's streaming server did not upgrade: {error}"))),
    }
}

async fn request(server: &StreamingServer, method: Method, headers: &HeaderMap) -> io::Result<hyper::Response<Body>> {
    let stream = TcpStream::connect(server.address).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // If the connection fails, the request below reports the error.
    tokio::spawn(connection.with_upgrades());
    let mut request = Request::new(Body::empty());
    *request.method_mut() = method;
    *request.uri_mut() = server.path.parse().map_err(io::Error::other)?;
    *request.headers_mut() = passed_on(headers);
    let host = server.address.to_string().parse().map_err(io::Error::other)?;
    request.headers_mut().insert(header::HOST, host);
    sender.send_request(request).await.map(|answer| answer.map(Body::new)).map_err(io::Error::other)
}

fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut passed = HeaderMap::new();
    for name in PASSED_ON {
        for value in headers.get_all(&name) {
            passed.append(&name, value.clone());
        }
    }
    passed
}

/// The answer to a request that the streaming server refused.
async fn pass_on(answer: hyper::Response<Body>) -> Response {
    let (parts, body) = answer.into_parts();
    let body = timeout(ANSWER_LIMIT, to_bytes(body, MAX_ERROR)).await;
    let body = match body {
        Ok(Ok(body)) => body,
        _ => format!("the runtime's streaming server answered {} without a readable text", parts.status).into(),
    };
    // A redirect or a success without an upgrade means nothing to the client.
    let is_error = parts.status.is_client_error() || parts.status.is_server_error();
    let code = if is_error { parts.status } else { StatusCode::BAD_GATEWAY };
    (code, body).into_response()
}

/// The streaming server of a runtime.
#[derive(Debug, PartialEq, Eq)]
struct StreamingServer {
    address: SocketAddr,
    /// Path and query.
    path: String,
}

impl StreamingServer {
    /// Parses the URL of a session. Only an address of this machine is accepted: whoever knows the URL can use the session,
    /// and a request to another machine would send the client's input to that machine.
    fn parse(url: &str) -> Result<Self, String> {
        let refused = |why: &str| format!("the runtime's streaming server cannot be used: {why}");
        let uri: Uri = url.parse().map_err(|_| refused("its URL is not valid"))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(refused("it uses TLS: turn off `enable_tls_streaming` in the runtime")),
            _ => return Err(refused("its URL is not an http URL")),
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let address: IpAddr = match host {
            "localhost" => IpAddr::from([127, 0, 0, 1]),
            host => host.parse().map_err(|_| refused(&format!("its host {host} is no IP address")))?,
        };
        if !is_of_this_machine(address) {
            return Err(refused(&format!("its address {address} is not one of this machine")));
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Ok(StreamingServer { address: SocketAddr::new(address, uri.port_u16().unwrap_or(80)), path })
    }
}

/// Whether an interface of this machine has the address. That a socket can be bound to an address does not prove it: with
/// `net.ipv4.ip_nonlocal_bind`, which failover and proxy set-ups use, the kernel binds sockets to any address.
fn is_of_this_machine(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let address_of = |interface: InterfaceAddress| {
        let own = interface.address?;
        let v4 = own.as_sockaddr_in().map(|own| IpAddr::from(own.ip()));
        v4.or_else(|| own.as_sockaddr_in6().map(|own| IpAddr::from(own.ip())))
    };
    // If the kernel does not list the addresses, only loopback addresses are known.
    address.is_loopback() || getifaddrs().is_ok_and(|mut all| all.any(|one| address_of(one) == Some(address)))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_streaming_servers_of_this_machine_are_used() {
        let parsed = StreamingServer::parse("http://127.0.0.1:41234/exec/token?x=1").unwrap();
        assert_eq!((parsed.address.to_string(), parsed.path), ("127.0.0.1:41234".into(), "/exec/token?x=1".into()));
        assert!(StreamingServer::parse("http://[::1]:1/exec").is_ok());
        assert!(StreamingServer::parse("http://localhost/exec").is_ok());
        assert!(StreamingServer::parse("http://[::ffff:127.0.0.1]/exec").is_ok());
        for (url, why) in [
            ("http://192.0.2.1:80/exec", "not one of this machine"),
            ("http://0.0.0.0:80/exec", "not one of this machine"),
            // The kernel binds a socket to this address, as it binds one to every address with `ip_nonlocal_bind`.
            ("http://224.0.0.1:80/exec", "not one of this machine"),
            ("https://127.0.0.1:1/exec", "TLS"),
            ("http://evil.example/exec", "no IP address"),
            ("//127.0.0.1/exec", "not an http URL"),
            ("unix:///run/x", "not"),
            ("", "not"),
        ] {
            let error = StreamingServer::parse(url).unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
    }

    #[test]
    fn credentials_of_the_client_are_not_passed_on() {
        let headers = HeaderMap::from_iter([
            (header::AUTHORIZATION, HeaderValue::from_static("Bearer secret")),
            (header::COOKIE, HeaderValue::from_static("secret")),
            (header::UPGRADE, HeaderValue::from_static("SPDY/3.1")),
            (STREAM_PROTOCOL, HeaderValue::from_static("v4.channel.k8s.io")),
            (STREAM_PROTOCOL, HeaderValue::from_static("v3.channel.k8s.io")),
        ]);
        let passed = passed_on(&headers);
        assert_eq!(passed.len(), 3);
        assert!(!passed.values().any(|value| value.as_bytes().ends_with(b"secret")));
    }
}
