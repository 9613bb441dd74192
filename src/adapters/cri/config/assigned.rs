//! What was found out or set aside for one pod before its sandbox is made.

use crate::adapters::cri::v1;

/// What a pod was given by name or number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Assigned {
    /// The runtime handler of its runtime class; the default one has no name.
    pub(crate) handler: String,
    /// The ids of the node that stand for the pod's own; `None` if it has those of the node.
    pub(crate) users: Option<HostIds>,
}

/// A range of ids of the node, for users and groups alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostIds {
    /// The one that stands for the pod's root.
    pub(crate) first: u32,
}

impl HostIds {
    /// How many a pod has (upstream `userNsLength`, kubelet 1.36).
    pub(crate) const LENGTH: u32 = 65_536;

    /// As the runtime is told.
    pub(crate) fn mapping(self) -> v1::IdMapping {
        v1::IdMapping { host_id: self.first, container_id: 0, length: HostIds::LENGTH }
    }
}
