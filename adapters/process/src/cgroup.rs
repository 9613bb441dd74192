//! One cgroup per container, if the agent may create cgroups of version 2.
//!
//! Only a cgroup can limit memory and CPU, or kill a container that forks faster than the agent can kill its processes. All
//! other features work without cgroups.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use podwright_host::stats::{CgroupFiles, kernel_file};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::record::Cgroup;

/// The parent of the containers' cgroups; `None` if the agent cannot create cgroups. It exists only while a container has a cgroup.
///
/// # Errors
/// The node lacks a resource now, such as memory or file descriptors. The next call may find the parent.
pub(super) fn detect() -> io::Result<Option<PathBuf>> {
    match find_base() {
        Ok(found) => {
            tracing::debug!(cgroups = ?found, "cgroups of the containers");
            Ok(found)
        }
        Err(error) if is_temporary(&error) => Err(error),
        Err(error) => {
            tracing::debug!(%error, "containers run without cgroups");
            Ok(None)
        }
    }
}

/// Whether the node only lacks resources. The kernel reports a limit on the number of cgroups (`cgroup.max.descendants`) as `EAGAIN`,
/// and a lack of ids for them as `ENOSPC`.
fn is_temporary(error: &io::Error) -> bool {
    let exhausted = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::INTR];
    Errno::from_io_error(error).is_some_and(|errno| exhausted.contains(&errno))
}

fn find_base() -> io::Result<Option<PathBuf>> {
    let Some(mount) = mount_point(&fs::read_to_string("/proc/self/mounts")?) else { return Ok(None) };
    let parent = if rustix::process::geteuid().is_root() {
        mount
    } else {
        // Without root the agent needs a delegated subtree. A subtree is delegated to the agent if it may write the
        // subtree's `cgroup.procs`.
        let cgroups = fs::read_to_string("/proc/self/cgroup")?;
        let Some(own) = own_path(&cgroups).and_then(|own| own.strip_prefix('/')) else { return Ok(None) };
        let own = mount.join(own);
        access(own.join("cgroup.procs"), Access::WRITE_OK)?;
        own
    };
    let base = parent.join("podwright");
    for _ in 0..TRIES {
        make_dir(&base)?;
        // Linux has this file since version 5.14.
        let can_kill = fs::exists(base.join("cgroup.kill"))?;
        // The end of a container of an earlier agent may have removed the parent in between.
        if can_kill || base.exists() {
            remove_if_empty(&base);
            return Ok(can_kill.then_some(base));
        }
    }
    Ok(None)
}

/// Creates a container's cgroup and its parent, which the end of another container may remove at any time.
fn make_with_parent(path: &Path) -> io::Result<()> {
    for _ in 0..TRIES {
        match make_dir(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            made => return made,
        }
        let Some(base) = path.parent() else { break };
        make_dir(base)?;
    }
    Err(ErrorKind::NotFound.into())
}

/// Enables the controllers for a container's cgroup. The cgroup must exist, so that no other process removes its parent. Each container
/// does this, because the container that created the parent may not have enabled the controllers yet.
fn enable_controllers(path: &Path) {
    let Some(base) = path.parent() else { return };
    // Without root, the agent runs in the parent of `base`. The kernel does not enable controllers in a cgroup with processes.
    let parent = base.parent().filter(|_| rustix::process::geteuid().is_root());
    for dir in parent.into_iter().chain([base]) {
        let file = dir.join("cgroup.subtree_control");
        let enabled = fs::read_to_string(&file).unwrap_or_default();
        for controller in CONTROLLERS.into_iter().filter(|controller| !has_word(&enabled, controller)) {
            // If the controller is missing or used by a v1 hierarchy, its limit is not enforced.
            let _ = fs::write(&file, format!("+{controller}"));
        }
    }
}

/// The smallest quota of CPU time in microseconds that the kernel accepts.
const SMALLEST_QUOTA: u64 = 1000;
/// A quota of CPU time in microseconds that no machine uses up. The kernel refuses one of 2^44.
const LARGEST_QUOTA: u64 = 1 << 43;
/// The controllers of the limits.
const CONTROLLERS: [&str; 2] = ["memory", "cpu"];

fn has_word(text: &str, word: &str) -> bool {
    text.split_ascii_whitespace().any(|found| found == word)
}

/// How many times the parent is created, if the ends of other containers remove it at the same time.
const TRIES: usize = 100;

fn make_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Removes the parent of the containers' cgroups after the last of them.
fn remove_if_empty(base: &Path) {
    // The kernel refuses to remove a cgroup that contains others.
    let _ = fs::remove_dir(base);
}

/// The directory where cgroup v2 is mounted.
fn mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    })
}

/// The agent's own cgroup in the unified hierarchy.
fn own_path(cgroups: &str) -> Option<&str> {
    cgroups.lines().find_map(|line| line.strip_prefix("0::"))
}

impl Cgroup {
    /// Creates the cgroup and sets the limits whose controllers are available.
    ///
    /// # Errors
    /// The system's error. An available controller that does not apply to the cgroup is an error too: the container must not run
    /// without its limit, and the next attempt may succeed.
    pub(super) fn make(&self) -> io::Result<()> {
        make_with_parent(&self.path)?;
        enable_controllers(&self.path);
        self.limit()
    }

    /// Sets the limits whose controllers are available.
    ///
    /// # Errors
    /// As those of [`make`](Cgroup::make).
    pub(super) fn limit(&self) -> io::Result<()> {
        if let Some(bytes) = self.memory {
            self.set("memory.max", &bytes.to_string())?;
            self.set("memory.oom.group", "1")?;
        }
        if let Some(thousandths) = self.cpu {
            // Microseconds per period of 100 ms.
            let quota = thousandths.saturating_mul(100).clamp(SMALLEST_QUOTA, LARGEST_QUOTA);
            self.set("cpu.max", &format!("{quota} 100000"))?;
        }
        Ok(())
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        let path = self.path.join(file);
        if fs::exists(&path)? {
            return fs::write(path, value);
        }
        // A v1 hierarchy may have the controller.
        let controller = file.split('.').next().unwrap_or(file);
        let base = self.path.parent().unwrap_or(&self.path);
        let available = fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
        if !has_word(&available, controller) {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{} is missing, although the controller {controller} is available: another program may have disabled it in {}",
            path.display(),
            base.join("cgroup.subtree_control").display()
        )))
    }

    /// Moves the calling process into the cgroup. The process must have one thread only.
    pub(super) fn enter(&self) -> io::Result<()> {
        self.open()?.write_all(b"0")
    }

    /// Opens the list of the cgroup's processes. A process whose pid is written to it moves into the cgroup.
    pub(super) fn open(&self) -> io::Result<fs::File> {
        fs::File::options().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Kills all processes in the cgroup.
    pub(super) fn kill(&self) -> io::Result<()> {
        match fs::write(self.path.join("cgroup.kill"), "1") {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// The processes in the cgroup and in the cgroups below it; `None` if the cgroup does not exist.
    pub(super) fn processes(&self) -> io::Result<Option<Vec<i32>>> {
        let mut found = Vec::new();
        let exists = add_processes(&self.path, &mut found)?;
        Ok(exists.then_some(found))
    }

    /// The files in which the kernel counts what the cgroup uses.
    pub(super) fn files(&self) -> CgroupFiles {
        CgroupFiles::unified(&self.path)
    }

    /// Whether the kernel killed a process in the cgroup because memory ran out.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        let events = fs::read_to_string(self.path.join("memory.events"));
        events.is_ok_and(|events| kernel_file::value(&events, "oom_kill") > Some(0))
    }

    /// Kills all processes in the cgroup, waits until it is empty, and removes it. Blocks for up to [`EMPTY_WITHIN`].
    pub(super) fn remove(&self) -> io::Result<()> {
        if !fs::exists(&self.path)? {
            return Ok(());
        }
        self.kill()?;
        wait_until_empty(&self.path)?;
        let removed = match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        };
        self.path.parent().into_iter().for_each(remove_if_empty);
        removed
    }
}

/// Adds the processes of a cgroup and of the cgroups below it. Returns whether the cgroup exists.
fn add_processes(path: &Path, found: &mut Vec<i32>) -> io::Result<bool> {
    let text = match fs::read_to_string(path.join("cgroup.procs")) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound || is_removed(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()));
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            add_processes(&entry.path(), found)?;
        }
    }
    Ok(true)
}

/// Whether the cgroup of an open file was removed.
fn is_removed(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

fn wait_until_empty(path: &Path) -> io::Result<()> {
    let events = match fs::File::open(path.join("cgroup.events")) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let end = Instant::now() + EMPTY_WITHIN;
    loop {
        // Reading arms the notification, so a change between the read and the poll is not missed.
        let text = match read_again(&events) {
            Ok(text) => text,
            // Another process removed the cgroup.
            Err(error) if is_removed(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        if kernel_file::value(&text, "populated") == Some(0) {
            return Ok(());
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let text = format!("processes in cgroup {} do not end: they hang in the kernel", path.display());
            return Err(io::Error::new(ErrorKind::TimedOut, text));
        }
        // The removal of the cgroup does not wake the poll, so the wait is split.
        let limit = Timespec::try_from(left.min(POLL_INTERVAL)).map_err(io::Error::other)?;
        poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&limit))?;
    }
}

fn read_again(file: &fs::File) -> io::Result<String> {
    use std::os::unix::fs::FileExt;
    let mut buffer = [0; 128];
    let n = file.read_at(&mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..n]).into_owned())
}

/// How long killed processes may take to end. They usually take milliseconds. A process that hangs in the kernel may never end.
const EMPTY_WITHIN: Duration = Duration::from_secs(5);
/// How often the cgroup is checked while it is not empty.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_v2_mount_is_found_among_v1_mounts() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_point(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("proc /proc proc rw 0 0\n"), None);
        assert_eq!(own_path("4:cpu:/a\n0::/user.slice/x\n"), Some("/user.slice/x"));
    }

    /// Plain directories in place of cgroups, in which every file can be created.
    fn plain_cgroup(memory: Option<u64>) -> (tempfile::TempDir, Cgroup) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("podwright/a");
        (dir, Cgroup { path, memory, cpu: None })
    }

    #[test]
    fn container_enables_the_controllers_of_a_parent_that_another_one_has_just_created() {
        let (_dir, cgroup) = plain_cgroup(None);
        let base = cgroup.path.parent().unwrap();
        fs::create_dir(base).unwrap();
        cgroup.make().unwrap();
        assert_eq!(fs::read_to_string(base.join("cgroup.subtree_control")).unwrap(), "+cpu");
        // What is enabled is not written again.
        fs::write(base.join("cgroup.subtree_control"), "cpu memory pids\n").unwrap();
        cgroup.make().unwrap();
        assert_eq!(fs::read_to_string(base.join("cgroup.subtree_control")).unwrap(), "cpu memory pids\n");
    }

    #[test]
    fn processes_include_those_of_inner_cgroups() {
        let (_dir, cgroup) = plain_cgroup(None);
        assert_eq!(cgroup.processes().unwrap(), None);
        let inner = cgroup.path.join("inner");
        fs::create_dir_all(&inner).unwrap();
        fs::write(cgroup.path.join("cgroup.procs"), "7\n8\n").unwrap();
        fs::write(inner.join("cgroup.procs"), "9\n").unwrap();
        assert_eq!(cgroup.processes().unwrap(), Some(vec![7, 8, 9]));
    }

    #[test]
    fn process_is_moved_only_into_a_cgroup_that_exists() {
        let (_dir, cgroup) = plain_cgroup(None);
        assert_eq!(cgroup.enter().unwrap_err().kind(), ErrorKind::NotFound);
        fs::create_dir_all(&cgroup.path).unwrap();
        // In place of the kernel's file, none may be created.
        assert_eq!(cgroup.enter().unwrap_err().kind(), ErrorKind::NotFound);
        let procs = cgroup.path.join("cgroup.procs");
        fs::write(&procs, "").unwrap();
        cgroup.enter().unwrap();
        assert_eq!(fs::read_to_string(&procs).unwrap(), "0");
    }

    #[test]
    fn limit_that_an_available_controller_does_not_apply_is_an_error() {
        let (_dir, cgroup) = plain_cgroup(Some(1 << 20));
        // Without the controller in version 2, the container runs without the limit.
        cgroup.make().unwrap();
        fs::write(cgroup.path.parent().unwrap().join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let error = cgroup.make().unwrap_err().to_string();
        assert!(error.contains("memory.max is missing, although the controller memory is available"), "{error}");
        for file in ["memory.max", "memory.oom.group"] {
            fs::write(cgroup.path.join(file), "").unwrap();
        }
        cgroup.make().unwrap();
        assert_eq!(fs::read_to_string(cgroup.path.join("memory.max")).unwrap(), "1048576");
    }

    #[test]
    fn cpu_limit_is_a_quota_that_the_kernel_accepts() {
        let (_dir, cgroup) = plain_cgroup(None);
        fs::create_dir_all(&cgroup.path).unwrap();
        let file = cgroup.path.join("cpu.max");
        fs::write(&file, "").unwrap();
        for (thousandths, expected) in [(1, 1000), (10, 1000), (1500, 150_000), (u64::MAX / 2, 1_u64 << 43)] {
            Cgroup { cpu: Some(thousandths), ..cgroup.clone() }.limit().unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("{expected} 100000"), "{thousandths}");
        }
    }

    // Requires the right to create cgroups of version 2.
    #[test]
    fn parent_of_the_containers_cgroups_exists_only_while_they_do() {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let Some(mount) = mount_point(&mounts) else { return eprintln!("skipped: cgroup v2 is not mounted") };
        let base = mount.join(format!("podwright-test-{}", std::process::id()));
        let [a, b] = ["a", "b"].map(|name| Cgroup { path: base.join(name), ..Cgroup::default() });
        if let Err(error) = a.make() {
            return eprintln!("skipped: this process may not create cgroups: {error}");
        }
        b.make().unwrap();
        a.remove().unwrap();
        assert!(base.exists() && b.path.exists());
        b.remove().unwrap();
        assert!(!base.exists());
    }
}
