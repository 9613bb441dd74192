//! The usage of the machine.

use std::fs;

use jiff::Timestamp;
use rustix::param::clock_ticks_per_second;

use super::{CpuStats, MemoryStats, NodeStats, ResourceUsage, RlimitStats, SwapStats};
use crate::actors::ports::NodeMeter;
use crate::actors::time::Time;
use crate::adapters::node_meter::LinuxNodeMeter;
use crate::agent::machine::booted;

/// The CPU time, the memory and the process ids of the machine. A value that the kernel does not report is absent.
pub(super) fn node(now: Time) -> NodeStats {
    let (time, at) = (Timestamp::now().to_string(), Timestamp::now().as_millisecond());
    let meter = LinuxNodeMeter::new();
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let memory_info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let cpu = busy_ticks(&stat).map(|ticks| CpuStats {
        time: time.clone(),
        usage_nano_cores: None,
        usage_core_nano_seconds: Some(ticks.saturating_mul(1_000_000_000 / clock_ticks_per_second().max(1))),
        at,
    });
    let memory = meter.memory().ok().map(|space| MemoryStats {
        time: time.clone(),
        available_bytes: Some(space.available),
        working_set_bytes: Some(space.capacity.saturating_sub(space.available)),
        at,
        ..MemoryStats::default()
    });
    let swap = swap_used(&memory_info).map(|swap_usage_bytes| SwapStats { time: time.clone(), swap_usage_bytes, at });
    let rlimit = meter.pids().ok().map(|pids| RlimitStats {
        time,
        maxpid: pids.capacity,
        curproc: pids.capacity.saturating_sub(pids.available),
    });
    NodeStats {
        start_time: booted(now).to_timestamp().to_string(),
        used: ResourceUsage { cpu, memory, swap },
        rlimit,
        ..NodeStats::default()
    }
}

/// The ticks in which a CPU was neither idle nor waited for a disk, in the first line of `/proc/stat` (proc_stat(5)).
fn busy_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq, steal. The time of guests is part of the first two.
    let [user, nice, system, _idle, _waiting, rest @ ..] = &fields[..] else { return None };
    Some(user + nice + system + rest.iter().take(3).sum::<u64>())
}

/// The swap space in use in bytes; `None` without swap space.
fn swap_used(memory_info: &str) -> Option<u64> {
    let bytes = |key: &str| {
        let value = memory_info.lines().find_map(|line| line.strip_prefix(key))?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    let total = bytes("SwapTotal:").filter(|total| *total > 0)?;
    Some(total.saturating_sub(bytes("SwapFree:")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_no_usage() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 2000 8 16 32 64 128\ncpu0 1\n"), Some(63));
        assert_eq!(busy_ticks("cpu 1 2\n"), None);
    }

    #[test]
    fn swap_space_counts_only_if_there_is_some() {
        assert_eq!(swap_used("SwapTotal: 10 kB\nSwapFree: 4 kB\n"), Some(6 << 10));
        assert_eq!(swap_used("SwapTotal: 0 kB\nSwapFree: 0 kB\n"), None);
    }

    #[test]
    fn this_machine_is_measured() {
        let node = node(Time::from_secs(2_000_000_000));
        assert!(node.used.cpu.is_some() && node.used.memory.is_some() && node.rlimit.is_some(), "{node:?}");
    }
}
