//! Parts of an HTTP server on this machine: listeners, connection seats, authentication, and what all endpoints share.
//!
//! ```no_run
//! use axum::Router;
//! use podwright_http_server::{Authentication, Listener, SeatLimits, Seats, TimeLimits, serve};
//!
//! # async fn example(router: Router) -> std::io::Result<()> {
//! let listener = Listener::tcp(([127, 0, 0, 1], 10255).into(), None).await?;
//! let seats = Seats::new(SeatLimits { anonymous: 64, authenticated: 64, client: None });
//! serve(listener, seats, Authentication::Router, TimeLimits::default(), router).await;
//! # Ok(())
//! # }
//! ```
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
//!
//! # Parts
//!
//! - [`Listener`], [`Seats`] and [`serve`]: a server over a Unix socket, TCP or TLS. [`connections`] are for servers of another protocol.
//! - [`ClientAddress`] and [`ClientLimits`]: what one address may have before it authenticates itself. [`Pace`] limits a [`Rate`].
//! - [`Authentication`], [`Token`] and [`Access`]: what the client of a request may read.
//! - [`TlsFiles`], [`read_private`] and [`write_private`]: files with certificates and secrets.
//! - [`BlockingAnswers`]: answers that need much CPU time or memory, and limits for them.
//! - [`negotiate`]: the format of metrics that a client accepts.
//!
//! # Arrows
//!
//! The crate uses `podwright-metrics` for the format and the counters of metrics, and `podwright-model` for texts. The agent and
//! `podwright-node-api` use it.

mod authentication;
mod blocking;
mod clients;
mod listener;
mod negotiation;
mod pace;
mod private_file;
mod seated;
mod seats;
mod server;
mod socket;
mod tls;

pub use authentication::{Access, Authentication, Token, TokenError};
pub use blocking::BlockingAnswers;
pub use clients::{ClientAddress, ClientLimits};
pub use listener::{Listener, PeerCertificates};
pub use negotiation::negotiate;
pub use pace::{Pace, Rate};
pub use private_file::{PrivateFileError, read_private, write_private};
pub use seated::SeatedBytes;
pub use seats::{SeatLimits, Seats};
pub use server::{Connection, TimeLimits, connections, serve};
pub use socket::ShortPath;
pub use tls::{TlsError, TlsFiles, certificates};

/// The maximum length in bytes of request text that an error answer repeats.
pub const MAX_ECHO_BYTES: usize = 300;
