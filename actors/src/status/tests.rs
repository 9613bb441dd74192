//! Behaviour of the status as a whole; each table names its scenarios.

mod cache;
mod containers;
mod phase;
mod pod;
mod recordings;
mod summary;
mod writing;
