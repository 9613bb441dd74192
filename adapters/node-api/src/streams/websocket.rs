//! Channels in the messages of a WebSocket connection: the first byte or character of a message is the number of its channel.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::upgrade::{V1, V4, V4_BASE64, V5};
use super::{Activity, Frame, LINGER};
use podwright_host::streaming::CHUNKS;

/// The channel on which a client of version 5 sends the number of a channel that it closes.
const CLOSE: u8 = 255;
/// How many messages wait to be written.
const QUEUE: usize = 8;
/// How long a channel may take no message before the agent sends a ping. The ping fails if the client has gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// How many bytes of a SPDY connection are in one message.
const BLOCK: usize = 32 << 10;

/// The properties in which the protocols differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageFormat {
    /// Messages are text: a digit and base64.
    base64: bool,
    /// The error channel carries a status in JSON. Otherwise it carries the text of an error.
    pub(super) has_status: bool,
    /// The client can close a channel.
    closes: bool,
}

impl MessageFormat {
    /// The format of a protocol. A client that offers no protocol uses the first one.
    pub(super) fn of(protocol: Option<&str>) -> Self {
        let protocol = protocol.unwrap_or(V1);
        MessageFormat {
            base64: protocol.contains("base64"),
            has_status: [V5, V4, V4_BASE64].contains(&protocol),
            closes: protocol == V5,
        }
    }

    fn encode(self, channel: u8, bytes: &[u8]) -> Message {
        if self.base64 {
            return Message::Text(format!("{channel}{}", STANDARD.encode(bytes)).into());
        }
        Message::Binary([&[channel], bytes].concat().into())
    }

    /// The channel and the bytes of a message. `None` if the message has no valid channel or no valid base64.
    fn decode(self, message: &Message) -> Option<(u8, Vec<u8>)> {
        let (first, rest) = match message {
            Message::Binary(bytes) => bytes.split_first()?,
            Message::Text(text) => text.as_bytes().split_first()?,
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return None,
        };
        if self.base64 {
            return Some((first.checked_sub(b'0').filter(|channel| *channel < 10)?, STANDARD.decode(rest).ok()?));
        }
        Some((*first, rest.to_vec()))
    }
}

/// The channels that the client writes to.
#[derive(Default)]
pub(super) struct Inputs(HashMap<u8, mpsc::Sender<Vec<u8>>>);

impl Inputs {
    /// Adds a channel.
    pub(super) fn add(&mut self, channel: u8) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::channel(CHUNKS);
        self.0.insert(channel, sender);
        receiver
    }
}

/// The queue of frames to the client, and the future that copies messages. The future ends when the client has ended the connection,
/// or when all senders of the queue are dropped.
pub(super) fn channels(
    socket: WebSocket,
    format: MessageFormat,
    inputs: Inputs,
    activity: Arc<Activity>,
) -> (mpsc::Sender<Frame>, impl Future<Output = ()> + Send) {
    let (frames, queue) = mpsc::channel(QUEUE);
    let pings = frames.downgrade();
    let copied = async move {
        let (mut sink, mut stream) = socket.split();
        tokio::select! {
            () = read(&mut stream, format, inputs, pings, &activity) => return,
            written = write(&mut sink, format, queue, &activity) => {
                if written.is_err() {
                    return;
                }
            }
        }
        close(sink, stream).await;
    };
    (frames, copied)
}

/// Closes a connection after reading the rest of its data. Otherwise the client's system would discard the last data that was written
/// to it.
async fn close(mut sink: SplitSink<WebSocket, Message>, mut stream: SplitStream<WebSocket>) {
    let frame = CloseFrame { code: close_code::NORMAL, reason: "".into() };
    let closed = async {
        if sink.send(Message::Close(Some(frame))).await.is_ok() {
            while let Some(Ok(_)) = stream.next().await {}
        }
    };
    let _ = timeout(LINGER, closed).await;
}

async fn read(
    stream: &mut SplitStream<WebSocket>,
    format: MessageFormat,
    mut inputs: Inputs,
    frames: mpsc::WeakSender<Frame>,
    activity: &Activity,
) {
    loop {
        let message = match stream.next().await {
            Some(Ok(Message::Close(_))) | None => return,
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
            Some(Ok(message)) => message,
            Some(Err(error)) => {
                tracing::debug!(%error, "a stream of the node API ended early");
                return;
            }
        };
        activity.record_data();
        let Some((channel, bytes)) = format.decode(&message) else { continue };
        if format.closes && channel == CLOSE {
            if let Some(channel) = bytes.first() {
                inputs.0.remove(channel);
            }
        } else if !bytes.is_empty()
            && let Some(input) = inputs.0.get(&channel)
        {
            deliver(input, bytes, &frames).await;
        }
    }
}

/// Waits until the receiver of a channel takes the bytes.
async fn deliver(input: &mpsc::Sender<Vec<u8>>, bytes: Vec<u8>, frames: &mpsc::WeakSender<Frame>) {
    loop {
        tokio::select! {
            permit = input.reserve() => {
                if let Ok(permit) = permit {
                    permit.send(bytes);
                }
                return;
            }
            () = sleep(PING_INTERVAL) => {
                if let Some(frames) = frames.upgrade() {
                    let _ = frames.send(Frame::Ping(0)).await;
                }
            }
        }
    }
}

async fn write(
    sink: &mut SplitSink<WebSocket, Message>,
    format: MessageFormat,
    mut queue: mpsc::Receiver<Frame>,
    activity: &Activity,
) -> Result<(), axum::Error> {
    while let Some(frame) = queue.recv().await {
        match &frame {
            // The protocols have no message for the end of an output.
            Frame::Data { bytes, fin: true, .. } if bytes.is_empty() => {}
            Frame::Data { stream, bytes, .. } => {
                let Ok(channel) = u8::try_from(*stream) else { continue };
                sink.send(format.encode(channel, bytes)).await?;
                activity.record_data();
            }
            Frame::Ping(_) => sink.send(Message::Ping(Vec::new().into())).await?,
            _ => {}
        }
    }
    Ok(())
}

/// A connection whose bytes are the messages of a WebSocket connection, and the future that copies them.
pub(super) fn bytes(socket: WebSocket) -> (DuplexStream, impl Future<Output = ()> + Send) {
    let (near, far) = duplex(BLOCK);
    let copied = async move {
        let (mut sink, mut stream) = socket.split();
        let (mut read_half, mut write_half) = split(far);
        let received = async {
            while let Some(Ok(message)) = stream.next().await {
                let bytes = match &message {
                    Message::Binary(bytes) => &bytes[..],
                    Message::Text(text) => text.as_bytes(),
                    Message::Ping(_) | Message::Pong(_) => continue,
                    Message::Close(_) => break,
                };
                if write_half.write_all(bytes).await.is_err() {
                    break;
                }
            }
            // The other side of the connection reads the end.
            let _ = write_half.shutdown().await;
        };
        let sent = async {
            let mut buffer = vec![0; BLOCK];
            while let Ok(count @ 1..) = read_half.read(&mut buffer).await {
                if sink.send(Message::Binary(buffer[..count].to_vec().into())).await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::select! {
            () = received => return,
            whole = sent => {
                if !whole {
                    return;
                }
            }
        }
        close(sink, stream).await;
    };
    (near, copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_messages_carry_a_digit_and_base64() {
        let format = MessageFormat::of(Some(V4_BASE64));
        let message = format.encode(1, b"hi\xff");
        assert_eq!(message, Message::Text("1aGn/".into()));
        assert_eq!(format.decode(&message), Some((1, b"hi\xff".to_vec())));
        for bad in ["", "xaGk=", "0*"] {
            assert_eq!(format.decode(&Message::Text(bad.into())), None, "{bad}");
        }
    }

    #[test]
    fn binary_messages_carry_the_channel_in_their_first_byte() {
        let format = MessageFormat::of(Some(V5));
        assert_eq!(format.encode(2, b"hi"), Message::Binary(b"\x02hi".to_vec().into()));
        assert_eq!(format.decode(&Message::Binary(b"\xff\x00".to_vec().into())), Some((CLOSE, vec![0])));
        assert_eq!(format.decode(&Message::Binary(Vec::new().into())), None);
        assert!(!MessageFormat::of(None).has_status && MessageFormat::of(Some(V4)).has_status);
    }
}
