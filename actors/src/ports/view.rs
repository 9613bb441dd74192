//! What was last seen of a pod in the runtime, answered at once.

use crate::ids::PodUid;

/// Answers from memory, never waits.
pub trait RuntimeView: Send + Sync + 'static {
    /// What was last seen of a pod.
    fn observed(&self, uid: &PodUid) -> Observed;
}

/// What was last seen of a pod. "Nothing runs" and "not looked yet" are different answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Observed {
    /// Nobody looked yet, or looking failed.
    Never,
    /// A container ran or a sandbox was ready.
    Running,
    /// Neither.
    Stopped,
}

/// For engines whose host looks at no runtime: nothing was ever observed.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRuntimeView;

impl RuntimeView for NoRuntimeView {
    fn observed(&self, _uid: &PodUid) -> Observed {
        Observed::Never
    }
}
