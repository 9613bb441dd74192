//! SPDY/3.1, which the API server and older clients speak for commands and forwarded ports.
//!
//! ```text
//!   bytes ──> Decoder ──> Frame ──> connection ──> one channel per stream
//!   bytes <── Encoder <── Frame <──     │      <── one bounded queue of all streams
//! ```
//!
//! The decoder and the encoder are pure. A frame that breaks the protocol ends only its connection.
//!
//! As in upstream's `spdystream`, no window limits a stream. The peer is slowed down by the connection: the agent stops reading
//! while the receiver of a stream has [`CHUNKS`](podwright_host::streaming::CHUNKS) chunks that it has not taken.

mod connection;
mod decoder;
mod dictionary;
mod frame;
mod headers;
#[cfg(test)]
mod tests;

pub(super) use connection::{CANCEL, Connection, Side, SpdyStream};
pub use decoder::{DecodeError, Decoder, MAX_CONTROL_BYTES};
pub use frame::{Encoder, Frame};
pub use headers::{Headers, MAX_BLOCK_BYTES};
