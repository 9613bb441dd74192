//! Measures the usage of running containers by their cgroups, or else by their processes.

use std::fs;
use std::ops::RangeInclusive;
use std::sync::Arc;

use podwright_host::stats::kernel_file::bytes;
use podwright_host::stats::{CgroupFiles, ContainerUsage, Depth, MemoryUsage, RuntimeUsage, Usage};
use rustix::param::clock_ticks_per_second;
use rustix::process::Pid;

use super::CONTAINER_ENV;
use super::container::Container;
use super::procfs;
use super::record::{self, RunRecord, ShimRecord};

/// The usage of containers, and of the cgroup that contains their cgroups. A container that was removed is left out. Blocks.
pub(super) fn usage_of(running: &[Arc<Container>], depth: Depth) -> RuntimeUsage {
    let runs = running.iter().filter_map(|container| Some((container, record::read(&container.files.run()).ok()?)));
    let runs: Vec<(&Arc<Container>, RunRecord)> = runs.collect();
    let parent = runs.iter().find_map(|(_, run)| Some(run.cgroup.as_ref()?.path.parent()?.to_owned()));
    RuntimeUsage {
        containers: runs.iter().map(|(container, run)| of_container(container, run, depth)).collect(),
        all_pods: parent.and_then(|parent| CgroupFiles::unified(&parent).usage(depth)),
        ..RuntimeUsage::default()
    }
}

fn of_container(container: &Container, run: &RunRecord, depth: Depth) -> ContainerUsage {
    let processes = processes_of(container, run);
    let counted = run.cgroup.as_ref().and_then(|cgroup| cgroup.files().usage(depth)).unwrap_or_else(Usage::now);
    // A cgroup without a memory controller counts the CPU time only.
    let is_complete = counted.cpu.is_some() && counted.memory.working_set.is_some();
    let mut usage = if is_complete { counted } else { counted.or(of_processes(&processes)) };
    container.counts.lock().raise(&mut usage);
    ContainerUsage { id: container.id.clone(), usage, processes: Some(processes.len() as u64), layer: None }
}

/// The highest counts of a container so far. The sum over its processes decreases when one of them ends, and collectors of metrics take a
/// lower count for a new start from zero.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HighestCounts {
    cpu: Option<u64>,
    faults: Option<u64>,
    major_faults: Option<u64>,
}

impl HighestCounts {
    /// Replaces the counts of a usage that are lower than before.
    fn raise(&mut self, usage: &mut Usage) {
        let Usage { cpu, memory: MemoryUsage { faults, major_faults, .. }, .. } = usage;
        for (highest, count) in
            [(&mut self.cpu, cpu), (&mut self.faults, faults), (&mut self.major_faults, major_faults)]
        {
            *highest = (*highest).max(*count);
            *count = *highest;
        }
    }
}

/// The processes of a container: those in its cgroup. Without one, those that belong to it by their PID namespace, their mark or their
/// parent.
pub(super) fn processes_of(container: &Container, run: &RunRecord) -> Vec<Pid> {
    match run.cgroup.as_ref().and_then(|cgroup| cgroup.processes().ok().flatten()) {
        Some(processes) => processes.into_iter().filter_map(Pid::from_raw).collect(),
        None => {
            let shim = record::read::<ShimRecord>(&container.files.shim()).ok().map(|shim| shim.pid);
            procfs::of_container(CONTAINER_ENV, &run.id, run.user.uid, shim, container.init())
        }
    }
}

/// What processes use, and what their children that have ended have used.
fn of_processes(processes: &[Pid]) -> Usage {
    let read = |pid: &Pid, file: &str| {
        fs::read_to_string(format!("/proc/{}/{file}", pid.as_raw_nonzero())).unwrap_or_default()
    };
    let stats: Vec<String> = processes.iter().map(|pid| read(pid, "stat")).collect();
    let statuses: Vec<String> = processes.iter().map(|pid| read(pid, "status")).collect();
    let of_stat = |numbers: RangeInclusive<usize>| {
        stats.iter().filter_map(|stat| fields(stat, numbers.clone())).fold(0, u64::saturating_add)
    };
    let of_status = |key: &str| statuses.iter().filter_map(|status| bytes(status, key)).fold(0, u64::saturating_add);
    let own = procfs::usage_of(processes).memory;
    Usage {
        cpu: Some(of_stat(CPU_TICKS).saturating_mul(1_000_000_000 / clock_ticks_per_second().max(1))),
        memory: MemoryUsage {
            working_set: Some(own),
            used: Some(of_status("VmRSS:").max(own)),
            resident: Some(own),
            faults: Some(of_stat(FAULTS)),
            major_faults: Some(of_stat(MAJOR_FAULTS)),
            swap: Some(of_status("VmSwap:")),
            ..MemoryUsage::default()
        },
        ..Usage::now()
    }
}

/// The fields `utime`, `stime`, `cutime` and `cstime` of `/proc/PID/stat` (proc_pid_stat(5)).
const CPU_TICKS: RangeInclusive<usize> = 14..=17;
/// The fields `minflt`, `cminflt`, `majflt` and `cmajflt`.
const FAULTS: RangeInclusive<usize> = 10..=13;
/// The fields `majflt` and `cmajflt`.
const MAJOR_FAULTS: RangeInclusive<usize> = 12..=13;

/// The sum of the fields of `/proc/PID/stat` with these numbers, of which the lowest possible one is 3.
fn fields(stat: &str, numbers: RangeInclusive<usize>) -> Option<u64> {
    // The name of the command is in parentheses and may contain any character.
    let (_, fields) = stat.rsplit_once(") ")?;
    let chosen = fields.split(' ').skip(numbers.start() - 3).take(numbers.count());
    chosen.map(|field| field.parse::<u64>()).sum::<Result<u64, _>>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_and_faults_follow_the_name_of_the_command() {
        let stat = "7 (a) b c) S 1 7 7 0 -1 4194560 100 20 3 4 10 20 3 4 20 0 1 0 5 1 1";
        assert_eq!(fields(stat, CPU_TICKS), Some(37));
        assert_eq!((fields(stat, FAULTS), fields(stat, MAJOR_FAULTS)), (Some(127), Some(7)));
        assert_eq!(fields("nonsense", CPU_TICKS), None);
    }

    #[test]
    fn counts_of_a_container_never_decrease() {
        let mut highest = HighestCounts::default();
        let raised = [(Some(9), Some(4)), (Some(7), None), (None, Some(6))].map(|(cpu, faults)| {
            let memory = MemoryUsage { faults, major_faults: faults, working_set: cpu, ..MemoryUsage::default() };
            let mut usage = Usage { cpu, memory, ..Usage::default() };
            highest.raise(&mut usage);
            let MemoryUsage { faults, major_faults, working_set, .. } = usage.memory;
            [usage.cpu, faults, major_faults, working_set]
        });
        let expected = [[Some(9), Some(4), Some(4), Some(9)], [Some(9), Some(4), Some(4), Some(7)]];
        assert_eq!(raised[..2], expected);
        assert_eq!(raised[2], [Some(9), Some(6), Some(6), None]);
    }

    #[test]
    fn processes_without_a_cgroup_have_every_value_but_a_limit() {
        let Usage { cpu, memory, .. } = of_processes(&[rustix::process::getpid()]);
        assert!(cpu.is_some() && memory.faults > Some(0), "{memory:?}");
        assert!(memory.working_set > Some(0) && memory.working_set <= memory.used, "{memory:?}");
        assert!(memory.resident.is_some() && memory.major_faults.is_some() && memory.swap.is_some(), "{memory:?}");
        assert_eq!((memory.available, memory.swap_available), (None, None));
    }
}
