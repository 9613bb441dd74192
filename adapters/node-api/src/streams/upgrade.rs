//! The upgrade that a client requests, and the protocols that it offers.

use axum::body::Body;
use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::{Refusal, Stream};
use crate::access::WEBSOCKET_TOKEN;
use podwright_model::texts::streams::no_common_protocol;

/// The header with the protocols that a client offers over SPDY, and with the one that the server chose.
pub(super) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// The header with the protocols of the server, in the answer to a client that offers none of them.
const ACCEPTED_PROTOCOLS: HeaderName = HeaderName::from_static("x-accepted-stream-protocol-versions");
/// The `Upgrade` header of SPDY.
pub(super) const SPDY: HeaderValue = HeaderValue::from_static("SPDY/3.1");

/// The protocol of commands.
pub(super) const V4: &str = "v4.channel.k8s.io";
/// The protocol of commands with a message that closes a channel. Over SPDY it does not differ from version 4.
pub(super) const V5: &str = "v5.channel.k8s.io";
/// Version 4 in text messages, for browsers.
pub(super) const V4_BASE64: &str = "v4.base64.channel.k8s.io";
/// The first protocol of commands over WebSocket: the error is text, and there is no exit code.
pub(super) const V1: &str = "channel.k8s.io";
/// The first protocol in text messages.
pub(super) const V1_BASE64: &str = "base64.channel.k8s.io";
/// The protocol of forwarded ports over SPDY.
pub(super) const PORT_FORWARD: &str = "portforward.k8s.io";
/// The protocol of forwarded ports over SPDY, in the messages of a WebSocket connection.
pub(super) const SPDY_IN_WEBSOCKET: &str = "SPDY/3.1+portforward.k8s.io";

/// The most bytes in a message of a client. Clients that copy a file may send it in one message.
const MAX_MESSAGE: usize = 4 << 20;

/// The two protocols of upgraded connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpgradeKind {
    Spdy,
    WebSocket,
}

/// A request for an upgrade.
pub(super) struct Upgrade {
    pub(super) kind: UpgradeKind,
    parts: Parts,
    connection: OnUpgrade,
}

impl Upgrade {
    /// The upgrade that the headers of a request name. It does not have the bearer token that a browser sends among its protocols.
    pub(super) fn of(mut request: Request) -> Result<Self, Refusal> {
        let kind = kind(request.headers()).ok_or(Refusal::UpgradeRequired)?;
        let connection = hyper::upgrade::on(&mut request);
        let mut parts = request.into_parts().0;
        remove_token(&mut parts.headers);
        Ok(Upgrade { kind, connection, parts })
    }

    /// The method and the headers of the request.
    pub(super) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// Whether the client offers a protocol.
    pub(super) fn offers(&self, protocol: &str) -> bool {
        offered(self.kind, &self.parts.headers).contains(&protocol)
    }

    /// Whether the client speaks a WebSocket protocol that streaming servers of runtimes do not speak, so that the agent serves it.
    pub(super) fn is_translated(&self, stream: &Stream) -> bool {
        let protocol = match stream {
            Stream::Exec { .. } | Stream::Attach { .. } => V5,
            Stream::PortForward { .. } => SPDY_IN_WEBSOCKET,
        };
        self.kind == UpgradeKind::WebSocket && self.offers(protocol)
    }

    /// The first of the server's protocols that the client offers. A client that offers none gets none.
    pub(super) fn choose(&self, server: &[&'static str]) -> Result<Option<&'static str>, Refusal> {
        choose(&offered(self.kind, &self.parts.headers), server)
    }

    /// The client's connection. The answer to the request must be an upgrade.
    pub(super) fn connection(self) -> OnUpgrade {
        self.connection
    }

    /// Accepts SPDY, and runs a session over the connection.
    pub(super) fn accept_spdy<F>(
        self,
        protocol: Option<&'static str>,
        session: impl FnOnce(TokioIo<hyper::upgrade::Upgraded>) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = ()> + Send,
    {
        tokio::spawn(async move {
            if let Ok(connection) = self.connection.await {
                session(TokioIo::new(connection)).await;
            }
        });
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = answer.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, SPDY);
        if let Some(protocol) = protocol {
            headers.insert(STREAM_PROTOCOL, HeaderValue::from_static(protocol));
        }
        answer
    }

    /// Accepts WebSocket, and runs a session over the connection.
    pub(super) async fn accept_websocket<F>(
        mut self,
        protocol: Option<&'static str>,
        session: impl FnOnce(WebSocket) -> F + Send + 'static,
    ) -> Result<Response, Refusal>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.parts.extensions.insert(self.connection);
        let upgrade = WebSocketUpgrade::from_request_parts(&mut self.parts, &()).await;
        let mut upgrade = upgrade.map_err(|refused| Refusal::Answered(refused.into_response().into()))?;
        if let Some(protocol) = protocol {
            upgrade.set_selected_protocol(HeaderValue::from_static(protocol));
        }
        Ok(upgrade.max_message_size(MAX_MESSAGE).max_frame_size(MAX_MESSAGE).on_upgrade(session))
    }
}

/// An upgraded connection to a client or to a streaming server.
pub(super) trait UpgradedConnection: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> UpgradedConnection for T {}

fn kind(headers: &HeaderMap) -> Option<UpgradeKind> {
    let has = |name, word: &str| words(headers, &name).any(|own| own.eq_ignore_ascii_case(word));
    if !has(header::CONNECTION, "upgrade") {
        return None;
    }
    if has(header::UPGRADE, "websocket") {
        return Some(UpgradeKind::WebSocket);
    }
    has(header::UPGRADE, "SPDY/3.1").then_some(UpgradeKind::Spdy)
}

/// Removes the bearer token from the protocols of a WebSocket, as upstream's authenticator does. The protocols are sent to the streaming
/// server of the runtime, and the answer to a client without a common protocol names them.
fn remove_token(headers: &mut HeaderMap) {
    let is_kept = |protocol: &&str| !protocol.starts_with(WEBSOCKET_TOKEN);
    let kept: Vec<&str> = words(headers, &header::SEC_WEBSOCKET_PROTOCOL).filter(is_kept).collect();
    let kept = HeaderValue::from_str(&kept.join(", ")).ok().filter(|kept| !kept.is_empty());
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    if let Some(kept) = kept {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, kept);
    }
}

fn offered(kind: UpgradeKind, headers: &HeaderMap) -> Vec<&str> {
    let name = match kind {
        UpgradeKind::Spdy => STREAM_PROTOCOL,
        UpgradeKind::WebSocket => header::SEC_WEBSOCKET_PROTOCOL,
    };
    words(headers, &name).collect()
}

/// The words of all headers with a name, which are separated by commas.
fn words<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|word| !word.is_empty())
}

fn choose(client: &[&str], server: &[&'static str]) -> Result<Option<&'static str>, Refusal> {
    let chosen = server.iter().find(|protocol| client.contains(*protocol)).copied();
    if chosen.is_some() || client.is_empty() {
        return Ok(chosen);
    }
    let mut answer = (StatusCode::FORBIDDEN, no_common_protocol(client, server)).into_response();
    for protocol in server {
        answer.headers_mut().append(ACCEPTED_PROTOCOLS, HeaderValue::from_static(protocol));
    }
    Err(Refusal::Answered(answer.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn an_upgrade_needs_both_headers_in_any_spelling() {
        for (connection, upgrade, expected) in [
            ("Upgrade", "SPDY/3.1", Some(UpgradeKind::Spdy)),
            ("keep-alive, upgrade", "WebSocket", Some(UpgradeKind::WebSocket)),
            ("Upgrade", "h2c", None),
            ("keep-alive", "websocket", None),
        ] {
            assert_eq!(kind(&headers(&[("connection", connection), ("upgrade", upgrade)])), expected, "{upgrade}");
        }
    }

    #[test]
    fn the_server_prefers_its_first_protocol_that_the_client_offers() {
        let spdy = HeaderMap::from_iter([
            (STREAM_PROTOCOL, HeaderValue::from_static("v4.channel.k8s.io, v3.channel.k8s.io")),
            (STREAM_PROTOCOL, HeaderValue::from_static("channel.k8s.io")),
        ]);
        let offered = offered(UpgradeKind::Spdy, &spdy);
        assert_eq!(choose(&offered, &[V5, V4]).unwrap(), Some(V4));
        assert_eq!(choose(&[], &[V5, V4]).unwrap(), None);
        let Err(Refusal::Answered(answer)) = choose(&["v3.channel.k8s.io"], &[V5, V4]) else { panic!("accepted") };
        assert_eq!(answer.status(), StatusCode::FORBIDDEN);
        assert_eq!(answer.headers().get_all(ACCEPTED_PROTOCOLS).iter().count(), 2);
    }

    #[test]
    fn a_token_among_the_protocols_of_a_websocket_is_removed() {
        let token = format!("{WEBSOCKET_TOKEN}aHVudGVyMg");
        for (protocols, kept) in [
            (vec![format!("{V4}, {token}"), V5.to_owned()], Some(format!("{V4}, {V5}"))),
            (vec![format!("{token},{V1}")], Some(V1.to_owned())),
            (vec![token.clone()], None),
            (vec![], None),
        ] {
            let mut request = Request::builder().header("connection", "upgrade").header("upgrade", "websocket");
            for protocol in &protocols {
                request = request.header(header::SEC_WEBSOCKET_PROTOCOL, protocol);
            }
            let upgrade = Upgrade::of(request.body(Body::empty()).unwrap()).unwrap();
            let found = upgrade.parts().headers.get(header::SEC_WEBSOCKET_PROTOCOL);
            assert_eq!(found.map(|value| value.to_str().unwrap()), kept.as_deref(), "{protocols:?}");
        }
    }
}
