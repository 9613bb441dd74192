//! The error of a port's implementation.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The error of a port's implementation, as the source of a port's error. Clones share the error.
///
/// It does not implement [`Error`] itself, so that [`Error::source`] of a port's error is the error of the implementation and can
/// be downcast to its type.
#[derive(Clone)]
pub struct ErrorSource(Arc<dyn Error + Send + Sync>);

impl Deref for ErrorSource {
    type Target = dyn Error + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl From<Box<dyn Error + Send + Sync>> for ErrorSource {
    fn from(error: Box<dyn Error + Send + Sync>) -> Self {
        ErrorSource(error.into())
    }
}

impl fmt::Debug for ErrorSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ErrorSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
