//! Runtime classes: by which handler of the container runtime a pod is run.

use std::collections::BTreeMap;

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
    #[error(
        "runtimeClassName: there is no runtime class {0:?}: create it (on a node without an API server, start the agent with \
         --runtime-class {0}=HANDLER), or correct the name"
    )]
    Missing(String),
    /// The question failed.
    #[error("runtimeClassName: runtime class {class:?} cannot be looked up: {error}")]
    Failed {
        /// Its name.
        class: String,
        /// Why not.
        error: String,
    },
}

/// Those of a node without an API server: the handlers of the classes that it was told of, by name.
#[derive(Clone, Debug, Default)]
pub struct NamedRuntimeClasses(pub BTreeMap<String, String>);

impl RuntimeClasses for NamedRuntimeClasses {
    fn handler<'a>(&'a self, class: &'a str) -> BoxFuture<'a, Result<String, RuntimeClassError>> {
        let handler = self.0.get(class).cloned();
        std::future::ready(handler.ok_or_else(|| RuntimeClassError::Missing(class.to_owned()))).boxed()
    }
}
