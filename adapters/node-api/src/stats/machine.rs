//! The usage of the machine and of the agent.

use std::fs;

use rustix::param::clock_ticks_per_second;

use super::fields::RlimitStats;
use podwright_host::node_meter::LinuxNodeMeter;
use podwright_host::stats::kernel_file::{bytes, value};
use podwright_host::stats::{CgroupTree, Depth, MemoryUsage, Usage};
use podwright_ports::NodeMeter;

/// What the machine uses. Blocks.
pub(super) fn node(depth: Depth) -> Usage {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut usage = CgroupTree::of_machine().cgroup("/").usage(depth).unwrap_or_else(Usage::now);
    // Unlike a cgroup, this file also counts the machine if the agent is in a container.
    usage.cpu = busy_ticks(&read("/proc/stat"))
        .map(|ticks| ticks.saturating_mul(1_000_000_000 / clock_ticks_per_second().max(1)));
    usage.memory = node_memory(usage.memory, &read("/proc/meminfo"), &read("/proc/vmstat"));
    if let Ok(space) = LinuxNodeMeter::new().memory() {
        usage.memory.available = Some(space.available);
        usage.memory.working_set = Some(space.capacity.saturating_sub(space.available));
    }
    usage
}

/// What the agent uses; `None` if it has no cgroup of its own. Blocks.
pub(super) fn agent(depth: Depth) -> Option<Usage> {
    CgroupTree::of_machine().own()?.usage(depth)
}

/// The process ids of the machine.
pub(super) fn process_ids() -> Option<RlimitStats> {
    let (time, pids) = (jiff::Timestamp::now().to_string(), LinuxNodeMeter::new().pids().ok()?);
    Some(RlimitStats { time, maxpid: pids.capacity, curproc: pids.capacity.saturating_sub(pids.available) })
}

/// The memory of the root cgroup, with the swap space of the machine, and with the memory of the machine if the agent cannot read the
/// cgroup. The texts are those of `/proc/meminfo` and `/proc/vmstat`.
fn node_memory(root: MemoryUsage, info: &str, events: &str) -> MemoryUsage {
    let difference = |all: &str, free: &str| Some(bytes(info, all)?.saturating_sub(bytes(info, free)?));
    MemoryUsage {
        used: root.used.or_else(|| difference("MemTotal:", "MemFree:")),
        resident: root.resident.or_else(|| bytes(info, "AnonPages:")),
        faults: root.faults.or_else(|| value(events, "pgfault")),
        major_faults: root.major_faults.or_else(|| value(events, "pgmajfault")),
        swap: difference("SwapTotal:", "SwapFree:"),
        swap_available: bytes(info, "SwapFree:"),
        ..root
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

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "MemTotal: 100 kB\nMemFree: 30 kB\nAnonPages: 20 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n";
    const EVENTS: &str = "nr_free_pages 1\npgfault 50\npgmajfault 5\n";

    #[test]
    fn idle_time_is_no_usage() {
        assert_eq!(busy_ticks("cpu  1 2 4 1000 2000 8 16 32 64 128\ncpu0 1\n"), Some(63));
        assert_eq!(busy_ticks("cpu 1 2\n"), None);
    }

    #[test]
    fn swap_space_is_that_of_the_machine() {
        let swap = |info: &str| {
            let memory = node_memory(MemoryUsage { swap: Some(1), ..MemoryUsage::default() }, info, EVENTS);
            (memory.swap, memory.swap_available)
        };
        assert_eq!(swap(INFO), (Some(6 << 10), Some(4 << 10)));
        // A machine without swap space has none in use and none available.
        assert_eq!(swap("SwapTotal: 0 kB\nSwapFree: 0 kB\n"), (Some(0), Some(0)));
    }

    #[test]
    fn machine_is_measured_without_its_root_cgroup() {
        let memory = node_memory(MemoryUsage::default(), INFO, EVENTS);
        assert_eq!((memory.used, memory.resident), (Some(70 << 10), Some(20 << 10)));
        assert_eq!((memory.faults, memory.major_faults), (Some(50), Some(5)));
        let root = MemoryUsage { used: Some(1), resident: Some(2), faults: Some(3), major_faults: Some(4), ..memory };
        let memory = node_memory(root, INFO, EVENTS);
        assert_eq!((memory.used, memory.resident), (Some(1), Some(2)));
        assert_eq!((memory.faults, memory.major_faults), (Some(3), Some(4)));
    }

    #[test]
    fn this_machine_is_measured() {
        let Usage { cpu, memory, .. } = node(Depth::Usage);
        assert!(cpu > Some(0) && process_ids().is_some());
        let MemoryUsage { working_set, used, resident, available, faults, major_faults, swap, swap_available } = memory;
        for value in [working_set, used, resident, available, faults, major_faults, swap, swap_available] {
            assert!(value.is_some(), "{memory:?}");
        }
        assert!(working_set > Some(0) && available > Some(0), "{memory:?}");
    }
}
