//! What the tests, the simulation and the fuzz targets of this repository call beside the API. Not a part of the API: it may change in
//! any release.

#[cfg(feature = "process")]
pub mod process_log {
    pub use crate::adapters::process::testing::log::*;
}
#[cfg(feature = "process")]
pub mod process_record {
    pub use crate::adapters::process::testing::record::*;
}

#[cfg(feature = "kube")]
pub use podwright_kube::client_over;
