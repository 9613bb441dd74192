//! The frames of SPDY, and their encoder.

use super::headers::{Deflate, Headers};

/// The version of the protocol in control frames.
pub(super) const VERSION: u16 = 3;
pub(super) const SYN_STREAM: u16 = 1;
pub(super) const SYN_REPLY: u16 = 2;
pub(super) const RST_STREAM: u16 = 3;
pub(super) const PING: u16 = 6;
pub(super) const GOAWAY: u16 = 7;
pub(super) const HEADERS: u16 = 8;
/// The flag of the last frame of a stream in one direction.
pub(super) const FIN: u8 = 1;
/// The bits of a stream number. The highest bit is reserved.
pub(super) const STREAM_BITS: u32 = 0x7fff_ffff;
/// The most bytes in a data frame. The length has 24 bits.
pub(super) const MAX_DATA: usize = 0x00ff_ffff;

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    SynStream {
        /// The stream. Clients use odd numbers, servers even ones.
        stream: u32,
        /// The headers of the stream.
        headers: Headers,
        /// Whether the sender sends nothing more on this stream.
        fin: bool,
    },
    /// Accepts a stream.
    SynReply {
        /// The stream.
        stream: u32,
        /// The headers of the answer.
        headers: Headers,
        /// Whether the sender sends nothing more on this stream.
        fin: bool,
    },
    /// Ends a stream in both directions.
    Reset {
        /// The stream.
        stream: u32,
        /// The reason, a number of the protocol.
        status: u32,
    },
    /// Requests the same frame as an answer.
    Ping(u32),
    /// The sender accepts no more streams.
    GoAway {
        /// The last stream that the sender has accepted.
        last: u32,
        /// The reason, a number of the protocol.
        status: u32,
    },
    /// More headers of a stream.
    Headers {
        /// The stream.
        stream: u32,
        /// The headers.
        headers: Headers,
        /// Whether the sender sends nothing more on this stream.
        fin: bool,
    },
    /// Bytes of a stream. The decoder returns a long frame in several parts.
    Data {
        /// The stream.
        stream: u32,
        /// The bytes.
        bytes: Vec<u8>,
        /// Whether the sender sends nothing more on this stream.
        fin: bool,
    },
    /// A control frame that changes nothing: settings, the size of a window, or an unknown type.
    Ignored,
}

impl Frame {
    /// Whether the frame opens a stream or carries its bytes. A connection that has only other frames, such as the pings that clients send
    /// every few seconds, is idle.
    pub(super) fn is_data(&self) -> bool {
        match self {
            Frame::SynStream { .. } | Frame::Data { .. } => true,
            Frame::SynReply { .. }
            | Frame::Reset { .. }
            | Frame::Ping(_)
            | Frame::GoAway { .. }
            | Frame::Headers { .. }
            | Frame::Ignored => false,
        }
    }
}

/// Writes frames. It keeps the state of the compression, so each frame that is written must be sent, in the same order.
#[derive(Debug)]
pub struct Encoder(Deflate);

impl Default for Encoder {
    fn default() -> Self {
        Encoder(Deflate::new())
    }
}

impl Encoder {
    /// Appends a frame to `to`.
    pub fn append(&mut self, frame: &Frame, to: &mut Vec<u8>) {
        let flag = |fin: &bool| if *fin { FIN } else { 0 };
        match frame {
            Frame::SynStream { stream, headers, fin } => {
                // The associated stream, the priority and the slot are not used.
                let fixed = [&stream.to_be_bytes()[..], &[0; 6]].concat();
                self.control(SYN_STREAM, flag(fin), &fixed, Some(headers), to);
            }
            Frame::SynReply { stream, headers, fin } => {
                self.control(SYN_REPLY, flag(fin), &stream.to_be_bytes(), Some(headers), to);
            }
            Frame::Headers { stream, headers, fin } => {
                self.control(HEADERS, flag(fin), &stream.to_be_bytes(), Some(headers), to);
            }
            Frame::Reset { stream, status } => {
                self.control(RST_STREAM, 0, &[stream.to_be_bytes(), status.to_be_bytes()].concat(), None, to);
            }
            Frame::Ping(number) => self.control(PING, 0, &number.to_be_bytes(), None, to),
            Frame::GoAway { last, status } => {
                self.control(GOAWAY, 0, &[last.to_be_bytes(), status.to_be_bytes()].concat(), None, to);
            }
            Frame::Data { stream, bytes, fin } => {
                let mut parts = bytes.chunks(MAX_DATA).peekable();
                loop {
                    let part = parts.next().unwrap_or_default();
                    let last = parts.peek().is_none();
                    to.extend_from_slice(&(stream & STREAM_BITS).to_be_bytes());
                    to.push(if last { flag(fin) } else { 0 });
                    length(part.len(), to);
                    to.extend_from_slice(part);
                    if last {
                        break;
                    }
                }
            }
            Frame::Ignored => {}
        }
    }

    fn control(&mut self, kind: u16, flags: u8, fixed: &[u8], headers: Option<&Headers>, to: &mut Vec<u8>) {
        to.extend_from_slice(&(0x8000 | VERSION).to_be_bytes());
        to.extend_from_slice(&kind.to_be_bytes());
        let mut body = fixed.to_vec();
        if let Some(headers) = headers {
            self.0.append(headers, &mut body);
        }
        to.push(flags);
        length(body.len(), to);
        to.extend_from_slice(&body);
    }
}

/// Appends a length in three bytes.
fn length(length: usize, to: &mut Vec<u8>) {
    let length = u32::try_from(length).expect("the length of a frame has 24 bits");
    to.extend_from_slice(&length.to_be_bytes()[1..]);
}
