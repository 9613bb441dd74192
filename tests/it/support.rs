//! Fakes and fixtures of the tests.

pub(crate) mod browser;
pub(crate) mod logind;
pub(crate) mod processes;
pub(crate) mod tls_files;

pub(crate) use podwright_fixtures::{disks, polling, required};
