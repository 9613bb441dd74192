//! Tests of the whole status.

mod cache;
mod containers;
mod phase;
mod pod;
mod recordings;
mod settings;
mod summary;
mod writing;
