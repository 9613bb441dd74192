//! The memory and the process ids of the node, and the memory and the processes of containers.

use std::collections::BTreeMap;
use std::io;

/// Measures the memory and the process ids of the node. Calls take microseconds: they read files of the kernel.
pub trait NodeMeter: Send + Sync + 'static {
    /// The memory of the machine, and the part of it that is not in the working set (upstream
    /// `makeMemoryAvailableSignalObservation`, kubelet 1.36).
    ///
    /// # Errors
    /// The error of the kernel.
    fn memory(&self) -> io::Result<ResourceSpace>;

    /// The number of process ids of the machine, and the number of those that no process or thread has.
    ///
    /// # Errors
    /// The error of the kernel.
    fn pids(&self) -> io::Result<ResourceSpace>;
}

/// The size of a resource and its available amount: bytes of memory or disk space, or a number of inodes or process ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceSpace {
    /// The size.
    pub capacity: u64,
    /// The available amount.
    pub available: u64,
}

impl ResourceSpace {
    /// A resource of this size, with this available amount.
    pub const fn new(capacity: u64, available: u64) -> Self {
        ResourceSpace { capacity, available }
    }
}

/// The memory and the processes of a pod's containers, by container name. A container whose usage is unknown is absent.
pub type ProcessUsage = BTreeMap<String, ContainerProcesses>;

/// The memory and the processes of one container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContainerProcesses {
    /// The working set in bytes: the memory that the kernel cannot reclaim without swapping.
    pub memory: u64,
    /// The number of processes; 0 if it is not known.
    pub processes: u64,
}
