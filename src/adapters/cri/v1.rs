//! The messages and clients of the interface, made from `runtime.proto` when the crate is built.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    rustdoc::all,
    reason = "made by a program; what the fields mean is said where they are filled"
)]

tonic::include_proto!("runtime.v1");

impl std::fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthConfig")
    }
}
