//! Reads what a cgroup uses from the files of the kernel: cgroups(7), `Documentation/admin-guide/cgroup-v2.rst` and
//! `Documentation/admin-guide/cgroup-v1` of Linux.
//!
//! The meaning of each value is that of a kubelet (cAdvisor, `container/libcontainer/handler.go` and `container/common/helpers.go`).

use std::fs;
use std::path::{Path, PathBuf};

use podwright_model::time::Time;

use super::kernel_file::value;
use super::{MemoryUsage, Pressure, Stall, StallTime, Usage};

/// Reads a file of a cgroup by its name. `None` if the kernel does not have the file, or does not permit to read it.
type Read<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A limit above this value means that there is none: the kernel rounds the largest value to pages (`isMemoryUnlimited`, kubelet 1.36).
const UNLIMITED: u64 = 1 << 62;

/// The cgroups of a machine.
#[derive(Clone, Debug)]
pub struct CgroupTree {
    mount: PathBuf,
    is_unified: bool,
}

impl CgroupTree {
    /// The cgroups of this machine.
    pub fn of_machine() -> Self {
        CgroupTree::at(Path::new("/sys/fs/cgroup"))
    }

    /// The cgroups of the file system that is mounted at `mount`.
    pub fn at(mount: &Path) -> Self {
        // Version 1 has one tree for each controller.
        let is_unified = !mount.join("memory/memory.usage_in_bytes").exists();
        CgroupTree { mount: mount.to_owned(), is_unified }
    }

    /// The cgroup of this path below the root, such as `/` and `/kubepods/burstable`.
    pub fn cgroup(&self, path: &str) -> CgroupFiles {
        let below = |tree: PathBuf| tree.join(path.trim_start_matches('/'));
        if self.is_unified {
            CgroupFiles::Unified(below(self.mount.clone()))
        } else {
            CgroupFiles::Split { cpu: below(self.mount.join("cpuacct")), memory: below(self.mount.join("memory")) }
        }
    }

    /// The cgroup of this process. `None` if its CPU time and its memory are counted in different cgroups: one of them also counts
    /// other processes (`getContainer`, `pkg/kubelet/cm/container_manager_linux.go`, 1.36).
    pub fn own(&self) -> Option<CgroupFiles> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        own_path(&text, self.is_unified).map(|path| self.cgroup(path))
    }
}

/// The path of a process's cgroup in the text of `/proc/PID/cgroup`.
fn own_path(text: &str, is_unified: bool) -> Option<&str> {
    let path_of = |controller: &str| {
        text.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers.split(',').any(|found| found == controller).then_some(path)
        })
    };
    let path =
        if is_unified { path_of("")? } else { path_of("memory").filter(|path| path_of("cpuacct") == Some(*path))? };
    // Such a cgroup is outside of the tree that this process sees.
    (!path.starts_with("/..")).then_some(path)
}

/// The directories of one cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupFiles {
    /// The directory of version 2.
    Unified(PathBuf),
    /// The directories of the controllers `cpuacct` and `memory` of version 1.
    Split {
        /// Counts CPU time.
        cpu: PathBuf,
        /// Counts memory.
        memory: PathBuf,
    },
}

impl CgroupFiles {
    /// What the cgroup uses at present; `None` if the cgroup does not exist. Blocks.
    pub fn usage(&self) -> Option<Usage> {
        let usage = match self {
            CgroupFiles::Unified(dir) => Usage {
                cpu: unified_cpu(&reader(dir)),
                memory: unified_memory(&reader(dir)),
                pressure: pressure(&reader(dir)),
                ..Usage::now()
            },
            CgroupFiles::Split { cpu, memory } => Usage {
                cpu: number(&reader(cpu), "cpuacct.usage"),
                memory: split_memory(&reader(memory)),
                ..Usage::now()
            },
        };
        let exists = usage.cpu.is_some() || usage.memory.working_set.is_some();
        exists.then(|| Usage { created: self.created(), ..usage })
    }

    /// The memory of the cgroup, without values if nothing counts it. Blocks.
    pub fn memory(&self) -> MemoryUsage {
        match self {
            CgroupFiles::Unified(dir) => unified_memory(&reader(dir)),
            CgroupFiles::Split { memory, .. } => split_memory(&reader(memory)),
        }
    }

    /// The number of processes in the cgroup and in the cgroups below it; `None` if the cgroup does not exist. Blocks.
    pub fn processes(&self) -> Option<u64> {
        let processes = reader(self.dir())("cgroup.procs")?.lines().count() as u64;
        Some(self.children().iter().filter_map(|(_, child)| child.processes()).fold(processes, u64::saturating_add))
    }

    /// The cgroups directly below this one, with their names. Blocks.
    pub fn children(&self) -> Vec<(String, CgroupFiles)> {
        let entries = fs::read_dir(self.dir()).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        dirs.filter_map(|dir| dir.file_name().into_string().ok())
            .map(|name| (name.clone(), self.child(&name)))
            .collect()
    }

    fn child(&self, name: &str) -> CgroupFiles {
        match self {
            CgroupFiles::Unified(dir) => CgroupFiles::Unified(dir.join(name)),
            CgroupFiles::Split { cpu, memory } => CgroupFiles::Split { cpu: cpu.join(name), memory: memory.join(name) },
        }
    }

    fn dir(&self) -> &Path {
        let (CgroupFiles::Unified(dir) | CgroupFiles::Split { memory: dir, .. }) = self;
        dir
    }

    /// When the cgroup was created. The time of the directory changes with each cgroup below it, that of the file does not.
    fn created(&self) -> Option<Time> {
        let file = match self {
            CgroupFiles::Unified(_) => "cgroup.events",
            CgroupFiles::Split { .. } => "cgroup.clone_children",
        };
        let times = [self.dir().to_owned(), self.dir().join(file)].into_iter();
        let times = times.filter_map(|path| jiff::Timestamp::try_from(fs::metadata(path).ok()?.modified().ok()?).ok());
        times.min().map(Time::from_timestamp)
    }
}

/// Reads the files of a directory.
fn reader(dir: &Path) -> impl Fn(&str) -> Option<String> {
    move |file| fs::read_to_string(dir.join(file)).ok()
}

fn unified_cpu(read: Read<'_>) -> Option<u64> {
    value(&read("cpu.stat")?, "usage_usec")?.checked_mul(1000)
}

fn unified_memory(read: Read<'_>) -> MemoryUsage {
    let stat = read("memory.stat").unwrap_or_default();
    let of_stat = |key: &str| value(&stat, key);
    // The root cgroup has no `memory.current`. In a container, the root of the cgroup file system is another cgroup, which has that
    // file.
    let used = number(read, "memory.current").or_else(|| of_stat("anon")?.checked_add(of_stat("file")?));
    let Some(used) = used else { return MemoryUsage::default() };
    let working_set = used.saturating_sub(of_stat("inactive_file").unwrap_or(0));
    let swap = number(read, "memory.swap.current").unwrap_or(0);
    MemoryUsage {
        working_set: Some(working_set),
        used: Some(used),
        resident: of_stat("anon"),
        available: limit(read, "memory.max").map(|limit| limit.saturating_sub(working_set)),
        faults: of_stat("pgfault"),
        major_faults: of_stat("pgmajfault"),
        swap: Some(swap),
        swap_available: match read("memory.swap.max") {
            Some(_) => limit(read, "memory.swap.max").map(|limit| limit.saturating_sub(swap)),
            // The kernel does not swap the memory of cgroups.
            None => Some(0),
        },
    }
}

/// Of the values of `memory.stat`, those with `total_` include the cgroups below. Page faults are those of the cgroup alone, as a
/// kubelet reports them.
fn split_memory(read: Read<'_>) -> MemoryUsage {
    let stat = read("memory.stat").unwrap_or_default();
    let of_stat = |key: &str| value(&stat, key);
    let Some(used) = number(read, "memory.usage_in_bytes") else { return MemoryUsage::default() };
    let working_set = used.saturating_sub(of_stat("total_inactive_file").unwrap_or(0));
    let memory_limit = limit(read, "memory.limit_in_bytes");
    let swap = of_stat("total_swap").unwrap_or(0);
    MemoryUsage {
        working_set: Some(working_set),
        used: Some(used),
        resident: of_stat("total_rss"),
        available: memory_limit.map(|limit| limit.saturating_sub(working_set)),
        faults: of_stat("pgfault"),
        major_faults: of_stat("pgmajfault"),
        swap: Some(swap),
        swap_available: match read("memory.memsw.limit_in_bytes") {
            // This limit is one of memory and swap space together.
            Some(_) => limit(read, "memory.memsw.limit_in_bytes")
                .map(|both| both.saturating_sub(memory_limit.unwrap_or(0)).saturating_sub(swap)),
            None => Some(0),
        },
    }
}

fn pressure(read: Read<'_>) -> Pressure {
    let of = |file: &str| stall(&read(file)?);
    Pressure { cpu: of("cpu.pressure"), memory: of("memory.pressure"), io: of("io.pressure") }
}

/// Parses the text of a pressure file, such as `cpu.pressure`.
fn stall(text: &str) -> Option<Stall> {
    let time = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let field = |key: &str| line.split(' ').find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
        let share = |key: &str| field(key)?.parse::<f64>().ok();
        Some(StallTime {
            total: field("total")?.parse().ok()?,
            avg10: share("avg10")?,
            avg60: share("avg60")?,
            avg300: share("avg300")?,
        })
    };
    // Before Linux 5.13, the CPU has no line `full`.
    Some(Stall { some: time("some")?, full: time("full").unwrap_or_default() })
}

/// The limit in a file; `None` if it is `max`, or above [`UNLIMITED`].
fn limit(read: Read<'_>, file: &str) -> Option<u64> {
    number(read, file).filter(|limit| *limit <= UNLIMITED)
}

fn number(read: Read<'_>, file: &str) -> Option<u64> {
    read(file)?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
