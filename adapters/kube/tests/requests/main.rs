//! The adapters of the API server, over requests in memory.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod objects;
mod pod_api;
