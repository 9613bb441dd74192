//! The interface's messages and clients, as the build script makes them.

#![allow(clippy::all, dead_code, unreachable_pub, missing_docs, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));

/// A login is never shown.
impl std::fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthConfig")
    }
}
