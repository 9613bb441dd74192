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

/// What a map has for a key.
pub(super) fn value<'a>(entries: &'a [Entry], key: &str) -> Option<&'a str> {
    let found = entries.iter().find(|entry| entry.key == key.as_bytes())?;
    std::str::from_utf8(&found.value).ok()
}

/// A map as the wire has it.
#[cfg(test)]
pub(super) fn entries(map: impl IntoIterator<Item = (String, String)>) -> Vec<Entry> {
    map.into_iter().map(|(key, value)| Entry { key: key.into(), value: value.into() }).collect()
}
