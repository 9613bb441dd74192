//! The process runtime with real processes. Their shim is the program of this package.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod shim_program;
