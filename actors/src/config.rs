//! What the sources of pods say, made fit for the engine: checked, completed and compared. Pure.

pub mod defaults;
pub mod fields;
pub mod mux;
pub mod quantity;
pub mod validate;
