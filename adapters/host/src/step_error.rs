//! The error of one step of an adapter.

use std::error::Error;

/// A step failed. The text names the step; the source says why it failed.
#[derive(Debug, thiserror::Error)]
#[error("{step}")]
pub struct StepError {
    step: String,
    source: Box<dyn Error + Send + Sync>,
}

impl StepError {
    /// The step failed for the reason `source`.
    pub fn new(step: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        StepError { step: step.into(), source: source.into() }
    }
}
