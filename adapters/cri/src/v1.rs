//! The messages and clients of the CRI, generated from `runtime.proto` by the build script.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    rustdoc::all,
    reason = "generated code; the meaning of a field is documented where it is set"
)]

tonic::include_proto!("runtime.v1");

/// Prints no part of the login.
impl std::fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthConfig")
    }
}

/// The value of a label or annotation. `None` if it is missing or not UTF-8.
pub(super) fn value<'a>(entries: &'a [LabelEntry], key: &str) -> Option<&'a str> {
    let found = entries.iter().find(|entry| entry.key == key.as_bytes())?;
    std::str::from_utf8(&found.value).ok()
}

/// Labels or annotations in their wire form.
#[cfg(test)]
pub(super) fn entries(map: impl IntoIterator<Item = (String, String)>) -> Vec<LabelEntry> {
    map.into_iter().map(|(key, value)| LabelEntry { key: key.into(), value: value.into() }).collect()
}
