//! Fakes and fixtures of the tests.

pub(crate) mod browser;
pub(crate) mod disks;
pub(crate) mod logind;
pub(crate) mod processes;
pub(crate) mod required;
pub(crate) mod tls_files;

pub(crate) use podwright_fixtures::polling;
