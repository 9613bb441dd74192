//! The resources that a node can lack, and the conditions of the node that result. Pure.

use podwright_metrics::EvictionSignal;

use crate::texts::evictions::{self, EPHEMERAL_STORAGE, INODES, MEMORY, PIDS};

/// The measured value that a threshold limits (`eviction/api/types.go`, kubelet 1.36). The order of the variants is the order in
/// which the resources are reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Signal {
    MemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    PidAvailable,
}

/// The kubelet's signals that this node does not observe. The kubelet itself replaces thresholds of
/// `containerfs` with those of `nodefs` or `imagefs` (`UpdateContainerFsThresholds`, kubelet 1.36).
pub(super) const UNOBSERVED: [&str; 3] =
    ["allocatableMemory.available", "containerfs.available", "containerfs.inodesFree"];

impl Signal {
    pub(super) const ALL: [Signal; 6] = [
        Signal::MemoryAvailable,
        Signal::NodeFsAvailable,
        Signal::NodeFsInodesFree,
        Signal::ImageFsAvailable,
        Signal::ImageFsInodesFree,
        Signal::PidAvailable,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Signal::MemoryAvailable => "memory.available",
            Signal::NodeFsAvailable => "nodefs.available",
            Signal::NodeFsInodesFree => "nodefs.inodesFree",
            Signal::ImageFsAvailable => "imagefs.available",
            Signal::ImageFsInodesFree => "imagefs.inodesFree",
            Signal::PidAvailable => "pid.available",
        }
    }

    /// The label in metrics.
    pub(super) const fn metric(self) -> EvictionSignal {
        match self {
            Signal::MemoryAvailable => EvictionSignal::MemoryAvailable,
            Signal::NodeFsAvailable => EvictionSignal::NodeFsAvailable,
            Signal::NodeFsInodesFree => EvictionSignal::NodeFsInodesFree,
            Signal::ImageFsAvailable => EvictionSignal::ImageFsAvailable,
            Signal::ImageFsInodesFree => EvictionSignal::ImageFsInodesFree,
            Signal::PidAvailable => EvictionSignal::PidAvailable,
        }
    }

    /// Whether the signal is about the disk of images.
    pub(crate) const fn is_of_images(self) -> bool {
        matches!(self, Signal::ImageFsAvailable | Signal::ImageFsInodesFree)
    }

    /// Whether the signal is about files and not about bytes.
    pub(crate) const fn is_of_inodes(self) -> bool {
        matches!(self, Signal::NodeFsInodesFree | Signal::ImageFsInodesFree)
    }

    /// Whether the signal counts bytes. Other signals count files or processes.
    pub(super) const fn is_in_bytes(self) -> bool {
        !self.is_of_inodes() && !matches!(self, Signal::PidAvailable)
    }

    /// The resource in messages.
    pub(crate) const fn resource(self) -> &'static str {
        match self.pressure() {
            Pressure::Memory => MEMORY,
            Pressure::Pid => PIDS,
            Pressure::Disk if self.is_of_inodes() => INODES,
            Pressure::Disk => EPHEMERAL_STORAGE,
        }
    }

    /// The condition of a node that lacks the resource.
    pub(crate) const fn pressure(self) -> Pressure {
        match self {
            Signal::MemoryAvailable => Pressure::Memory,
            Signal::PidAvailable => Pressure::Pid,
            Signal::NodeFsAvailable
            | Signal::NodeFsInodesFree
            | Signal::ImageFsAvailable
            | Signal::ImageFsInodesFree => Pressure::Disk,
        }
    }
}

/// A condition of a node that lacks a resource (`core/v1`, `NodeConditionType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Pressure {
    /// Memory.
    Memory,
    /// Disk space or inodes.
    Disk,
    /// Process ids.
    Pid,
}

impl Pressure {
    /// Every condition, in the order in which texts list them.
    pub const ALL: [Pressure; 3] = [Pressure::Memory, Pressure::Disk, Pressure::Pid];

    /// The condition's type in the API, such as `DiskPressure`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Pressure::Memory => evictions::MEMORY_PRESSURE,
            Pressure::Disk => evictions::DISK_PRESSURE,
            Pressure::Pid => evictions::PID_PRESSURE,
        }
    }

    /// The condition's reason and message, for a node that has it or does not have it.
    pub(super) const fn texts(self, is_present: bool) -> (&'static str, &'static str) {
        match (self, is_present) {
            (Pressure::Memory, true) => evictions::INSUFFICIENT_MEMORY,
            (Pressure::Memory, false) => evictions::SUFFICIENT_MEMORY,
            (Pressure::Disk, true) => evictions::HAS_DISK_PRESSURE,
            (Pressure::Disk, false) => evictions::HAS_NO_DISK_PRESSURE,
            (Pressure::Pid, true) => evictions::INSUFFICIENT_PID,
            (Pressure::Pid, false) => evictions::SUFFICIENT_PID,
        }
    }
}
