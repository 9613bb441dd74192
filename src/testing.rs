//! What the tests, the simulation and the fuzz targets of this repository call beside the API. Not a part of the API: it may change in
//! any release.

#[cfg(feature = "kube")]
pub use podwright_kube::client_over;
