//! What tests and fuzz targets call beside the API. Not a part of the API: it may change in any release.

#[cfg(test)]
mod alone;

#[cfg(test)]
pub(crate) use alone::is_alone;

/// The log of a container, as the shim writes it.
pub mod log {
    pub use super::super::shim::log::*;
}
/// The records of sandboxes and containers on disk.
pub mod record {
    pub use super::super::record::*;
}
