//! The errors of publishing.

use std::fmt;

use podwright_kube_api::KubeError;

use super::api::CallError;
use super::compare::SuspectedFeature;
use super::resources::{InvalidPool, Slice};

/// Why the slices of a driver differ from the devices that it offers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SliceError {
    /// The pool cannot be published. Nothing of it is written until the next update.
    #[error("the pool {pool} cannot be published")]
    Invalid {
        /// The name of the pool.
        pool: String,
        /// What is wrong with it.
        source: InvalidPool,
    },
    /// The API server stored less than it was sent. Until the next update, the engine treats the
    /// stored content as desired.
    #[error("the API server dropped fields of the slice {} of the pool {}, suspected features: {}", .0.index, .0.pool,
        names(&.0.features))]
    DroppedFields(Box<DroppedFields>),
    /// Slices of the pool could not be written. The library tries again.
    #[error("cannot publish the pool {pool}: {}", texts(errors))]
    Writes {
        /// The name of the pool.
        pool: String,
        /// What failed, for each write.
        errors: Vec<WriteError>,
    },
    /// The UID of the node is unknown. The library tries again.
    #[error("cannot read the node of the driver")]
    Owner(#[source] CallError),
    /// The code that publishes this pool panicked. The library tries again.
    #[error("the sync of the pool {pool} panicked: {message}")]
    Panicked {
        /// The name of the pool.
        pool: String,
        /// The message of the panic.
        message: String,
    },
    /// The slices cannot be watched. The library tries again.
    #[error("cannot watch the slices of the driver")]
    Watch(#[source] KubeError),
}

impl SliceError {
    /// Whether the library tries again by itself. If not, the next [`update`](super::SliceEngine::update) must
    /// offer other content.
    pub fn is_recoverable(&self) -> bool {
        match self {
            SliceError::Invalid { .. } | SliceError::DroppedFields(_) => false,
            SliceError::Writes { .. } | SliceError::Owner(_) | SliceError::Panicked { .. } | SliceError::Watch(_) => {
                true
            }
        }
    }
}

/// A difference between what was sent and what was stored.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DroppedFields {
    /// The name of the pool.
    pub pool: String,
    /// The index of the slice in its pool.
    pub index: usize,
    /// What the driver offers.
    pub desired: Slice,
    /// What the API server stored.
    pub actual: Slice,
    /// The feature gates that seem to be off in the API server.
    pub features: Vec<SuspectedFeature>,
}

/// One write failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {write} {slice}")]
pub struct WriteError {
    /// The kind of write.
    pub write: Write,
    /// The name of the slice, or the beginning of the name that it would have.
    pub slice: String,
    /// Why it failed.
    pub source: CallError,
}

/// A kind of write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Replaces the content of a published slice.
    Update,
    /// Publishes a new slice.
    Create,
    /// Removes a published slice.
    Delete,
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Write::Update => "update",
            Write::Create => "create",
            Write::Delete => "delete",
        })
    }
}

/// The driver offers a pool other than its single pool. Nothing changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the driver may only offer the pool {only}, and not {}", offered.join(", "))]
pub struct WrongPool {
    /// The name of the only pool.
    pub only: String,
    /// The names of the pools that the driver offers.
    pub offered: Vec<String>,
}

fn names(features: &[SuspectedFeature]) -> String {
    features.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn texts(errors: &[WriteError]) -> String {
    let texts = errors.iter().map(|error| podwright_model::text::error_chain(error).to_string());
    texts.collect::<Vec<_>>().join("; ")
}
