//! Podwright.

pub mod adapters;
