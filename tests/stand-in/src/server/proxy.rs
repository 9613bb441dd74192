//! Requests that the server passes on to the node of a pod: logs, commands, attached streams and forwarded ports.
//!
//! The server passes an upgrade on as the client sent it, whether SPDY or WebSocket. A real server may translate WebSocket
//! into SPDY for the node.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring as provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use crate::access::User;
use crate::authority::Authority;
use crate::call::Call;
use crate::refusal::Refusal;
use crate::store::Store;

/// The paths below a pod that lead to its node.
pub(super) const PATHS: &[&str] = &["attach", "exec", "log", "portforward"];

/// The address of the kubelet for a request.
#[derive(Debug)]
pub(super) struct Target {
    address: String,
    path: String,
}

/// Finds the kubelet of a pod. `None` if the pod has no node and the request is one for logs, which are then empty.
///
/// # Errors
///
/// If the pod, its container or its node does not exist.
pub(super) fn target(store: &Store, call: &Call) -> Result<Option<Target>, Refusal> {
    let (namespace, name) = (call.namespace(), call.name());
    let pod = store.find("pods", namespace, name).ok_or_else(|| Refusal::not_found(call.resource, name))?;
    let container = match call.subresource() {
        "portforward" => String::new(),
        _ => container(&pod, name, call.query.get("container"))?,
    };
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    if node.is_empty() {
        return match call.subresource() {
            "log" => Ok(None),
            _ => Err(Refusal::bad_request(format!("pod {name} does not have a host assigned"))),
        };
    }
    let nodes = crate::schema::stored("nodes").expect("the table has nodes");
    let node = store.find("nodes", "", node).ok_or_else(|| Refusal::not_found(nodes, node))?;
    let path = match call.subresource() {
        "log" => format!("/containerLogs/{namespace}/{name}/{container}{}", options(call, LOG)),
        "portforward" => format!("/portForward/{namespace}/{name}{}", options(call, PORTS)),
        path => format!("/{path}/{namespace}/{name}/{container}{}", options(call, STREAMS)),
    };
    Ok(Some(Target { address: address(&node)?, path }))
}

/// Options of a request with their names at the kubelet.
type Options = &'static [(&'static str, &'static str)];

const LOG: Options = &[
    ("follow", "follow"),
    ("limitBytes", "limitBytes"),
    ("previous", "previous"),
    ("sinceSeconds", "sinceSeconds"),
    ("sinceTime", "sinceTime"),
    ("stream", "stream"),
    ("tailLines", "tailLines"),
    ("timestamps", "timestamps"),
];
const PORTS: Options = &[("ports", "port")];
const STREAMS: Options =
    &[("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty"), ("command", "command")];

fn options(call: &Call, options: Options) -> String {
    let mut text = String::new();
    for (name, value) in call.query.pairs() {
        let Some((_, kubelet)) = options.iter().find(|(own, _)| *own == name) else { continue };
        let is_flag = matches!(*kubelet, "input" | "output" | "error" | "tty");
        if is_flag && !matches!(value.as_str(), "true" | "1") {
            continue;
        }
        text.push(if text.is_empty() { '?' } else { '&' });
        text.push_str(kubelet);
        text.push('=');
        text.push_str(&if is_flag { "1".to_owned() } else { encode(value) });
    }
    text
}

fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            write!(encoded, "%{byte:02X}").expect("a string takes any text");
        }
    }
    encoded
}

/// The container of a request; the only one if the request names none.
fn container(pod: &Value, name: &str, requested: &str) -> Result<String, Refusal> {
    let names = |list: &str| -> Vec<&str> {
        pod["spec"][list].as_array().into_iter().flatten().filter_map(|container| container["name"].as_str()).collect()
    };
    let (own, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    if requested.is_empty() {
        if let [only] = own.as_slice() {
            return Ok((*only).to_owned());
        }
        let mut message =
            format!("a container name must be specified for pod {name}, choose one of: [{}]", own.join(" "));
        if !init.is_empty() {
            write!(message, " or one of the init containers: [{}]", init.join(" ")).expect("a string takes any text");
        }
        return Err(Refusal::bad_request(message));
    }
    if own.iter().chain(&init).chain(&ephemeral).any(|found| *found == requested) {
        Ok(requested.to_owned())
    } else {
        Err(Refusal::bad_request(format!("container {requested} is not valid for pod {name}")))
    }
}

/// The address and the port of the kubelet of a node.
fn address(node: &Value) -> Result<String, Refusal> {
    let status = &node["status"];
    let find = |kind: &str| {
        let mut addresses = status["addresses"].as_array().into_iter().flatten();
        addresses.find(|address| address["type"] == kind).and_then(|address| address["address"].as_str())
    };
    let host = ["InternalIP", "ExternalIP", "Hostname"].into_iter().find_map(find).ok_or_else(|| {
        let name = node["metadata"]["name"].as_str().unwrap_or_default();
        let message = format!("no preferred addresses found; known addresses of node {name}: {}", status["addresses"]);
        Refusal::plain(500, "InternalError", message)
    })?;
    let port = status["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().filter(|port| *port != 0).unwrap_or(10250);
    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

/// The client of kubelets. Its certificate has the name and the group that kubeadm gives it.
pub(super) struct Kubelets {
    connector: TlsConnector,
}

impl Kubelets {
    pub(super) fn new(authority: &Authority, now: jiff::Timestamp) -> Self {
        let user = User::new("kube-apiserver-kubelet-client", &["system:masters"]);
        let own = authority.client_certificate(&user, now);
        let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes()).expect("the authority writes PEM");
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("the authority writes PEM");
        let mut config = ClientConfig::builder_with_provider(provider::default_provider().into())
            .with_safe_default_protocol_versions()
            .expect("ring has the cipher suites of the default versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer))
            .with_client_auth_cert(vec![certificate], key)
            .expect("the key is that of the certificate");
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self { connector: TlsConnector::from(Arc::new(config)) }
    }

    /// Passes a request on. An upgraded connection lives until one side closes it or `cut` is cancelled.
    ///
    /// # Errors
    ///
    /// If the kubelet cannot be reached, or does not speak HTTP.
    pub(super) async fn pass_on(
        &self,
        target: &Target,
        method: &str,
        headers: &HeaderMap,
        upgrade: Option<OnUpgrade>,
        cut: CancellationToken,
    ) -> Result<Response, Refusal> {
        let failed = |error: io::Error| {
            let message = format!("error dialing backend: dial tcp {}: {error}", target.address);
            Refusal::plain(500, "InternalError", message)
        };
        let mut response = self.send(target, method, headers, &cut).await.map_err(failed)?;
        let status = response.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            let kubelet = hyper::upgrade::on(&mut response);
            if let Some(client) = upgrade {
                tokio::spawn(async move {
                    tokio::select! {
                        // Either side may close the stream.
                        _ = tunnel(client, kubelet) => {}
                        () = cut.cancelled() => {}
                    }
                });
            }
        } else if !status.is_success() {
            // The kubelet answers with plain text; the clients of the server expect a status.
            let body = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let text = String::from_utf8_lossy(&body).trim().to_owned();
            return Err(Refusal::plain(status.as_u16(), reason(status), text));
        }
        let (parts, body) = response.into_parts();
        Ok((parts.status, parts.headers, Body::new(body)).into_response())
    }

    async fn send(
        &self,
        target: &Target,
        method: &str,
        headers: &HeaderMap,
        cut: &CancellationToken,
    ) -> io::Result<hyper::Response<hyper::body::Incoming>> {
        let stream = TcpStream::connect(&target.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("kubelet").expect("a constant name");
        let stream = self.connector.connect(name, stream).await?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(io::Error::other)?;
        let cut = cut.clone();
        tokio::spawn(async move {
            tokio::select! {
                // If the connection breaks, the request below reports the error.
                _ = connection.with_upgrades() => {}
                () = cut.cancelled() => {}
            }
        });
        let mut request = hyper::Request::builder().method(method).uri(&target.path);
        for (name, value) in headers {
            if !matches!(
                name,
                &header::AUTHORIZATION | &header::HOST | &header::CONTENT_LENGTH | &header::TRANSFER_ENCODING
            ) {
                request = request.header(name, value);
            }
        }
        let request = request.header(header::HOST, &target.address).body(Body::empty()).map_err(io::Error::other)?;
        sender.send_request(request).await.map_err(io::Error::other)
    }
}

fn reason(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        _ => "InternalError",
    }
}

async fn tunnel(client: OnUpgrade, kubelet: OnUpgrade) -> io::Result<()> {
    let (client, kubelet) = tokio::try_join!(client, kubelet).map_err(io::Error::other)?;
    tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(kubelet)).await.map(drop)
}

/// Accepts the certificate of any kubelet, as kube-apiserver does without `--kubelet-certificate-authority`.
#[derive(Debug)]
struct AnyServer;

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
