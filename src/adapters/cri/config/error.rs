//! What cannot be asked of the runtime.

use podwright_actors::ports::RuntimeError;

/// A pod cannot be run as its spec says. It stays so until the spec, the image or the node changes; seen as
/// `CreateContainerConfigError` on containers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The pod has no such container.
    #[error("the pod has no container {0:?}")]
    NoContainer(String),
    /// A field has a value that means nothing.
    #[error("{field} is {value:?}: use one of {allowed}")]
    Value {
        /// The field of the spec.
        field: String,
        /// What it says.
        value: String,
        /// What it could say.
        allowed: &'static str,
    },
    /// A quantity cannot be read.
    #[error("{field}: {source}")]
    Quantity {
        /// The field of the spec.
        field: String,
        /// Why not.
        source: podwright_actors::config::quantity::ParseQuantityError,
    },
    /// A field asks for what neither node nor runtime can do.
    #[error("{field} {reason}: {remedy}")]
    Unsupported {
        /// The field of the spec.
        field: String,
        /// What is missing.
        reason: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// The name is longer than the kernel takes.
    #[error("host name {name:?} has {} bytes and may have {limit}: shorten {field}", .name.len())]
    LongName {
        /// The name.
        name: String,
        /// The longest there is.
        limit: usize,
        /// Where it comes from.
        field: &'static str,
    },
    /// The container must not run as root and would.
    #[error("container {container:?} has runAsNonRoot and would run as root: {remedy}")]
    Root {
        /// Its name.
        container: String,
        /// What to change.
        remedy: &'static str,
    },
    /// The container must not run as root, and nobody can tell whether it would.
    #[error(
        "container {container:?} has runAsNonRoot, and whether user {user:?} of its image is root cannot be told: set \
         runAsUser to a number"
    )]
    NamedUser {
        /// Its name.
        container: String,
        /// The user's name.
        user: String,
    },
    /// The container whose processes an ephemeral one wants to see does not run.
    #[error("container {container:?}: its target container {target:?} does not run: start it or name another one")]
    Target {
        /// Its name.
        container: String,
        /// The name of the target.
        target: String,
    },
}

impl From<ConfigError> for RuntimeError {
    fn from(error: ConfigError) -> Self {
        RuntimeError::Config(error.to_string())
    }
}
