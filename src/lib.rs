//! Podwright.
