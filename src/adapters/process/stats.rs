//! Measures the usage of running containers by their cgroups, or else by their processes.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use podwright_actors::time::Time;
use rustix::param::clock_ticks_per_second;
use rustix::process::Pid;

use super::CONTAINER_ENV;
use super::container::Container;
use super::procfs;
use super::record::{self, Cgroup, RunRecord, ShimRecord};
use crate::adapters::stats::{ContainerUsage, MemoryUsage};

/// The usage of a container; `None` if it was removed. Blocks.
pub(super) fn usage_of(container: &Container) -> Option<ContainerUsage> {
    let run: RunRecord = record::read(&container.files.run()).ok()?;
    let processes: Vec<Pid> = match run.cgroup.as_ref().and_then(|cgroup| cgroup.processes().ok().flatten()) {
        Some(processes) => processes.into_iter().filter_map(Pid::from_raw).collect(),
        None => {
            let shim = record::read::<ShimRecord>(&container.files.shim()).ok().map(|shim| shim.pid);
            procfs::of_container(CONTAINER_ENV, &run.id, run.user.uid, shim, container.init())
        }
    };
    let resident = procfs::usage_of(&processes).memory;
    let cgroup = run.cgroup.as_ref();
    let cpu = cgroup.and_then(|cgroup| cpu_of_cgroup(&cgroup.path));
    let number = |file: &str| fs::read_to_string(cgroup?.path.join(file)).ok()?.trim().parse::<u64>().ok();
    let working_set = cgroup.and_then(Cgroup::working_set).unwrap_or(resident);
    let limit = number("memory.max");
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Some(ContainerUsage {
        id: container.id.clone(),
        at: Time::from_nanos(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX)),
        cpu: Some(cpu.unwrap_or_else(|| processes.iter().map(|pid| cpu_of_process(*pid)).sum())),
        nano_cores: None,
        memory: MemoryUsage {
            working_set: Some(working_set),
            used: number("memory.current"),
            resident: Some(resident),
            available: limit.map(|limit| limit.saturating_sub(working_set)),
            swap: number("memory.swap.current"),
            ..MemoryUsage::default()
        },
        layer: None,
    })
}

/// The CPU time of a cgroup in nanoseconds.
fn cpu_of_cgroup(cgroup: &Path) -> Option<u64> {
    let stat = fs::read_to_string(cgroup.join("cpu.stat")).ok()?;
    let micros: u64 = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?.trim().parse().ok()?;
    micros.checked_mul(1000)
}

/// The CPU time of a process and of its children that have ended, in nanoseconds.
fn cpu_of_process(pid: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    ticks(&stat).unwrap_or(0).saturating_mul(1_000_000_000 / clock_ticks_per_second().max(1))
}

/// The fields `utime`, `stime`, `cutime` and `cstime` of `/proc/PID/stat` together (proc_pid_stat(5)).
fn ticks(stat: &str) -> Option<u64> {
    // The name of the command is in parentheses and may contain any character.
    let (_, fields) = stat.rsplit_once(") ")?;
    let times = fields.split(' ').skip(11).take(4).map(|field| field.parse::<u64>());
    times.sum::<Result<u64, _>>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_follows_the_name_of_the_command() {
        let stat = "7 (a) b c) S 1 7 7 0 -1 4194560 100 0 0 0 10 20 3 4 20 0 1 0 5 1 1";
        assert_eq!(ticks(stat), Some(37));
        assert_eq!(ticks("nonsense"), None);
    }

    #[test]
    fn cpu_time_of_a_cgroup_is_in_nanoseconds() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(cpu_of_cgroup(dir.path()), None);
        fs::write(dir.path().join("cpu.stat"), "usage_usec 12\nuser_usec 5\n").unwrap();
        assert_eq!(cpu_of_cgroup(dir.path()), Some(12_000));
    }
}
