//! Dynamic resource allocation through several crates, over real sockets and files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod claims_file;
mod health;
mod versions;
