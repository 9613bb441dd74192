//! Clients of streams: WebSocket and SPDY.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt, StreamExt};
use podwright::agent::spdy::{Decoder, Encoder, Frame, Headers};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{self, Message, client::IntoClientRequest};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::support::processes::PATIENCE;

/// The address in a URL.
fn address(url: &str) -> &str {
    url.strip_prefix("http://").unwrap().split('/').next().unwrap()
}

/// A GET request without an upgrade: the status code and the body.
pub(crate) async fn get(url: &str) -> (u16, String) {
    let path = url.split_once(address(url)).unwrap().1;
    let mut connection = TcpStream::connect(address(url)).await.unwrap();
    connection.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, connection.read_to_string(&mut answer)).await.unwrap().unwrap();
    parse_answer(&answer)
}

fn parse_answer(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A WebSocket client.
pub(crate) struct WebSocket {
    socket: WebSocketStream<TcpStream>,
    base64: bool,
    channels: BTreeMap<u8, Vec<u8>>,
}

/// The output and the status of a command.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) error: Vec<u8>,
}

impl Output {
    pub(crate) fn status(&self) -> Value {
        serde_json::from_slice(&self.error).unwrap_or_else(|_| panic!("no status: {self:?}"))
    }
}

impl WebSocket {
    /// Opens a connection. An empty protocol is left out.
    pub(crate) async fn open(url: &str, protocol: &str) -> Self {
        let socket = Self::try_open(url, protocol).await.unwrap();
        WebSocket { socket, base64: protocol.contains("base64"), channels: BTreeMap::new() }
    }

    /// The status code and the text of the refusal.
    pub(crate) async fn refused(url: &str, protocol: &str) -> (u16, String) {
        match Self::try_open(url, protocol).await {
            Err(tungstenite::Error::Http(answer)) => {
                let body = answer.body().clone().unwrap_or_default();
                (answer.status().as_u16(), String::from_utf8(body).unwrap())
            }
            other => panic!("{other:?}"),
        }
    }

    async fn try_open(url: &str, protocol: &str) -> Result<WebSocketStream<TcpStream>, tungstenite::Error> {
        let mut request = url.replacen("http", "ws", 1).into_client_request().unwrap();
        if !protocol.is_empty() {
            request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        }
        let connection = TcpStream::connect(address(url)).await.unwrap();
        let (socket, answer) = timeout(PATIENCE, client_async(request, connection)).await.unwrap()?;
        let chosen = answer.headers().get("sec-websocket-protocol").map(|chosen| chosen.to_str().unwrap());
        assert_eq!(chosen.unwrap_or_default(), protocol);
        Ok(socket)
    }

    pub(crate) async fn send(&mut self, channel: u8, bytes: &[u8]) {
        let message = if self.base64 {
            Message::Text(format!("{channel}{}", STANDARD.encode(bytes)).into())
        } else {
            Message::Binary([&[channel], bytes].concat().into())
        };
        self.socket.send(message).await.unwrap();
    }

    /// Sends a message, and waits until the server closes the connection without a status.
    pub(crate) async fn send_until_closed(&mut self, channel: u8, bytes: &[u8]) {
        // The server may close the connection before it has read the whole message.
        let _ = self.socket.send(Message::Binary([&[channel], bytes].concat().into())).await;
        loop {
            match timeout(PATIENCE, self.socket.next()).await.expect("the server keeps the connection open") {
                Some(Ok(Message::Binary(bytes))) => assert_ne!((bytes[0], bytes.len() > 1), (3, true), "{bytes:?}"),
                Some(Ok(Message::Close(_))) | None | Some(Err(_)) => return,
                Some(Ok(_)) => {}
            }
        }
    }

    /// Closes a channel, in version 5.
    pub(crate) async fn close(&mut self, channel: u8) {
        self.socket.send(Message::Binary(vec![255, channel].into())).await.unwrap();
    }

    /// Reads a message. False if the server has closed the connection.
    async fn read(&mut self) -> bool {
        let message = match timeout(PATIENCE, self.socket.next()).await.expect("the server sends nothing") {
            Some(Ok(message)) => message,
            None => return false,
            Some(Err(error)) => panic!("{error}: {:?}", self.channels),
        };
        let (channel, bytes) = match &message {
            Message::Binary(bytes) => (bytes[0], bytes[1..].to_vec()),
            Message::Text(text) => (text.as_bytes()[0] - b'0', STANDARD.decode(&text[1..]).unwrap()),
            _ => return true,
        };
        self.channels.entry(channel).or_default().extend(bytes);
        true
    }

    fn channel(&self, channel: u8) -> Vec<u8> {
        self.channels.get(&channel).cloned().unwrap_or_default()
    }

    /// Waits for a text on the standard output.
    pub(crate) async fn until(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.channel(1)).contains(text) {
            assert!(self.read().await, "closed before {text:?}: {:?}", self.channels);
        }
    }

    /// Waits until a channel has received exactly these bytes.
    pub(crate) async fn until_channel(&mut self, channel: u8, bytes: &[u8]) {
        while self.channel(channel) != bytes {
            assert!(self.read().await, "closed before {bytes:?}: {:?}", self.channels);
        }
    }

    /// Reads until the server closes the connection.
    pub(crate) async fn finish(mut self) -> Output {
        while self.read().await {}
        Output { stdout: self.channel(1), stderr: self.channel(2), error: self.channel(3) }
    }
}

/// A SPDY client.
pub(crate) struct Spdy {
    connection: TcpStream,
    encoder: Encoder,
    decoder: Decoder,
    received: BTreeMap<u32, Vec<u8>>,
    finished: Vec<u32>,
    reset: Vec<u32>,
}

impl Spdy {
    pub(crate) async fn open(url: &str, protocol: &str) -> Self {
        let (connection, head, rest) = Self::upgrade(url, protocol).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.to_ascii_lowercase().contains(&format!("x-stream-protocol-version: {protocol}")), "{head}");
        let mut decoder = Decoder::default();
        decoder.feed(&rest);
        let (received, finished, reset) = (BTreeMap::new(), vec![], vec![]);
        Spdy { connection, encoder: Encoder::default(), decoder, received, finished, reset }
    }

    /// Opens a connection and creates the streams of a command, with the numbers 1, 3, 5 and so on.
    pub(crate) async fn command(url: &str, streams: &[&str]) -> Self {
        let mut client = Self::open(url, "v4.channel.k8s.io").await;
        for (stream, kind) in (1..).step_by(2).zip(streams) {
            client.create(stream, &[("streamtype", kind)]).await;
        }
        client
    }

    /// The status code and the headers of the refusal.
    pub(crate) async fn refused(url: &str, protocol: &str) -> (u16, String) {
        let (_, head, _) = Self::upgrade(url, protocol).await;
        parse_answer(&head)
    }

    async fn upgrade(url: &str, protocol: &str) -> (TcpStream, String, Vec<u8>) {
        let mut connection = TcpStream::connect(address(url)).await.unwrap();
        let path = url.split_once(address(url)).unwrap().1;
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: node\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             X-Stream-Protocol-Version: {protocol}\r\nContent-Length: 0\r\n\r\n"
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let mut buffer = [0; 1024];
        let end = loop {
            if let Some(at) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            let count = timeout(PATIENCE, connection.read(&mut buffer)).await.unwrap().unwrap();
            assert_ne!(count, 0, "no answer");
            answer.extend_from_slice(&buffer[..count]);
        };
        let rest = answer.split_off(end);
        (connection, String::from_utf8(answer).unwrap(), rest)
    }

    /// Creates a stream.
    pub(crate) async fn create(&mut self, stream: u32, headers: &[(&str, &str)]) {
        let headers = Headers(headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect());
        self.write(&Frame::SynStream { stream, headers, fin: false }).await;
    }

    pub(crate) async fn send(&mut self, stream: u32, bytes: &[u8], fin: bool) {
        self.write(&Frame::Data { stream, bytes: bytes.to_vec(), fin }).await;
    }

    async fn write(&mut self, frame: &Frame) {
        let mut bytes = Vec::new();
        self.encoder.append(frame, &mut bytes);
        // The server may send while it does not read.
        let mut rest = &bytes[..];
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !rest.is_empty() {
            assert!(tokio::time::Instant::now() < deadline, "the server does not read");
            match timeout(Duration::from_millis(50), self.connection.write(rest)).await {
                Ok(count) => rest = &rest[count.unwrap()..],
                Err(_) => drop(timeout(Duration::from_millis(50), self.read()).await),
            }
        }
    }

    pub(crate) async fn send_raw(&mut self, bytes: &[u8]) {
        self.connection.write_all(bytes).await.unwrap();
    }

    /// The text that a stream has received.
    pub(crate) fn text(&self, stream: u32) -> String {
        String::from_utf8(self.received.get(&stream).cloned().unwrap_or_default()).unwrap()
    }

    /// Reads what has arrived. False if the server has closed the connection.
    async fn read(&mut self) -> bool {
        let mut buffer = vec![0; 65536];
        let Ok(count @ 1..) = self.connection.read(&mut buffer).await else { return false };
        self.decoder.feed(&buffer[..count]);
        while let Some(frame) = self.decoder.next_frame().unwrap() {
            match frame {
                Frame::Data { stream, bytes, fin } => {
                    self.received.entry(stream).or_default().extend(bytes);
                    if fin {
                        self.finished.push(stream);
                    }
                }
                Frame::Reset { stream, .. } => self.reset.push(stream),
                _ => {}
            }
        }
        true
    }

    async fn until_condition(&mut self, condition: impl Fn(&Self) -> bool) {
        while !condition(self) {
            assert!(
                timeout(PATIENCE, self.read()).await.expect("the server sends nothing"),
                "the server closed the connection"
            );
        }
    }

    /// Waits until a stream has received exactly this text.
    pub(crate) async fn until_text(&mut self, stream: u32, text: &str) {
        self.until_condition(|client| client.text(stream) == text).await;
    }

    pub(crate) async fn until_finished(&mut self, stream: u32) {
        self.until_condition(|client| client.finished.contains(&stream)).await;
    }

    pub(crate) async fn until_reset(&mut self, stream: u32) {
        self.until_condition(|client| client.reset.contains(&stream)).await;
    }

    pub(crate) async fn until_closed(&mut self) {
        while timeout(PATIENCE, self.read()).await.expect("the server does not close the connection") {}
    }
}
