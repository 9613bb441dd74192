//! The metrics of cgroups. Pure.
//!
//! Names, types and labels are those of cAdvisor in a kubelet (cAdvisor, `metrics/prometheus.go`; `pkg/kubelet/server/server.go`, 1.36).

use podwright_host::stats::{CgroupDetails, DiskTraffic, InterfaceUsage, KernelLimits, Stall, Usage};
use podwright_model::time::Time;

use super::encode::{Head, Kind, Series};

/// A cgroup with what was measured of it. What is unknown has no series.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    /// The labels of all its series.
    pub(super) labels: String,
    /// When it was measured.
    pub(super) at: Time,
    /// When its processes started.
    pub(super) started: Option<Time>,
    pub(super) usage: Option<&'a Usage>,
    pub(super) processes: Option<u64>,
    pub(super) interfaces: &'a [InterfaceUsage],
    /// The disks that it reads and writes, by name.
    pub(super) disks: Vec<(String, DiskTraffic)>,
    pub(super) file_system: Option<FileSystem>,
}

/// The file system of a cgroup, and what its processes have stored there.
#[derive(Debug)]
pub(super) struct FileSystem {
    pub(super) device: String,
    pub(super) used: u64,
    pub(super) capacity: u64,
    pub(super) inodes: u64,
    pub(super) inodes_free: u64,
}

impl Subject<'_> {
    fn used(&self, of: fn(&Usage) -> Option<u64>) -> Option<u64> {
        of(self.usage?)
    }

    fn stall(&self, of: fn(&Usage) -> Option<Stall>) -> Option<Stall> {
        of(self.usage?)
    }

    fn detail(&self, of: fn(&CgroupDetails) -> Option<u64>) -> Option<u64> {
        of(self.usage?.details.as_deref()?)
    }

    fn limit(&self, of: fn(&KernelLimits) -> Option<u64>) -> Option<u64> {
        of(&self.usage?.details.as_deref()?.limits)
    }

    fn each_disk(&self, out: &mut Series<'_>, of: fn(&DiskTraffic) -> Option<u64>) {
        self.disks.iter().for_each(|(name, traffic)| out.number(&[("device", name.as_str())], of(traffic)));
    }

    fn each_interface(&self, out: &mut Series<'_>, of: fn(&InterfaceUsage) -> Option<u64>) {
        self.interfaces.iter().for_each(|found| out.number(&[("interface", found.name.as_str())], of(found)));
    }

    fn each_file_system(&self, out: &mut Series<'_>, of: fn(&FileSystem) -> u64) {
        self.file_system.iter().for_each(|found| out.number(&[("device", found.device.as_str())], Some(of(found))));
    }

    /// Page faults have the same number in both scopes, as with a kubelet.
    fn faults(&self, out: &mut Series<'_>, kind: &str, count: Option<u64>) {
        for scope in ["container", "hierarchy"] {
            out.number(&[("failure_type", kind), ("scope", scope)], count);
        }
    }
}

/// Appends all metrics of the cgroups.
pub(super) fn write(text: &mut String, subjects: &[Subject<'_>]) {
    for family in FAMILIES {
        let mut series = Series::new(text, family.head);
        for subject in subjects {
            series.of(&subject.labels, family.is_sampled.then_some(subject.at));
            (family.write)(subject, &mut series);
        }
    }
}

/// A metric, and how its series are written.
struct Family {
    head: Head,
    /// Whether its series have the time of the measurement.
    is_sampled: bool,
    write: fn(&Subject<'_>, &mut Series<'_>),
}

const fn counter(name: &'static str, help: &'static str, write: fn(&Subject<'_>, &mut Series<'_>)) -> Family {
    Family { head: Head { name, kind: Kind::Counter, help }, is_sampled: true, write }
}

const fn gauge(name: &'static str, help: &'static str, write: fn(&Subject<'_>, &mut Series<'_>)) -> Family {
    Family { head: Head { name, kind: Kind::Gauge, help }, is_sampled: true, write }
}

/// A setting, which is not measured.
const fn setting(name: &'static str, help: &'static str, write: fn(&Subject<'_>, &mut Series<'_>)) -> Family {
    Family { head: Head { name, kind: Kind::Gauge, help }, is_sampled: false, write }
}

const FAMILIES: &[Family] = &[
    counter("container_cpu_usage_seconds_total", "CPU time that was used", |it, out| {
        out.nanos(&[("cpu", "total")], it.used(|found| found.cpu));
    }),
    counter("container_cpu_user_seconds_total", "CPU time that was used by programs", |it, out| {
        out.nanos(&[], it.detail(|found| found.cpu.user));
    }),
    counter("container_cpu_system_seconds_total", "CPU time that was used by the kernel", |it, out| {
        out.nanos(&[], it.detail(|found| found.cpu.system));
    }),
    counter("container_cpu_cfs_periods_total", "Periods of the CPU quota in which processes ran", |it, out| {
        out.number(&[], it.detail(|found| found.limits.cpu_quota.and(found.cpu.periods)));
    }),
    counter("container_cpu_cfs_throttled_periods_total", "Periods in which the CPU quota was used up", |it, out| {
        out.number(&[], it.detail(|found| found.limits.cpu_quota.and(found.cpu.throttled_periods)));
    }),
    counter("container_cpu_cfs_throttled_seconds_total", "Time of waiting for the next CPU quota", |it, out| {
        out.nanos(&[], it.detail(|found| found.limits.cpu_quota.and(found.cpu.throttled)));
    }),
    gauge("container_memory_usage_bytes", "Memory in use, with file cache", |it, out| {
        out.number(&[], it.used(|found| found.memory.used));
    }),
    gauge("container_memory_working_set_bytes", "Memory in use, without file cache that was used once", |it, out| {
        out.number(&[], it.used(|found| found.memory.working_set));
    }),
    gauge("container_memory_rss", "Memory in use, without file cache", |it, out| {
        out.number(&[], it.used(|found| found.memory.resident));
    }),
    gauge("container_memory_cache", "File cache", |it, out| {
        out.number(&[], it.detail(|found| found.memory.cache));
    }),
    gauge("container_memory_swap", "Swap space in use", |it, out| {
        out.number(&[], it.used(|found| found.memory.swap));
    }),
    gauge("container_memory_mapped_file", "File cache that processes have mapped", |it, out| {
        out.number(&[], it.detail(|found| found.memory.mapped));
    }),
    gauge("container_memory_total_active_file_bytes", "File cache that was used often", |it, out| {
        out.number(&[], it.detail(|found| found.memory.active_file));
    }),
    gauge("container_memory_total_inactive_file_bytes", "File cache that was used once", |it, out| {
        out.number(&[], it.detail(|found| found.memory.inactive_file));
    }),
    gauge("container_memory_kernel_usage", "Memory of the kernel, in bytes", |it, out| {
        out.number(&[], it.detail(|found| found.memory.kernel));
    }),
    gauge("container_memory_max_usage_bytes", "Most memory that was in use at any time", |it, out| {
        out.number(&[], it.detail(|found| found.memory.peak));
    }),
    counter("container_memory_failcnt", "How often the memory limit was reached", |it, out| {
        out.number(&[], it.detail(|found| found.memory.limit_hits));
    }),
    counter("container_memory_failures_total", "Page faults", |it, out| {
        it.faults(out, "pgfault", it.used(|found| found.memory.faults));
        it.faults(out, "pgmajfault", it.used(|found| found.memory.major_faults));
    }),
    counter("container_oom_events_total", "Processes that were killed because memory ran out", |it, out| {
        out.number(&[], it.detail(|found| found.memory.oom_kills));
    }),
    gauge("container_processes", "Processes", |it, out| out.number(&[], it.processes)),
    gauge("container_threads", "Threads", |it, out| out.number(&[], it.detail(|found| found.threads))),
    gauge("container_threads_max", "Limit of threads; 0 without a limit", |it, out| {
        out.number(&[], it.limit(|found| found.threads));
    }),
    counter("container_pressure_cpu_waiting_seconds_total", "Time in which a process waited for a CPU", |it, out| {
        out.micros(&[], it.stall(|found| found.pressure.cpu).map(|stall| stall.some.total));
    }),
    counter(
        "container_pressure_cpu_stalled_seconds_total",
        "Time in which all processes waited for a CPU",
        |it, out| {
            out.micros(&[], it.stall(|found| found.pressure.cpu).map(|stall| stall.full.total));
        },
    ),
    counter(
        "container_pressure_memory_waiting_seconds_total",
        "Time in which a process waited for memory",
        |it, out| {
            out.micros(&[], it.stall(|found| found.pressure.memory).map(|stall| stall.some.total));
        },
    ),
    counter(
        "container_pressure_memory_stalled_seconds_total",
        "Time in which all processes waited for memory",
        |it, out| {
            out.micros(&[], it.stall(|found| found.pressure.memory).map(|stall| stall.full.total));
        },
    ),
    counter("container_pressure_io_waiting_seconds_total", "Time in which a process waited for a disk", |it, out| {
        out.micros(&[], it.stall(|found| found.pressure.io).map(|stall| stall.some.total));
    }),
    counter(
        "container_pressure_io_stalled_seconds_total",
        "Time in which all processes waited for a disk",
        |it, out| {
            out.micros(&[], it.stall(|found| found.pressure.io).map(|stall| stall.full.total));
        },
    ),
    counter("container_fs_reads_total", "Reads from a disk", |it, out| it.each_disk(out, |found| found.reads)),
    counter("container_fs_writes_total", "Writes to a disk", |it, out| it.each_disk(out, |found| found.writes)),
    counter("container_fs_reads_bytes_total", "Bytes that were read from a disk", |it, out| {
        it.each_disk(out, |found| found.read_bytes);
    }),
    counter("container_fs_writes_bytes_total", "Bytes that were written to a disk", |it, out| {
        it.each_disk(out, |found| found.written_bytes);
    }),
    gauge("container_fs_usage_bytes", "Bytes that are stored in a file system", |it, out| {
        it.each_file_system(out, |found| found.used);
    }),
    gauge("container_fs_limit_bytes", "Size of a file system", |it, out| {
        it.each_file_system(out, |found| found.capacity);
    }),
    gauge("container_fs_inodes_total", "Inodes of a file system", |it, out| {
        it.each_file_system(out, |found| found.inodes);
    }),
    gauge("container_fs_inodes_free", "Free inodes of a file system", |it, out| {
        it.each_file_system(out, |found| found.inodes_free);
    }),
    counter("container_network_receive_bytes_total", "Bytes that were received", |it, out| {
        it.each_interface(out, |found| found.rx_bytes);
    }),
    counter("container_network_receive_packets_total", "Packets that were received", |it, out| {
        it.each_interface(out, |found| found.rx_packets);
    }),
    counter("container_network_receive_packets_dropped_total", "Received packets that were dropped", |it, out| {
        it.each_interface(out, |found| found.rx_dropped);
    }),
    counter("container_network_receive_errors_total", "Errors while receiving", |it, out| {
        it.each_interface(out, |found| found.rx_errors);
    }),
    counter("container_network_transmit_bytes_total", "Bytes that were sent", |it, out| {
        it.each_interface(out, |found| found.tx_bytes);
    }),
    counter("container_network_transmit_packets_total", "Packets that were sent", |it, out| {
        it.each_interface(out, |found| found.tx_packets);
    }),
    counter(
        "container_network_transmit_packets_dropped_total",
        "Packets that were dropped before sending",
        |it, out| {
            it.each_interface(out, |found| found.tx_dropped);
        },
    ),
    counter("container_network_transmit_errors_total", "Errors while sending", |it, out| {
        it.each_interface(out, |found| found.tx_errors);
    }),
    setting("container_spec_cpu_period", "Period of the CPU quota in microseconds", |it, out| {
        out.number(&[], it.limit(|found| found.cpu_period));
    }),
    setting("container_spec_cpu_quota", "CPU time in each period in microseconds", |it, out| {
        out.number(&[], it.limit(|found| found.cpu_quota));
    }),
    setting("container_spec_cpu_shares", "Share of the CPUs, from 2 to 262144", |it, out| {
        out.number(&[], it.limit(|found| found.cpu_shares));
    }),
    setting("container_spec_memory_limit_bytes", "Limit of the memory; 0 without a limit", |it, out| {
        out.number(&[], it.limit(|found| found.memory));
    }),
    setting("container_spec_memory_reservation_limit_bytes", "Memory that is reclaimed last; 0 if none", |it, out| {
        out.number(&[], it.limit(|found| found.memory_reservation));
    }),
    setting("container_spec_memory_swap_limit_bytes", "Limit of the swap space; 0 without a limit", |it, out| {
        out.number(&[], it.limit(|found| found.swap));
    }),
    setting("container_start_time_seconds", "Unix time of the start", |it, out| {
        out.number(&[], it.started.map(seconds));
    }),
    gauge("container_last_seen", "Unix time of the measurement", |it, out| {
        out.number(&[], Some(seconds(it.at)));
    }),
];

fn seconds(time: Time) -> u64 {
    time.as_nanos() / 1_000_000_000
}

#[cfg(test)]
mod tests;
