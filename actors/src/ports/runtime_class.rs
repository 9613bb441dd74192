//! Runtime classes: by which handler of the container runtime a pod is run.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

/// Looks runtime classes up (`node.k8s.io/v1` `RuntimeClass`).
pub trait RuntimeClasses: Send + Sync + 'static {
    /// The handler of a class, as the runtime names it.
    fn handler<'a>(&'a self, class: &'a str) -> BoxFuture<'a, Result<String, RuntimeClassError>>;
}

/// A pod's runtime class cannot be used. The pod stays as it is until it can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeClassError {
    /// There is no class of this name.
    #[error("runtimeClassName: there is no runtime class {0:?}: create it, or correct the name")]
    Missing(String),
    /// Nobody can be asked.
    #[error("runtimeClassName: runtime class {0:?} cannot be looked up without an API server: remove runtimeClassName")]
    NoApiServer(String),
    /// The question failed.
    #[error("runtimeClassName: runtime class {class:?} cannot be looked up: {error}")]
    Failed {
        /// Its name.
        class: String,
        /// Why not.
        error: String,
    },
}

/// Those of a node without an API server: none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRuntimeClasses;

impl RuntimeClasses for NoRuntimeClasses {
    fn handler<'a>(&'a self, class: &'a str) -> BoxFuture<'a, Result<String, RuntimeClassError>> {
        std::future::ready(Err(RuntimeClassError::NoApiServer(class.to_owned()))).boxed()
    }
}
