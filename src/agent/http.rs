//! Parts of an HTTP server on this machine: listeners, connection seats and authentication.
//!
//! ```text
//!  Listener ──> Seats ──> connection ──> Authentication ──> router
//!  a Unix       limits    time limits    adds an `Access`   reads the `Access` of the request
//!  socket,      and
//!  TCP or TLS   evicts
//! ```
//!
//! The parts know no endpoint. Each listener has seats of its own, so that clients of one listener cannot take the seats of
//! another one.

mod authentication;
mod blocking;
mod listener;
mod negotiation;
mod private_file;
mod seated;
mod seats;
mod server;
mod socket;
mod tls;

pub(crate) use authentication::{Access, Authentication, Token, TokenError};
pub(crate) use blocking::BlockingAnswers;
pub(crate) use listener::Listener;
pub(crate) use negotiation::negotiate;
pub(crate) use private_file::{PrivateFileError, read_private, write_private};
pub(crate) use seats::{SeatLimits, Seats};
pub(crate) use server::{Connection, TimeLimits, connections, serve};
pub(crate) use socket::ShortPath;
pub(crate) use tls::{TlsError, TlsFiles, certificates};

/// The maximum length in bytes of request text that an error answer repeats.
pub(crate) const MAX_ECHO_BYTES: usize = 300;
