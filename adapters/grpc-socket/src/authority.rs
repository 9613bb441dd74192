//! Replaces the `:authority` of requests before the HTTP/2 library reads them.
//!
//! The kubelet 1.36 sends the percent-encoded path of the socket as `:authority`. The crate h2 (0.4.20) refuses that header and
//! resets the stream. Other clients in Go that dial the path of a socket send the same. No service on these sockets reads the
//! header, so its value is replaced by a host name that h2 accepts.
//!
//! Of a block of headers, only the lengths are read (RFC 7541), and no Huffman code is decoded. Each field keeps its
//! representation, so the client and h2 give the entries of the dynamic table the same numbers. The new value is at most as long as
//! the old one, so h2 never drops an entry that the client still uses.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// The replaced value as a string of HPACK: its length, and one byte.
const HOST: [u8; 2] = [1, b'x'];
/// The bytes with which a client starts a connection (RFC 9113, 3.4).
const PREFACE: usize = 24;
/// The bytes before the payload of a frame (RFC 9113, 4.1).
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The bytes of the priority in a frame with headers.
const PRIORITY_LENGTH: usize = 5;
/// The largest payload of a frame that each endpoint accepts (RFC 9113, 4.2).
const LARGEST_FRAME: usize = 1 << 14;
/// The largest block of headers. h2 refuses larger ones by default, too.
const LARGEST_BLOCK: usize = 1 << 16;
/// The entries of the static table (RFC 7541, appendix A). The first entry is `:authority`.
const STATIC_ENTRIES: usize = 61;
/// A dynamic table of 4096 bytes, which is the size that h2 offers, has no more entries than this (RFC 7541, 4.1).
const DYNAMIC_ENTRIES: usize = 4096 / 32;
/// `:authority` as a string of HPACK, plain and in Huffman code.
const NAMES: [&[u8]; 2] = [b"\x0a:authority", b"\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f"];

/// A connection whose client may send any `:authority`.
pub struct AnyAuthority<S> {
    stream: S,
    rewriter: Rewriter,
    /// The rewritten bytes. The reader has taken those before `taken`.
    rewritten: Vec<u8>,
    taken: usize,
}

impl<S> AnyAuthority<S> {
    /// Rewrites the bytes that are read from the stream.
    pub fn new(stream: S) -> Self {
        AnyAuthority { stream, rewriter: Rewriter::new(), rewritten: Vec::new(), taken: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnyAuthority<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.taken == this.rewritten.len() {
            let mut chunk = [0; 4096];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.stream).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.rewritten.clear();
            this.taken = 0;
            let rewritten = this.rewriter.push(chunk.filled(), &mut this.rewritten);
            rewritten.map_err(|malformed| io::Error::new(io::ErrorKind::InvalidData, malformed))?;
        }
        let rest = &this.rewritten[this.taken..];
        let length = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..length]);
        this.taken += length;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnyAuthority<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S> Connected for AnyAuthority<S> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// The bytes of the client are not those of an HTTP/2 connection.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("the client sent malformed HTTP/2 headers")]
pub(super) struct Malformed;

/// The rewriting of one connection's bytes, without I/O.
pub(super) struct Rewriter {
    /// How many of the next bytes pass unchanged.
    passing: usize,
    /// The first bytes of a frame that is not complete.
    pending: Vec<u8>,
    /// The headers whose last frame has not arrived.
    open: Option<Headers>,
    /// Whether each entry of the dynamic table has the name `:authority`, newest first.
    authorities: VecDeque<bool>,
}

/// A block of headers from one or more frames.
struct Headers {
    flags: u8,
    stream: [u8; 4],
    priority: Vec<u8>,
    block: Vec<u8>,
}

impl Rewriter {
    pub(super) fn new() -> Self {
        Rewriter { passing: PREFACE, pending: Vec::new(), open: None, authorities: VecDeque::new() }
    }

    /// Takes bytes of the client, and appends the bytes for the library to `output`. Keeps an incomplete frame with headers.
    pub(super) fn push(&mut self, mut input: &[u8], output: &mut Vec<u8>) -> Result<(), Malformed> {
        while !input.is_empty() {
            let wanted = if self.passing > 0 { self.passing } else { self.wanted() - self.pending.len() };
            let (taken, rest) = input.split_at(wanted.min(input.len()));
            input = rest;
            if self.passing > 0 {
                self.passing -= taken.len();
                output.extend_from_slice(taken);
                continue;
            }
            self.pending.extend_from_slice(taken);
            let Some(head) = Head::read(&self.pending) else { continue };
            if !matches!(head.kind, HEADERS | CONTINUATION) {
                if self.open.is_some() {
                    return Err(Malformed);
                }
                self.passing = head.length;
                output.append(&mut self.pending);
            } else if head.length > LARGEST_FRAME {
                return Err(Malformed);
            } else if self.pending.len() == FRAME_HEAD + head.length {
                let frame = std::mem::take(&mut self.pending);
                self.headers(&head, &frame[FRAME_HEAD..], output)?;
            }
        }
        Ok(())
    }

    /// The length that `pending` must reach next: that of the head of a frame, or of the whole frame.
    fn wanted(&self) -> usize {
        Head::read(&self.pending).map_or(FRAME_HEAD, |head| FRAME_HEAD + head.length)
    }

    fn headers(&mut self, head: &Head, payload: &[u8], output: &mut Vec<u8>) -> Result<(), Malformed> {
        let headers = match (self.open.take(), head.kind) {
            (None, HEADERS) => Headers::first(head, payload)?,
            (Some(mut headers), CONTINUATION) if headers.stream == head.stream => {
                headers.flags |= head.flags & END_HEADERS;
                headers.block.extend_from_slice(payload);
                headers
            }
            _ => return Err(Malformed),
        };
        if headers.block.len() > LARGEST_BLOCK {
            return Err(Malformed);
        }
        if headers.flags & END_HEADERS == 0 {
            self.open = Some(headers);
            return Ok(());
        }
        let block = self.rewrite(&headers.block)?;
        headers.write(&block, output);
        Ok(())
    }

    /// Replaces the value of `:authority` in a block of headers.
    fn rewrite(&mut self, block: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut fields = Fields { block, at: 0 };
        let mut output = Vec::with_capacity(block.len());
        while let Some(&first) = block.get(fields.at) {
            let start = fields.at;
            let (prefix, is_indexed) = match first {
                // An indexed field, or a new size of the dynamic table: no value follows.
                0x80.. | 0x20..=0x3f => {
                    fields.integer(if first >= 0x80 { 7 } else { 5 })?;
                    output.extend_from_slice(&block[start..fields.at]);
                    continue;
                }
                0x40..=0x7f => (6, true),
                0x00..=0x1f => (4, false),
            };
            let is_authority = match fields.integer(prefix)? {
                0 => NAMES.contains(&&block[fields.string()?]),
                1 => true,
                index => {
                    index > STATIC_ENTRIES
                        && self.authorities.get(index - STATIC_ENTRIES - 1).is_some_and(|&is_authority| is_authority)
                }
            };
            output.extend_from_slice(&block[start..fields.at]);
            let value = &block[fields.string()?];
            // An empty string is one byte.
            output.extend_from_slice(if is_authority && value.len() > 1 { &HOST } else { value });
            if is_indexed {
                self.authorities.push_front(is_authority);
                self.authorities.truncate(DYNAMIC_ENTRIES);
            }
        }
        Ok(output)
    }
}

/// The head of a frame.
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Head> {
        let &[a, b, c, kind, flags, s1, s2, s3, s4] = bytes.first_chunk::<FRAME_HEAD>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        Some(Head { length, kind, flags, stream: [s1, s2, s3, s4] })
    }
}

impl Headers {
    fn first(head: &Head, mut payload: &[u8]) -> Result<Headers, Malformed> {
        if head.flags & PADDED != 0 {
            let (&padding, rest) = payload.split_first().ok_or(Malformed)?;
            let length = rest.len().checked_sub(padding.into()).ok_or(Malformed)?;
            payload = &rest[..length];
        }
        let priority = if head.flags & PRIORITY != 0 { PRIORITY_LENGTH } else { 0 };
        let (priority, block) = payload.split_at_checked(priority).ok_or(Malformed)?;
        let flags = head.flags & !PADDED;
        Ok(Headers { flags, stream: head.stream, priority: priority.to_vec(), block: block.to_vec() })
    }

    /// Writes the headers with another block.
    fn write(&self, block: &[u8], output: &mut Vec<u8>) {
        let payload = [&self.priority, block].concat();
        let mut rest = &payload[..];
        let mut kind = HEADERS;
        loop {
            let (frame, next) = rest.split_at(rest.len().min(LARGEST_FRAME));
            rest = next;
            let mut flags = if kind == HEADERS { self.flags & !END_HEADERS } else { 0 };
            if rest.is_empty() {
                flags |= END_HEADERS;
            }
            // A frame has at most 2^14 bytes.
            output.extend_from_slice(&(frame.len() as u32).to_be_bytes()[1..]);
            output.extend_from_slice(&[kind, flags]);
            output.extend_from_slice(&self.stream);
            output.extend_from_slice(frame);
            kind = CONTINUATION;
            if rest.is_empty() {
                return;
            }
        }
    }
}

/// Reads the parts of a block of headers.
struct Fields<'a> {
    block: &'a [u8],
    at: usize,
}

impl Fields<'_> {
    fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = self.block.get(self.at).ok_or(Malformed)?;
        self.at += 1;
        Ok(*byte)
    }

    /// Reads an integer that starts in the lowest `prefix` bits of the next byte (RFC 7541, 5.1).
    fn integer(&mut self, prefix: u32) -> Result<usize, Malformed> {
        let largest = (1 << prefix) - 1;
        let mut value = usize::from(self.byte()?) & largest;
        if value < largest {
            return Ok(value);
        }
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    /// Skips a string (RFC 7541, 5.2). Returns where it is, with its length.
    fn string(&mut self) -> Result<Range<usize>, Malformed> {
        let start = self.at;
        let length = self.integer(7)?;
        self.at = self.at.checked_add(length).filter(|end| *end <= self.block.len()).ok_or(Malformed)?;
        Ok(start..self.at)
    }
}

#[cfg(test)]
mod tests;
