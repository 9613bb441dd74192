//! A cgroup per container, where cgroup v2 lets us make one.
//!
//! It is the only way to kill a container that forks as fast as it is killed, and to limit memory and processor. Without
//! it everything else works the same.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use rustix::io::Errno;

use super::record::Cgroup;

/// The directory to make containers' cgroups in; `None` if there is none that could be used.
pub(super) fn detect() -> Option<PathBuf> {
    let mount = mount_point(&fs::read_to_string("/proc/self/mounts").ok()?)?;
    let parent = if rustix::process::geteuid().is_root() {
        mount
    } else {
        // Without root only a subtree that was delegated to us will do; processes can be moved within it if its own
        // list of processes may be written.
        let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = mount.join(own_path(&cgroups)?.strip_prefix('/')?);
        access(own.join("cgroup.procs"), Access::WRITE_OK).ok()?;
        own
    };
    let base = parent.join("podwright");
    match fs::create_dir(&base) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return None,
        _ => {}
    }
    // The file is there since Linux 5.14.
    fs::exists(base.join("cgroup.kill")).ok()?.then_some(())?;
    if rustix::process::geteuid().is_root() {
        for dir in [&parent, &base] {
            for controller in ["+memory", "+cpu"] {
                // A controller that is not there, or is used by a v1 hierarchy, means a limit that is not enforced.
                let _ = fs::write(dir.join("cgroup.subtree_control"), controller);
            }
        }
    }
    Some(base)
}

/// Where cgroup v2 is mounted.
fn mount_point(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    })
}

/// Our place in the unified hierarchy.
fn own_path(cgroups: &str) -> Option<&str> {
    cgroups.lines().find_map(|line| line.strip_prefix("0::"))
}

impl Cgroup {
    /// Makes the cgroup and sets the limits for which there is a controller.
    pub(super) fn make(&self) -> io::Result<()> {
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        if let Some(bytes) = self.memory {
            self.set("memory.max", &bytes.to_string())?;
            self.set("memory.oom.group", "1")?;
        }
        if let Some(thousandths) = self.cpu {
            // Microseconds per period of 100 ms; the kernel takes no less than 1 ms.
            self.set("cpu.max", &format!("{} 100000", (thousandths * 100).max(1000)))?;
        }
        Ok(())
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        let path = self.path.join(file);
        // Writing would try to make a file that is not there, which this file system refuses with another error.
        if fs::exists(&path)? { fs::write(path, value) } else { Ok(()) }
    }

    /// Moves the calling process in; it must have one thread only.
    pub(super) fn enter(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), "0")
    }

    /// Kills all that is inside.
    pub(super) fn kill(&self) -> io::Result<()> {
        match fs::write(self.path.join("cgroup.kill"), "1") {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Whether the kernel killed something inside for want of memory.
    pub(super) fn ran_out_of_memory(&self) -> bool {
        fs::read_to_string(self.path.join("memory.events")).is_ok_and(|events| {
            events.lines().any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count != "0"))
        })
    }

    /// Kills what is inside, waits until it is empty, and removes it.
    pub(super) fn remove(&self) -> io::Result<()> {
        if !fs::exists(&self.path)? {
            return Ok(());
        }
        self.kill()?;
        wait_until_empty(&self.path)?;
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
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
            // Somebody else removed it.
            Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => return Ok(()),
            Err(error) => return Err(error),
        };
        if text.lines().any(|line| line == "populated 0") {
            return Ok(());
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "processes in the cgroup do not end"));
        }
        // A removal wakes nobody, so the wait is cut into pieces.
        let limit = Timespec::try_from(left.min(LOOK_AGAIN)).map_err(io::Error::other)?;
        poll(&mut [PollFd::new(&events, PollFlags::PRI)], Some(&limit))?;
    }
}

fn read_again(file: &fs::File) -> io::Result<String> {
    use std::os::unix::fs::FileExt;
    let mut buffer = [0; 128];
    let n = file.read_at(&mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..n]).into_owned())
}

/// A killed process ends within milliseconds unless it is stuck in the kernel, where no wait helps.
const EMPTY_WITHIN: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_among_others() {
        let mounts = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_point(mounts), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        assert_eq!(mount_point("proc /proc proc rw 0 0\n"), None);
        assert_eq!(own_path("4:cpu:/a\n0::/user.slice/x\n"), Some("/user.slice/x"));
    }
}
