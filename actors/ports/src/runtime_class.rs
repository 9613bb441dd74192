//! Runtime classes.

use std::collections::BTreeMap;
use std::error::Error;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::ErrorSource;

/// Looks up runtime classes (`node.k8s.io/v1` `RuntimeClass`).
pub trait RuntimeClasses: Send + Sync + 'static {
    /// The name of the class's handler in the container runtime.
    ///
    /// # Errors
    /// [`RuntimeClassError`] if the class does not exist or cannot be looked up.
    fn handler<'a>(&'a self, class: &'a str) -> BoxFuture<'a, Result<String, RuntimeClassError>>;
}

/// A pod's runtime class cannot be used. The pod waits until it can.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeClassError {
    /// No class has this name.
    #[error(
        "runtimeClassName: there is no runtime class {0:?}: create it (on a node without an API server, start the agent with \
         --runtime-class {0}=HANDLER), or correct the name"
    )]
    Missing(String),
    /// The lookup failed.
    #[error("runtimeClassName: runtime class {class:?} cannot be looked up")]
    Failed {
        /// The name of the class.
        class: String,
        /// The error of the lookup.
        source: ErrorSource,
    },
}

impl RuntimeClassError {
    /// A [`RuntimeClassError::Failed`] with this source.
    pub fn failed(class: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        RuntimeClassError::Failed { class: class.into(), source: source.into().into() }
    }
}

/// The runtime classes of a node without an API server: handlers by class name.
#[derive(Clone, Debug, Default)]
pub struct NamedRuntimeClasses(pub BTreeMap<String, String>);

impl RuntimeClasses for NamedRuntimeClasses {
    fn handler<'a>(&'a self, class: &'a str) -> BoxFuture<'a, Result<String, RuntimeClassError>> {
        let handler = self.0.get(class).cloned();
        std::future::ready(handler.ok_or_else(|| RuntimeClassError::Missing(class.to_owned()))).boxed()
    }
}
