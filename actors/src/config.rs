//! Validates, completes and compares the pods of the sources. Pure.

pub mod defaults;
pub mod fields;
pub mod mux;
pub mod quantity;
pub mod validate;
