//! The engine from outside.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod process_runtime;
mod support;
