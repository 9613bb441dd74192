//! A DRA driver that does what a test sets, and what a kubelet sends, for the tests of several crates.
//!
//! ```no_run
//! # async fn example() {
//! use podwright_dra_tests::fake_driver::{FakeDriver, Serve};
//!
//! let driver = FakeDriver::new("gpu.acme.test", "/run/node/dra.sock");
//! let _endpoint = driver.serve(Serve::All);
//! let _socket = driver.announce("/run/node/plugins_registry/gpu.sock".as_ref());
//! // The node with this registry directory calls the driver.
//! driver.registered().await;
//! # }
//! ```
//!
//! # Parts
//!
//! - [`fake_driver`]: a driver with real sockets, for the tests of the node.
//! - [`connect`] and [`http2`]: what a kubelet sends, for the tests of drivers.
//! - The tests of this crate are of crates together: the claims of a node with the plugins and with their file, and an old API server.
//!
//! # Arrows
//!
//! The crate uses `podwright-dra-api` and the waits of `podwright-fixtures`, so that `podwright-dra` and `podwright-dra-driver` can use it.
//! Its tests also use the adapters and the node. Only tests use the crate.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

pub mod fake_driver;
pub mod http2;

use std::path::Path;

use tonic::transport::{Channel, Endpoint};

/// A connection to the socket of a server of gRPC.
///
/// # Panics
/// If no server listens on the socket.
pub async fn connect(socket: &Path) -> Channel {
    Endpoint::from_shared(format!("unix:{}", socket.display())).unwrap().connect().await.unwrap()
}
