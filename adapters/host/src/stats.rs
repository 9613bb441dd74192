//! The usage of containers and pods, their networks and the file system of images, as runtimes measure them.

mod cgroup;
mod details;
mod device_names;
pub mod kernel_file;
pub mod net_dev;

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use podwright_model::ids::{ContainerId, PodUid, SandboxId};
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{FileSystemSpace, RuntimeError, UsedSpace};

pub use cgroup::{CgroupFiles, CgroupTree};
pub use details::{CgroupDetails, CpuDetails, DiskTraffic, KernelLimits, MemoryDetails};
pub use device_names::DeviceNames;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// CPU time, memory and pressure.
    Usage,
    /// Also the [details](Usage::details) of each cgroup, and the networks of the pods.
    Details,
}

/// A runtime that measures its containers.
pub trait RuntimeStats: Send + Sync + 'static {
    /// The usage of all running containers, and of these pods.
    ///
    /// # Errors
    /// [`RuntimeError`] if the runtime cannot measure.
    fn usage<'a>(
        &'a self,
        pods: &'a [Arc<PodObject>],
        depth: Depth,
    ) -> BoxFuture<'a, Result<RuntimeUsage, RuntimeError>>;

    /// The networks of all running pods. A pod that shares the network of the node is left out. By default, all pods share it.
    ///
    /// # Errors
    /// [`RuntimeError`] if the runtime cannot measure.
    fn networks(&self) -> BoxFuture<'_, Result<Vec<PodNetwork>, RuntimeError>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// The file system of the images. By default, there are no images.
    ///
    /// # Errors
    /// [`RuntimeError`] if the runtime cannot measure.
    fn image_file_system(&self) -> BoxFuture<'_, Result<Option<FileSystemUsage>, RuntimeError>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

/// What the containers of a runtime use.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeUsage {
    /// The running containers. A container whose usage is unknown is left out.
    pub containers: Vec<ContainerUsage>,
    /// The usage of the pods that have a cgroup of their own.
    pub pods: HashMap<PodUid, Usage>,
    /// The usage of the cgroup that contains all pods; `None` if there is none.
    pub all_pods: Option<Usage>,
    /// With [`Depth::Details`], the networks of the pods that do not share the network of the node.
    pub networks: Vec<PodNetwork>,
}

/// The usage of one container.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerUsage {
    /// The container.
    pub id: ContainerId,
    /// The CPU time and the memory.
    pub usage: Usage,
    /// The number of processes.
    pub processes: Option<u64>,
    /// The writable layer.
    pub layer: Option<FileSystemUsage>,
}

/// What the processes of a container, a pod or a node use. A value that is unknown is absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// When the usage was measured.
    pub at: Time,
    /// When the cgroup of the processes was created.
    pub created: Option<Time>,
    /// The CPU time since the start, in nanoseconds.
    pub cpu: Option<u64>,
    /// The average number of cores in use, in billionths.
    pub nano_cores: Option<u64>,
    /// The memory.
    pub memory: MemoryUsage,
    /// How long the processes waited for resources.
    pub pressure: Pressure,
    /// With [`Depth::Details`], what the kernel also counts for the cgroup of the processes.
    pub details: Option<Box<CgroupDetails>>,
}

impl Usage {
    /// A usage without values, measured now.
    pub fn now() -> Self {
        Usage { at: Time::from_timestamp(jiff::Timestamp::now()), ..Usage::default() }
    }

    /// This usage, with the values of `other` in place of those that are unknown.
    #[must_use]
    pub fn or(self, other: Usage) -> Self {
        let memory = if self.memory.working_set.is_some() { self.memory } else { other.memory };
        Usage {
            at: self.at,
            created: self.created.or(other.created),
            cpu: self.cpu.or(other.cpu),
            nano_cores: self.nano_cores.or(other.nano_cores),
            memory,
            pressure: Pressure {
                cpu: self.pressure.cpu.or(other.pressure.cpu),
                memory: self.pressure.memory.or(other.pressure.memory),
                io: self.pressure.io.or(other.pressure.io),
            },
            details: self.details.or(other.details),
        }
    }
}

/// The memory that processes use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The memory that the kernel cannot reclaim without swapping.
    pub working_set: Option<u64>,
    /// All memory, with file cache.
    pub used: Option<u64>,
    /// The memory without file cache.
    pub resident: Option<u64>,
    /// The memory that is available below the limit; `None` without a limit.
    pub available: Option<u64>,
    /// The number of page faults since the start.
    pub faults: Option<u64>,
    /// The number of page faults that read from disk.
    pub major_faults: Option<u64>,
    /// The swap space in use.
    pub swap: Option<u64>,
    /// The swap space that is available below the limit; `None` without a limit.
    pub swap_available: Option<u64>,
}

/// How long processes waited for each resource. A resource is absent if the kernel does not measure it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// The CPUs.
    pub cpu: Option<Stall>,
    /// The memory.
    pub memory: Option<Stall>,
    /// The disks.
    pub io: Option<Stall>,
}

/// How long processes waited for one resource (`Documentation/accounting/psi.rst` of Linux).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// While at least one process waited.
    pub some: StallTime,
    /// While all processes waited.
    pub full: StallTime,
}

/// How long processes waited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StallTime {
    /// The total waiting time since the start, in microseconds.
    pub total: u64,
    /// The waiting share of the last 10 s, in percent.
    pub avg10: f64,
    /// The waiting share of the last 60 s, in percent.
    pub avg60: f64,
    /// The waiting share of the last 300 s, in percent.
    pub avg300: f64,
}

/// The use of a file system for one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystemUsage {
    /// When the use was measured.
    pub at: Time,
    /// The space in use for the purpose.
    pub used: UsedSpace,
    /// The file system; `None` if the agent cannot measure it.
    pub space: Option<FileSystemSpace>,
}

/// The network interfaces of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// The pod.
    pub pod: PodUid,
    /// The sandbox that holds the network.
    pub sandbox: SandboxId,
    /// The path of the cgroup of the sandbox below the root of its tree; `None` if it is not known.
    pub cgroup: Option<String>,
    /// With [`Depth::Details`], the name of the image of the sandbox, if the runtime reports it.
    pub image: Option<String>,
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
    /// The packets that were received.
    pub rx_packets: Option<u64>,
    /// The errors while receiving.
    pub rx_errors: Option<u64>,
    /// The received packets that were dropped.
    pub rx_dropped: Option<u64>,
    /// The bytes that were sent.
    pub tx_bytes: Option<u64>,
    /// The packets that were sent.
    pub tx_packets: Option<u64>,
    /// The errors while sending.
    pub tx_errors: Option<u64>,
    /// The packets that were dropped before they were sent.
    pub tx_dropped: Option<u64>,
}

/// A runtime that measures nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoStats;

impl RuntimeStats for NoStats {
    fn usage<'a>(&'a self, _: &'a [Arc<PodObject>], _: Depth) -> BoxFuture<'a, Result<RuntimeUsage, RuntimeError>> {
        Box::pin(std::future::ready(Ok(RuntimeUsage::default())))
    }
}
