//! Measures the memory and the process ids of the machine, and finds out when it booted.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use podwright_model::time::Time;
use podwright_ports::{NodeMeter, ResourceSpace};

use super::stats::CgroupTree;
use super::stats::kernel_file::bytes;

/// The meter of a machine with Linux. The working set of the machine is the memory of its root cgroup minus the inactive file cache,
/// as upstream computes it (cAdvisor). If the root cgroup cannot be read, the meter uses the kernel's estimate (`MemAvailable` in
/// proc_meminfo(5)).
#[derive(Clone, Debug)]
pub struct LinuxNodeMeter {
    proc: PathBuf,
    cgroups: CgroupTree,
}

impl LinuxNodeMeter {
    /// The meter of this machine.
    pub fn new() -> Self {
        LinuxNodeMeter { proc: "/proc".into(), cgroups: CgroupTree::of_machine() }
    }

    fn read<T>(&self, path: &str, parse: impl Fn(&str) -> Option<T>) -> io::Result<T> {
        let path = self.proc.join(path);
        let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let text = fs::read_to_string(&path).map_err(with_path)?;
        parse(&text).ok_or_else(|| with_path(io::Error::new(io::ErrorKind::InvalidData, "unexpected content")))
    }
}

impl Default for LinuxNodeMeter {
    fn default() -> Self {
        LinuxNodeMeter::new()
    }
}

impl NodeMeter for LinuxNodeMeter {
    fn memory(&self) -> io::Result<ResourceSpace> {
        let (total, estimate) =
            self.read("meminfo", |text| Some((bytes(text, "MemTotal:")?, bytes(text, "MemAvailable:")?)))?;
        let working_set = self.cgroups.cgroup("/").memory().working_set;
        let available = working_set.map_or(estimate, |used| total.saturating_sub(used));
        Ok(ResourceSpace::new(total, available))
    }

    fn pids(&self) -> io::Result<ResourceSpace> {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let most = self.read("sys/kernel/pid_max", number)?.min(self.read("sys/kernel/threads-max", number)?);
        // The fourth field is `RUNNABLE/ALL` threads (proc_loadavg(5)).
        let used = self.read("loadavg", |text| text.split(' ').nth(3)?.split_once('/')?.1.parse().ok())?;
        Ok(ResourceSpace::new(most, most.saturating_sub(used)))
    }
}

/// When the machine booted; [`Time::ZERO`] if the system does not report it.
pub fn booted(now: Time) -> Time {
    let text = fs::read_to_string("/proc/uptime").unwrap_or_default();
    let up = text.split(' ').next().and_then(|seconds| Duration::try_from_secs_f64(seconds.parse().ok()?).ok());
    let up = up.and_then(|up| u64::try_from(up.as_nanos()).ok());
    up.map_or(Time::ZERO, |up| Time::from_nanos(now.as_nanos().saturating_sub(up)))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn machine(files: &[(&str, &str)]) -> (TempDir, LinuxNodeMeter) {
        let root = TempDir::new().unwrap();
        let proc = [
            ("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  700 kB\n"),
            ("proc/loadavg", "0.20 0.18 0.12 1/80 11206\n"),
            ("proc/sys/kernel/pid_max", "4194304\n"),
            ("proc/sys/kernel/threads-max", "1000\n"),
        ];
        for (path, text) in proc.iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let cgroups = CgroupTree::at(&root.path().join("cgroup"));
        let meter = LinuxNodeMeter { proc: root.path().join("proc"), cgroups };
        (root, meter)
    }

    #[test]
    fn the_working_set_excludes_inactive_file_cache() {
        let kib = |text: &str| ResourceSpace::new(1000 << 10, text.parse::<u64>().unwrap() << 10);
        let (_root, meter) = machine(&[]);
        assert_eq!(meter.memory().unwrap(), kib("700"), "without a root cgroup");
        let v2 = ("cgroup/memory.stat", "anon 102400\nfile 204800\nkernel 9\ninactive_file 51200\n");
        let (_root, meter) = machine(&[v2]);
        assert_eq!(meter.memory().unwrap(), kib("750"));
        let (_root, meter) = machine(&[v2, ("cgroup/memory.current", "409600\n")]);
        assert_eq!(meter.memory().unwrap(), kib("650"), "in a container");
        let v1 = [
            ("cgroup/memory/memory.usage_in_bytes", "307200\n"),
            ("cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 102400\n"),
        ];
        let (_root, meter) = machine(&v1);
        assert_eq!(meter.memory().unwrap(), kib("800"));
    }

    #[test]
    fn threads_count_as_used_process_ids() {
        let (root, meter) = machine(&[]);
        assert_eq!(meter.pids().unwrap(), ResourceSpace::new(1000, 920));
        fs::write(root.path().join("proc/loadavg"), "none").unwrap();
        let error = meter.pids().unwrap_err().to_string();
        assert!(error.contains("loadavg: unexpected content"), "{error}");
    }

    #[test]
    fn this_machine_can_be_measured() {
        let meter = LinuxNodeMeter::new();
        for space in [meter.memory().unwrap(), meter.pids().unwrap()] {
            assert!(space.available > 0 && space.available < space.capacity, "{space:?}");
        }
    }
}
