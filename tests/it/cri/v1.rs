//! The messages and clients of the container runtime interface, which the build script generates.

#![allow(clippy::all, dead_code, unreachable_pub, missing_docs, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/runtime.v1.rs"));

/// Debug output never contains credentials.
impl std::fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthConfig")
    }
}
