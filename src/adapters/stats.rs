//! The CPU time and the memory of containers, and the networks of pods, as runtimes measure them.

use futures_util::future::BoxFuture;
use podwright_actors::ids::{ContainerId, PodUid};
use podwright_actors::ports::{RuntimeError, UsedSpace};
use podwright_actors::time::Time;

/// A runtime that measures its containers.
pub trait RuntimeStats: Send + Sync + 'static {
    /// The usage of all running containers. A container whose usage is unknown is left out.
    ///
    /// # Errors
    /// [`RuntimeError`] if the runtime cannot measure.
    fn usage(&self) -> BoxFuture<'_, Result<Vec<ContainerUsage>, RuntimeError>>;

    /// The networks of all running pods. A pod that shares the network of the node is left out. By default, all pods share it.
    ///
    /// # Errors
    /// [`RuntimeError`] if the runtime cannot measure.
    fn networks(&self) -> BoxFuture<'_, Result<Vec<PodNetwork>, RuntimeError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}

/// The network interfaces of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// The pod.
    pub pod: PodUid,
    /// When the interfaces were measured.
    pub at: Time,
    /// The interface of the default route.
    pub default: Option<InterfaceUsage>,
    /// All interfaces.
    pub interfaces: Vec<InterfaceUsage>,
}

/// What a network interface has received and sent since it was created. A value that is not reported is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceUsage {
    /// The name.
    pub name: String,
    /// The bytes that were received.
    pub rx_bytes: Option<u64>,
    /// The errors while receiving.
    pub rx_errors: Option<u64>,
    /// The bytes that were sent.
    pub tx_bytes: Option<u64>,
    /// The errors while sending.
    pub tx_errors: Option<u64>,
}

/// The usage of one container. A value that the runtime does not report is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUsage {
    /// The container.
    pub id: ContainerId,
    /// When the usage was measured.
    pub at: Time,
    /// The CPU time since the start of the container, in nanoseconds.
    pub cpu: Option<u64>,
    /// The average number of cores in use, in billionths.
    pub nano_cores: Option<u64>,
    /// The memory.
    pub memory: MemoryUsage,
    /// The space that the writable layer uses.
    pub layer: Option<UsedSpace>,
}

/// The memory that a container uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The memory that the kernel cannot reclaim without swapping.
    pub working_set: Option<u64>,
    /// All memory, with file cache.
    pub used: Option<u64>,
    /// The memory without file cache.
    pub resident: Option<u64>,
    /// The memory that is available below the limit.
    pub available: Option<u64>,
    /// The number of page faults since the start.
    pub faults: Option<u64>,
    /// The number of page faults that read from disk.
    pub major_faults: Option<u64>,
    /// The swap space.
    pub swap: Option<u64>,
}

/// A runtime that measures nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoStats;

impl RuntimeStats for NoStats {
    fn usage(&self) -> BoxFuture<'_, Result<Vec<ContainerUsage>, RuntimeError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
