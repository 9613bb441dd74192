//! The process runtime with real processes. Their shim is the program of this package.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod adoption;
mod containers;
mod devices;
mod exec;
mod faults;
mod inherited;
mod isolation;
mod namespaces;
mod ports;
mod seccomp;
mod settings;
mod shim_program;
mod support;
mod unprivileged;
mod view;
