//! Reads what a cgroup uses from the files of the kernel: cgroups(7), `Documentation/admin-guide/cgroup-v2.rst` and
//! `Documentation/admin-guide/cgroup-v1` of Linux.
//!
//! The meaning of each value is that of a kubelet (cAdvisor, `container/libcontainer/handler.go` and `container/common/helpers.go`).

mod details;

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use podwright_model::time::Time;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::kernel_file::value;
use super::{Depth, MemoryUsage, Pressure, Stall, StallTime, Usage};

/// Reads a file of a cgroup by its name. `None` if the kernel does not have the file, or does not permit to read it.
type Read<'a> = &'a dyn Fn(&'static str) -> Option<String>;

/// A limit above this value means that there is none: the kernel rounds the largest value to pages (`isMemoryUnlimited`, kubelet 1.36).
const UNLIMITED: u64 = 1 << 62;

/// Where the cgroup file system is mounted, and where its version 2 is mounted beside version 1.
const MOUNT: &str = "/sys/fs/cgroup";
const UNIFIED_MOUNT: &str = "/sys/fs/cgroup/unified";

/// The cgroups of a machine.
#[derive(Clone, Debug)]
pub struct CgroupTree {
    mount: PathBuf,
    is_unified: bool,
}

impl CgroupTree {
    /// The cgroups of this machine.
    pub fn of_machine() -> Self {
        CgroupTree::at(Path::new(MOUNT))
    }

    /// The cgroups of the file system that is mounted at `mount`.
    pub fn at(mount: &Path) -> Self {
        // Version 1 has one tree for each controller.
        let is_unified = !mount.join("memory/memory.usage_in_bytes").exists();
        CgroupTree { mount: mount.to_owned(), is_unified }
    }

    /// The cgroup of this path below the root, such as `/` and `/kubepods/burstable`.
    pub fn cgroup(&self, path: &str) -> CgroupFiles {
        let path = path.trim_start_matches('/').into();
        CgroupFiles { mount: self.mount.clone(), path, is_unified: self.is_unified }
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

/// The files of one cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupFiles {
    mount: PathBuf,
    /// Below the mount, or below the directory of each controller in it.
    path: PathBuf,
    is_unified: bool,
}

impl CgroupFiles {
    /// The cgroup of version 2 with this directory.
    pub fn unified(dir: &Path) -> Self {
        let below = |mount: &str| Some((PathBuf::from(mount), dir.strip_prefix(mount).ok()?.to_owned()));
        let found = [UNIFIED_MOUNT, MOUNT, "/"].into_iter().find_map(below);
        let (mount, path) = found.unwrap_or((PathBuf::new(), dir.to_owned()));
        CgroupFiles { mount, path, is_unified: true }
    }

    /// What the cgroup uses at present; `None` if the cgroup does not exist. Blocks.
    pub fn usage(&self, depth: Depth) -> Option<Usage> {
        let read = self.reader();
        let usage = match self.is_unified {
            true => Usage {
                cpu: unified_cpu(&read),
                memory: unified_memory(&read),
                pressure: pressure(&read),
                ..Usage::now()
            },
            false => Usage { cpu: number(&read, "cpuacct.usage"), memory: split_memory(&read), ..Usage::now() },
        };
        let exists = usage.cpu.is_some() || usage.memory.working_set.is_some();
        let details = || match self.is_unified {
            true => details::unified(self.path(), &read),
            false => details::split(self.path(), &read),
        };
        exists.then(|| Usage {
            created: self.created(),
            details: (depth == Depth::Details).then(|| Box::new(details())),
            ..usage
        })
    }

    /// The memory of the cgroup, without values if nothing counts it. Blocks.
    pub fn memory(&self) -> MemoryUsage {
        let read = self.reader();
        if self.is_unified { unified_memory(&read) } else { split_memory(&read) }
    }

    /// The path below the root of the tree, such as `/kubepods`.
    pub fn path(&self) -> String {
        format!("/{}", self.path.display())
    }

    /// The number of processes in the cgroup and in the cgroups below it; `None` if the cgroup does not exist. Blocks.
    pub fn processes(&self) -> Option<u64> {
        let processes = self.reader()(PROCESSES)?.lines().count() as u64;
        Some(self.children().iter().filter_map(|(_, child)| child.processes()).fold(processes, u64::saturating_add))
    }

    /// The process id of a process in the cgroup; `None` if it has none. Blocks.
    pub fn first_process(&self) -> Option<u32> {
        self.reader()(PROCESSES)?.lines().find_map(|line| line.parse().ok())
    }

    /// The cgroups directly below this one, with their names. Blocks.
    pub fn children(&self) -> Vec<(String, CgroupFiles)> {
        // A directory has two links of its own, and one for each directory in it. Some file systems that are used in tests count none.
        if fs::metadata(self.dir()).is_ok_and(|dir| dir.nlink() == 2) {
            return Vec::new();
        }
        let entries = fs::read_dir(self.dir()).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        dirs.filter_map(|dir| dir.file_name().into_string().ok())
            .map(|name| (name.clone(), self.child(&name)))
            .collect()
    }

    fn child(&self, name: &str) -> CgroupFiles {
        CgroupFiles { path: self.path.join(name), ..self.clone() }
    }

    /// The directory that counts memory, which is the only one in version 2.
    fn dir(&self) -> PathBuf {
        self.dir_of("memory")
    }

    fn dir_of(&self, controller: &str) -> PathBuf {
        match self.is_unified {
            true => self.mount.join(&self.path),
            false => self.mount.join(controller).join(&self.path),
        }
    }

    /// When the cgroup was created. The time of the directory changes with each cgroup below it, that of the file does not.
    fn created(&self) -> Option<Time> {
        let (dir, file) = (self.dir(), if self.is_unified { "cgroup.events" } else { "cgroup.clone_children" });
        let times = [dir.join(file), dir].into_iter();
        let times = times.filter_map(|path| jiff::Timestamp::try_from(fs::metadata(path).ok()?.modified().ok()?).ok());
        times.min().map(Time::from_timestamp)
    }

    /// Reads each file once: a file that is requested again has the same text.
    fn reader(&self) -> impl Fn(&'static str) -> Option<String> {
        // With version 1, each file is in the directory of its controller.
        let dir = self.is_unified.then(|| openat(CWD, self.dir(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok());
        let texts: RefCell<Vec<(&'static str, Option<String>)>> = RefCell::default();
        move |file| {
            let known = texts.borrow().iter().find(|(name, _)| *name == file).map(|(_, text)| text.clone());
            known.unwrap_or_else(|| {
                let text = match &dir {
                    Some(Some(dir)) => openat(dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                        .map_err(io::Error::from)
                        .and_then(|file| text(file.into()))
                        .ok(),
                    Some(None) => None,
                    None => {
                        let controller = file.split('.').next().filter(|name| *name != "cgroup").unwrap_or("memory");
                        File::open(self.dir_of(controller).join(file)).and_then(text).ok()
                    }
                };
                texts.borrow_mut().push((file, text.clone()));
                text
            })
        }
    }
}

/// The file with the processes of a cgroup.
const PROCESSES: &str = "cgroup.procs";

/// The text of a file of the kernel. Its size is not known before it is read.
fn text(mut file: File) -> io::Result<String> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        match file.read(&mut chunk)? {
            0 => return String::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidData.into()),
            read => bytes.extend_from_slice(&chunk[..read]),
        }
    }
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
    let of = |file: &'static str| stall(&read(file)?);
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
fn limit(read: Read<'_>, file: &'static str) -> Option<u64> {
    number(read, file).filter(|limit| *limit <= UNLIMITED)
}

fn number(read: Read<'_>, file: &'static str) -> Option<u64> {
    read(file)?.trim().parse().ok()
}

#[cfg(test)]
mod tests;
