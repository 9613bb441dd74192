//! Drivers over real sockets, with calls as a node makes them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod driver;
mod support;
