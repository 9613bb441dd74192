//! What the kernel counts for a cgroup beside its usage.

/// What the kernel counts for a cgroup beside its [`Usage`](super::Usage), and its limits. A value that the kernel does not have is
/// absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupDetails {
    /// The path of the cgroup below the root of its tree, such as `/kubepods/burstable`.
    pub path: String,
    /// The CPU time.
    pub cpu: CpuDetails,
    /// The memory.
    pub memory: MemoryDetails,
    /// The traffic of each disk.
    pub disks: Vec<DiskTraffic>,
    /// The number of threads, with those of the cgroups below.
    pub threads: Option<u64>,
    /// The limits.
    pub limits: KernelLimits,
}

/// How the CPU time of a cgroup was used. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuDetails {
    /// The time in programs.
    pub user: Option<u64>,
    /// The time in the kernel.
    pub system: Option<u64>,
    /// The number of periods of the quota in which processes ran.
    pub periods: Option<u64>,
    /// The number of periods in which the quota was used up.
    pub throttled_periods: Option<u64>,
    /// How long processes waited for the next period.
    pub throttled: Option<u64>,
}

/// What the memory of a cgroup is used for, in bytes, and how often it was not enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryDetails {
    /// The file cache.
    pub cache: Option<u64>,
    /// The part of the file cache that processes have mapped.
    pub mapped: Option<u64>,
    /// The file cache that was used often.
    pub active_file: Option<u64>,
    /// The file cache that was used once.
    pub inactive_file: Option<u64>,
    /// The memory of the kernel.
    pub kernel: Option<u64>,
    /// The most memory that was in use at any time.
    pub peak: Option<u64>,
    /// How often the limit was reached.
    pub limit_hits: Option<u64>,
    /// The number of processes that the kernel killed because memory ran out.
    pub oom_kills: Option<u64>,
}

/// What the processes of a cgroup have read from a disk and written to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskTraffic {
    /// The major number of the disk.
    pub major: u32,
    /// The minor number of the disk.
    pub minor: u32,
    /// The bytes that were read.
    pub read_bytes: Option<u64>,
    /// The bytes that were written.
    pub written_bytes: Option<u64>,
    /// The number of reads.
    pub reads: Option<u64>,
    /// The number of writes.
    pub writes: Option<u64>,
}

/// The limits of a cgroup. Zero means that there is no limit, as in the metrics of cAdvisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelLimits {
    /// The share of the CPUs on the scale of cgroup version 1, from 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// The CPU time in each period, in microseconds. Absent without a quota.
    pub cpu_quota: Option<u64>,
    /// The period of the quota, in microseconds.
    pub cpu_period: Option<u64>,
    /// The memory in bytes.
    pub memory: Option<u64>,
    /// The memory in bytes that is reclaimed last.
    pub memory_reservation: Option<u64>,
    /// The swap space in bytes; with cgroup version 1, memory and swap space together.
    pub swap: Option<u64>,
    /// The number of threads.
    pub threads: Option<u64>,
}
