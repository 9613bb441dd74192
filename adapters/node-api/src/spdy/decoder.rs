//! Reads frames from bytes.

use super::frame::{FIN, Frame, GOAWAY, HEADERS, PING, RST_STREAM, STREAM_BITS, SYN_REPLY, SYN_STREAM, VERSION};
use super::headers::Inflate;
use podwright_host::streaming::CHUNK_BYTES;

/// The most bytes in a control frame.
pub const MAX_CONTROL_BYTES: usize = 16 << 10;

/// The bytes before the content of a frame.
const HEAD: usize = 8;

/// Bytes that break the protocol. The connection cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The peer speaks another version of the protocol.
    #[error("a control frame of SPDY version {0}: use SPDY/3.1")]
    Version(u16),
    /// A control frame has more than [`MAX_CONTROL_BYTES`] bytes.
    #[error("a control frame of {0} bytes, and at most {MAX_CONTROL_BYTES} are accepted")]
    TooLong(usize),
    /// A control frame has too few or too many bytes for its type.
    #[error("a control frame of type {kind} with {length} bytes")]
    Length {
        /// The type.
        kind: u16,
        /// The bytes of its content.
        length: usize,
    },
    /// A frame names the stream 0.
    #[error("a frame for stream 0")]
    NoStream,
    /// The headers of a stream cannot be read.
    #[error("unreadable headers: {0}")]
    Headers(&'static str),
}

/// Reads frames. Keeps at most one control frame, or [`CHUNK_BYTES`] of data, besides the bytes of the last [`feed`](Self::feed).
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    /// How many of the bytes were read.
    read: usize,
    inflate: Inflate,
    data: Option<PartialData>,
}

/// A data frame whose content has not arrived completely.
#[derive(Debug)]
struct PartialData {
    stream: u32,
    left: usize,
    fin: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Decoder { bytes: Vec::new(), read: 0, inflate: Inflate::new(), data: None }
    }
}

impl Decoder {
    /// Adds bytes of the connection.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame. `None` if more bytes are needed.
    ///
    /// # Errors
    /// [`DecodeError`]. After an error, the results of later calls mean nothing.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, DecodeError> {
        if let Some(data) = self.data.take() {
            return Ok(self.data(data));
        }
        let Some((head, rest)) = self.bytes[self.read..].split_first_chunk::<HEAD>() else { return Ok(None) };
        let (first, second) = head.split_at(4);
        let first = u32::from_be_bytes(first.try_into().expect("four bytes"));
        let (flags, length) = (second[0], u32::from_be_bytes([0, second[1], second[2], second[3]]));
        let length = usize::try_from(length).expect("the length has 24 bits");
        if first & !STREAM_BITS == 0 {
            self.read += HEAD;
            let data = PartialData { stream: first, left: length, fin: flags & FIN != 0 };
            return if data.stream == 0 { Err(DecodeError::NoStream) } else { Ok(self.data(data)) };
        }
        let [_, _, high, low] = first.to_be_bytes();
        let (version, kind) = ((first >> 16) as u16 & 0x7fff, u16::from_be_bytes([high, low]));
        if version != VERSION {
            return Err(DecodeError::Version(version));
        }
        if length > MAX_CONTROL_BYTES {
            return Err(DecodeError::TooLong(length));
        }
        let Some(content) = rest.get(..length) else { return Ok(None) };
        let frame = control(&mut self.inflate, kind, flags & FIN != 0, content)?;
        self.read += HEAD + length;
        Ok(Some(frame))
    }

    /// The part of a data frame that has arrived.
    fn data(&mut self, mut data: PartialData) -> Option<Frame> {
        let available = &self.bytes[self.read..];
        let part = &available[..data.left.min(available.len()).min(CHUNK_BYTES)];
        if part.is_empty() && data.left > 0 {
            self.data = Some(data);
            return None;
        }
        let bytes = part.to_vec();
        self.read += bytes.len();
        data.left -= bytes.len();
        let (stream, fin) = (data.stream, data.fin && data.left == 0);
        if data.left > 0 {
            self.data = Some(data);
        }
        Some(Frame::Data { stream, bytes, fin })
    }
}

fn control(inflate: &mut Inflate, kind: u16, fin: bool, content: &[u8]) -> Result<Frame, DecodeError> {
    let wrong = || DecodeError::Length { kind, length: content.len() };
    let number = |at: usize| {
        let bytes = content.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u32::from_be_bytes).ok_or_else(wrong)
    };
    let stream = || match number(0)? & STREAM_BITS {
        0 => Err(DecodeError::NoStream),
        stream => Ok(stream),
    };
    let exactly = |length: usize| if content.len() == length { Ok(()) } else { Err(wrong()) };
    Ok(match kind {
        SYN_STREAM => {
            let block = content.get(10..).ok_or_else(wrong)?;
            Frame::SynStream { stream: stream()?, headers: inflate.headers(block)?, fin }
        }
        SYN_REPLY | HEADERS => {
            let block = content.get(4..).ok_or_else(wrong)?;
            let (stream, headers) = (stream()?, inflate.headers(block)?);
            if kind == HEADERS {
                Frame::Headers { stream, headers, fin }
            } else {
                Frame::SynReply { stream, headers, fin }
            }
        }
        RST_STREAM => {
            exactly(8)?;
            Frame::Reset { stream: stream()?, status: number(4)? }
        }
        PING => {
            exactly(4)?;
            Frame::Ping(number(0)?)
        }
        GOAWAY => {
            exactly(8)?;
            Frame::GoAway { last: number(0)? & STREAM_BITS, status: number(4)? }
        }
        _ => Frame::Ignored,
    })
}
