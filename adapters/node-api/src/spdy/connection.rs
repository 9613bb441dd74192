//! One connection: reads frames into the channels of its streams, and writes the frames of a queue.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{Decoder, Encoder, Frame, Headers};
use crate::streams::{Activity, LINGER, Writer};
use podwright_host::streaming::CHUNKS;

/// The most open streams of a connection. A forwarded connection needs two.
const MAX_STREAMS: usize = 512;
/// How many frames wait to be written.
const QUEUE: usize = 8;
/// How many bytes are read or written at once.
const BLOCK: usize = 64 << 10;
/// How long a stream may take no data before the agent sends a ping. A peer that has gone does not answer, which ends the
/// connection. Without the ping, the agent would not notice, because it does not read meanwhile.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// The reasons of resets.
const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 3;
/// The reason of a reset by a session that does not use the stream.
pub(crate) const CANCEL: u32 = 5;

/// The side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Opens streams with odd numbers.
    Client,
    /// Accepts streams.
    Server,
}

/// A connection whose frames a future copies. The connection ends when this value and all its [`Writer`]s are dropped.
pub(crate) struct Connection {
    /// The streams that the peer opens. If the receiver is dropped, new streams are refused.
    pub(crate) accepted: mpsc::Receiver<SpdyStream>,
    frames: mpsc::Sender<Frame>,
    table: Arc<StreamTable>,
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct SpdyStream {
    pub(crate) id: u32,
    pub(crate) headers: Headers,
    /// What the peer sends. Ends when the peer has finished or reset the stream. If the receiver is dropped, the data is discarded.
    pub(crate) data: mpsc::Receiver<Vec<u8>>,
    pub(crate) writer: Writer,
    /// Cancelled when the peer resets the stream.
    pub(crate) reset: CancellationToken,
}

/// The open streams by number.
#[derive(Default)]
struct StreamTable(Mutex<HashMap<u32, OpenStream>>);

/// A stream that the peer has not finished.
#[derive(Clone)]
struct OpenStream {
    data: mpsc::Sender<Vec<u8>>,
    reset: CancellationToken,
}

impl StreamTable {
    /// Adds a stream. `None` if too many streams are open.
    fn add(&self, stream: u32) -> Option<(mpsc::Receiver<Vec<u8>>, CancellationToken)> {
        let mut streams = self.0.lock();
        if streams.len() >= MAX_STREAMS {
            // The peer may never finish a stream that the agent has closed.
            streams.retain(|_, entry| !entry.data.is_closed());
        }
        if streams.len() >= MAX_STREAMS {
            return None;
        }
        let ((data, receiver), reset) = (mpsc::channel(CHUNKS), CancellationToken::new());
        streams.insert(stream, OpenStream { data, reset: reset.clone() });
        Some((receiver, reset))
    }

    fn get(&self, stream: u32) -> Option<OpenStream> {
        self.0.lock().get(&stream).cloned()
    }

    fn remove(&self, stream: u32) -> Option<OpenStream> {
        self.0.lock().remove(&stream)
    }

    /// Closes all streams to their receivers.
    fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Connection {
    /// A connection over `bytes`, and the future that copies its frames. The future ends when the peer has ended the connection or
    /// has broken the protocol, or when the agent has ended it.
    pub(crate) fn new(
        bytes: impl AsyncRead + AsyncWrite + Send,
        side: Side,
        activity: Arc<Activity>,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (frames, queue) = mpsc::channel(QUEUE);
        let (accept, accepted) = mpsc::channel(1);
        let table = Arc::new(StreamTable::default());
        let reader = Reader {
            decoder: Decoder::default(),
            side,
            last: 0,
            pings: if side == Side::Client { 1 } else { 2 },
            frames: frames.downgrade(),
            accept,
            table: table.clone(),
        };
        (Connection { accepted, frames, table }, run(bytes, reader, queue, activity))
    }

    /// Opens the stream with this number.
    pub(crate) async fn open(&self, stream: u32, headers: Headers) -> Option<SpdyStream> {
        let (data, reset) = self.table.add(stream)?;
        let frame = Frame::SynStream { stream, headers: headers.clone(), fin: false };
        self.frames.send(frame).await.ok()?;
        Some(SpdyStream { id: stream, headers, data, writer: Writer::new(stream, self.frames.clone()), reset })
    }
}

async fn run(
    bytes: impl AsyncRead + AsyncWrite + Send,
    mut reader: Reader,
    queue: mpsc::Receiver<Frame>,
    activity: Arc<Activity>,
) {
    let table = reader.table.clone();
    copy_frames(bytes, &mut reader, queue, &activity).await;
    table.clear();
}

async fn copy_frames(
    bytes: impl AsyncRead + AsyncWrite + Send,
    reader: &mut Reader,
    queue: mpsc::Receiver<Frame>,
    activity: &Activity,
) {
    let (mut read, mut write) = split(bytes);
    tokio::select! {
        ended = reader.run(&mut read, activity) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a stream of the node API ended early");
            }
            return;
        }
        written = write_frames(&mut write, queue, activity) => {
            if written.is_err() {
                return;
            }
        }
    }
    // If a connection is closed while it has unread data, the peer's system discards what was written to it last.
    let drained = async {
        let mut rest = vec![0; 4096];
        while matches!(read.read(&mut rest).await, Ok(1..)) {}
    };
    let _ = timeout(LINGER, drained).await;
}

async fn write_frames(
    write: &mut (impl AsyncWrite + Unpin),
    mut queue: mpsc::Receiver<Frame>,
    activity: &Activity,
) -> io::Result<()> {
    let (mut encoder, mut buffer) = (Encoder::default(), Vec::new());
    while let Some(frame) = queue.recv().await {
        let mut is_data = frame.is_data();
        encoder.append(&frame, &mut buffer);
        while buffer.len() < BLOCK
            && let Ok(frame) = queue.try_recv()
        {
            is_data |= frame.is_data();
            encoder.append(&frame, &mut buffer);
        }
        write.write_all(&buffer).await?;
        write.flush().await?;
        if is_data {
            activity.record_data();
        }
        buffer.clear();
    }
    encoder.append(&Frame::GoAway { last: 0, status: 0 }, &mut buffer);
    write.write_all(&buffer).await?;
    write.shutdown().await
}

struct Reader {
    decoder: Decoder,
    side: Side,
    /// The last stream that the peer has opened.
    last: u32,
    /// The number of the next ping.
    pings: u32,
    /// Does not keep the connection open.
    frames: mpsc::WeakSender<Frame>,
    accept: mpsc::Sender<SpdyStream>,
    table: Arc<StreamTable>,
}

impl Reader {
    /// Reads until the peer ends the connection.
    async fn run(&mut self, read: &mut (impl AsyncRead + Unpin), activity: &Activity) -> io::Result<()> {
        let mut buffer = vec![0; BLOCK];
        loop {
            while let Some(frame) = self.decoder.next_frame().map_err(io::Error::other)? {
                if matches!(frame, Frame::GoAway { .. }) {
                    return Ok(());
                }
                if frame.is_data() {
                    activity.record_data();
                }
                self.handle(frame).await;
            }
            let count = read.read(&mut buffer).await?;
            if count == 0 {
                return Ok(());
            }
            self.decoder.feed(&buffer[..count]);
        }
    }

    async fn handle(&mut self, frame: Frame) {
        match frame {
            Frame::SynStream { stream, headers, fin } => self.accept(stream, headers, fin).await,
            Frame::Data { stream, bytes, fin } => {
                if !bytes.is_empty() {
                    self.deliver(stream, bytes).await;
                }
                if fin {
                    self.table.remove(stream);
                }
            }
            Frame::SynReply { stream, fin, .. } | Frame::Headers { stream, fin, .. } => {
                if fin {
                    self.table.remove(stream);
                }
            }
            Frame::Reset { stream, .. } => {
                if let Some(entry) = self.table.remove(stream) {
                    entry.reset.cancel();
                }
            }
            // The other numbers belong to pings of the agent.
            Frame::Ping(number) if (number.is_multiple_of(2)) == (self.side == Side::Client) => {
                self.send(Frame::Ping(number)).await;
            }
            Frame::Ping(_) | Frame::GoAway { .. } | Frame::Ignored => {}
        }
    }

    async fn accept(&mut self, stream: u32, headers: Headers, fin: bool) {
        if self.side == Side::Client || stream.is_multiple_of(2) || stream <= self.last {
            return self.send(Frame::Reset { stream, status: PROTOCOL_ERROR }).await;
        }
        self.last = stream;
        let Some(frames) = self.frames.upgrade() else { return };
        let refused = Frame::Reset { stream, status: REFUSED_STREAM };
        let Some((data, reset)) = self.table.add(stream) else { return self.send(refused).await };
        if fin {
            self.table.remove(stream);
        }
        if self.accept.is_closed() {
            self.table.remove(stream);
            return self.send(refused).await;
        }
        // The reply comes first, because the receiver of the stream may write at once.
        self.send(Frame::SynReply { stream, headers: Headers::default(), fin: false }).await;
        let opened = SpdyStream { id: stream, headers, data, writer: Writer::new(stream, frames), reset };
        if self.accept.send(opened).await.is_err() {
            self.table.remove(stream);
            self.send(refused).await;
        }
    }

    /// Waits until the receiver of a stream takes the bytes.
    async fn deliver(&mut self, stream: u32, bytes: Vec<u8>) {
        let Some(entry) = self.table.get(stream) else { return };
        loop {
            tokio::select! {
                permit = entry.data.reserve() => {
                    if let Ok(permit) = permit {
                        permit.send(bytes);
                    }
                    return;
                }
                () = sleep(PING_INTERVAL) => {
                    let number = self.pings;
                    self.pings = number.wrapping_add(2);
                    self.send(Frame::Ping(number)).await;
                }
            }
        }
    }

    /// Queues a frame. Never returns after the agent has ended the connection: the rest of the queue is then being written.
    async fn send(&self, frame: Frame) {
        match self.frames.upgrade() {
            Some(frames) => drop(frames.send(frame).await),
            None => std::future::pending().await,
        }
    }
}
