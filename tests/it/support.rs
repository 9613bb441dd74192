//! Fixtures.

pub(crate) mod processes;
