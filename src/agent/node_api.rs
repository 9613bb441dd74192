//! The node API: what the API server and metrics collectors request from a node, over HTTPS.

#![allow(dead_code, unused_imports)]

mod access;
mod attributes;
mod client_authority;
mod expiring;
pub mod spdy;
mod streams;
mod user;

pub use streams::{Stream, Streams};
