//! The last known state of a pod in the runtime, answered from memory.

use serde::{Deserialize, Serialize};

use podwright_model::ids::PodUid;

/// Answers from memory. Never waits.
pub trait RuntimeView: Send + Sync + 'static {
    /// The last known state of a pod.
    fn observed(&self, uid: &PodUid) -> Observed;
}

/// The last known state of a pod in the runtime. "Stopped" and "not observed yet" are different answers.
// A recording has the index of the variant: another order of variants is another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Observed {
    /// The pod was not observed yet, or the observation failed.
    Never,
    /// A container ran or a sandbox was ready.
    Running,
    /// No container ran and no sandbox was ready.
    Stopped,
}

/// A view without observations, for engines whose host watches no runtime.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRuntimeView;

impl RuntimeView for NoRuntimeView {
    fn observed(&self, _uid: &PodUid) -> Observed {
        Observed::Never
    }
}
