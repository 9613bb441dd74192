//! The error of the conversion.

use podwright_model::texts::containers as texts;
use podwright_ports::RuntimeError;

/// The pod requests a setting that the node or the runtime cannot provide. A retry fails until the spec, the image or the node
/// changes. Published as `CreateContainerConfigError` on containers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The pod has no such container.
    #[error("the pod has no container {0:?}")]
    NoContainer(String),
    /// A field has a value that is not allowed.
    #[error("{field} is {value:?}: use one of {allowed}")]
    Value {
        /// The field of the spec.
        field: String,
        /// The value of the field.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// A field is not a user or group ID.
    #[error("{field}: {invalid}")]
    Id {
        /// The field of the spec.
        field: String,
        /// The number that is not an ID.
        invalid: podwright_core::config::linux_id::InvalidId,
    },
    /// A field is not a valid quantity.
    #[error("{field}")]
    Quantity {
        /// The field of the spec.
        field: String,
        /// The parse error.
        source: podwright_model::quantity::ParseQuantityError,
    },
    /// The node or the runtime does not support a field's value.
    #[error("{field} {reason}: {remedy}")]
    Unsupported {
        /// The field of the spec.
        field: String,
        /// What is not supported.
        reason: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// A mount has `recursiveReadOnly: Enabled`, and the runtime does not support it.
    #[error("{}", texts::no_recursive_read_only(.0))]
    RecursiveReadOnly(String),
    /// The host name is longer than the kernel allows.
    #[error("host name {name:?} has {} bytes and may have {limit}: shorten {field}", .name.len())]
    LongName {
        /// The host name.
        name: String,
        /// The allowed length in bytes.
        limit: usize,
        /// The field that sets the name.
        field: &'static str,
    },
    /// The container's settings cannot be used. A kubelet refuses them too, and the text is the kubelet's.
    #[error("{0}")]
    OfKubelet(String),
}

impl From<ConfigError> for RuntimeError {
    fn from(error: ConfigError) -> Self {
        RuntimeError::config(error)
    }
}
