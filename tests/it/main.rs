//! The engine and its adapters from outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod agent;
mod controllers;
mod cri;
mod dra;
mod evictions;
mod examples;
mod final_status_file;
mod node_authorizer;
mod recordings;
mod support;
