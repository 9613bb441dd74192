//! The PID namespace of a container, and its user namespace if the agent is not root. The mount namespace is in
//! [`view`](super::view).
//!
//! A process that creates or joins a PID namespace stays outside of it; only its later children are inside. So the shim and the
//! keepers of exec commands stay outside, where no process of the container can find them or signal them. They can no longer create
//! threads, because all threads of a process are in one PID namespace.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, mount};
use rustix::process::{DumpableBehavior, Pid, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, ThreadNameSpaceType, UnshareFlags, capabilities,
    configure_capability_in_ambient_set, move_into_link_name_space, move_into_thread_name_spaces, set_capabilities,
};
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::Signals;

use super::super::procfs;
use super::super::record::{Processes, RunRecord};
use super::{INIT_OF_NAMESPACE, PROBE_PROCESSES, view, with_context};

/// Moves this process into a new user namespace if the container has namespaces and the agent is not root. In the user namespace, the
/// process may create the other namespaces. The process must have one thread only.
pub(super) fn enter_users(run: &RunRecord) -> io::Result<()> {
    let confinement = &run.confinement;
    let needed = confinement.view.is_some() || confinement.processes == Processes::Own;
    if needed && !rustix::process::geteuid().is_root() { unshare_users() } else { Ok(()) }
}

fn unshare_users() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    pass_on_capabilities()
}

/// Lets the processes that this process executes keep the capabilities in their user namespace that they need to set up the
/// container. The stage that becomes the command gives them up.
fn pass_on_capabilities() -> io::Result<()> {
    let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_CHROOT;
    let own = capabilities(None)?;
    set_capabilities(None, rustix::thread::CapabilitySets { inheritable: needed, ..own })?;
    for one in [CapabilitySet::SYS_ADMIN, CapabilitySet::SYS_CHROOT] {
        configure_capability_in_ambient_set(one, true)?;
    }
    Ok(())
}

pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    #[expect(deprecated, reason = "the replacement is `unsafe` because of the flag FILES, which is never set here")]
    rustix::thread::unshare(flags)?;
    Ok(())
}

/// The first process of a PID namespace. It ends with the shim, and all processes in the namespace end with it.
pub(super) struct InitOfNamespace {
    pub(super) pid: Pid,
    failure: PipeReader,
}

/// Gives the later children of this thread a PID namespace, if the container has one, and starts the first process of the namespace.
///
/// The command is the second process. If it were the first, the kernel would ignore every signal that the command does not
/// handle, and SIGTERM would not end a command such as `sleep`.
pub(super) fn unshare_processes(run: &RunRecord) -> io::Result<Option<InitOfNamespace>> {
    if run.confinement.processes != Processes::Own {
        return Ok(None);
    }
    unshare(UnshareFlags::NEWPID).map_err(|error| with_context("cannot create a PID namespace", &error))?;
    let (failure, failure_end) = io::pipe()?;
    let child = Command::new("/proc/self/exe")
        .arg0("podwright-init")
        .args(run.shim.iter().skip(1))
        .args([INIT_OF_NAMESPACE.as_ref(), run.rootfs.as_os_str()])
        .stdin(failure_end)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(Some(InitOfNamespace { pid: Pid::from_child(&child), failure }))
}

impl InitOfNamespace {
    /// Waits until the process is set up.
    pub(super) fn ready(&mut self) -> io::Result<()> {
        let mut text = String::new();
        self.failure.read_to_string(&mut text)?;
        if text.is_empty() { Ok(()) } else { Err(io::Error::other(text)) }
    }
}

/// Runs as the first process of a PID namespace: reaps the processes whose parents have ended. Returns only with an error.
///
/// The kernel lets no process of the namespace kill this process, read its memory or open its files.
pub(super) fn be_init(root: &Path) -> Result<(), String> {
    let work = || {
        rustix::thread::set_name(c"podwright-init")?;
        // The container sees the root directory of this process as `/proc/1/root`.
        rustix::process::chroot(root).and_then(|()| rustix::process::chdir("/"))?;
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        // This comes before the first wait, so that no end of a process is missed.
        let signals = Signals::new([SIGCHLD])?;
        Ok::<_, io::Error>(signals)
    };
    let report = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(|error| error.to_string())?;
    let prepared = rustix::stdio::dup2_stdin(rustix::stdio::stdout())
        .map_err(io::Error::from)
        .and_then(|()| work())
        .map_err(|error| format!("cannot set up the container's PID namespace: {error}"))
        .and_then(|signals| bind_to_reader(&report).map(|()| signals));
    let mut signals = prepared.inspect_err(|text| {
        let _ = rustix::io::write(&report, text.as_bytes());
    })?;
    drop(report);
    loop {
        while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
        signals.wait().for_each(drop);
    }
}

/// Makes the kernel kill this process when its parent ends: the shim or the keeper of an exec command. `pipe` is the end of a pipe
/// whose other end only the parent has. The parent's pid cannot show whether the parent has ended: it is 0 if the parent is in another
/// PID namespace.
///
/// Call this after a change of user, which clears the setting.
pub(super) fn bind_to_reader(pipe: &OwnedFd) -> Result<(), String> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot bind to the parent process: {error}"))?;
    // The parent may have ended before the setting was made.
    match poll(&mut [PollFd::new(pipe, PollFlags::empty())], Some(&Timespec::default())) {
        Ok(0) => Ok(()),
        Ok(_) => Err("the parent process has ended".into()),
        Err(error) => Err(format!("cannot bind to the parent process: {error}")),
    }
}

/// The namespaces of a running command that an exec command must join.
///
/// The user namespace is that of the shim, which the container cannot change. A command may enter a user namespace of its own and has
/// all capabilities there. A keeper of the node's root that followed it could be traced by the command, and the container would be
/// root on the node.
pub(super) struct Joined {
    users: bool,
    processes: bool,
    mounts: Option<File>,
}

impl Joined {
    /// The namespaces of the command `pid` and of its shim that differ from those of this process. `process` and `shim` are these two
    /// processes.
    pub(super) fn of(pid: Pid, process: &OwnedFd, shim: &OwnedFd) -> io::Result<Self> {
        let shim_pid = procfs::parent_of(pid).ok_or(Errno::SRCH)?;
        let differs = |of: Pid, kind: &str| -> io::Result<Option<File>> {
            let (own, other) =
                (File::open(format!("/proc/self/ns/{kind}"))?, File::open(format!("/proc/{of}/ns/{kind}"))?);
            let same = fstat(&own)?.st_ino == fstat(&other)?.st_ino;
            Ok((!same).then_some(other))
        };
        let found = Joined {
            users: differs(shim_pid, "user")?.is_some(),
            processes: differs(pid, "pid")?.is_some(),
            mounts: differs(pid, "mnt")?,
        };
        // The files are those of the two processes if neither has ended since, because their pids were not reused then.
        let mut both = [PollFd::new(process, PollFlags::IN), PollFd::new(shim, PollFlags::IN)];
        match poll(&mut both, Some(&Timespec::default()))? {
            0 => Ok(found),
            _ => Err(Errno::SRCH.into()),
        }
    }

    /// Joins the user namespace of the shim. This process must have one thread only.
    pub(super) fn enter_users(&self, shim: &OwnedFd) -> io::Result<()> {
        if !self.users {
            return Ok(());
        }
        move_into_thread_name_spaces(shim.as_fd(), ThreadNameSpaceType::USER)?;
        pass_on_capabilities()
    }

    /// Joins the PID namespace with the later children of this thread. No thread can be created afterwards.
    pub(super) fn enter_processes(&self, process: &OwnedFd) -> io::Result<()> {
        if self.processes {
            move_into_thread_name_spaces(process.as_fd(), ThreadNameSpaceType::PROCESS_ID)?;
        }
        Ok(())
    }

    /// The argument for the stage that becomes the command, which joins the mount namespace: a descriptor that the stage
    /// inherits. The stage must read its records first.
    pub(super) fn mounts_argument(&self) -> io::Result<String> {
        let Some(mounts) = &self.mounts else { return Ok(String::new()) };
        fcntl_setfd(mounts, FdFlags::empty())?;
        Ok(mounts.as_raw_fd().to_string())
    }
}

/// Joins the mount namespace of a [`Joined::mounts_argument`]. This process must have one thread only.
pub(super) fn enter_mounts(argument: &str) -> io::Result<()> {
    if argument.is_empty() {
        return Ok(());
    }
    let mounts = File::open(format!("/proc/self/fd/{argument}"))?;
    Ok(move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?)
}

/// Mounts a `/proc` with the processes of this process's PID namespace.
pub(super) fn mount_proc() -> io::Result<()> {
    Ok(mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?)
}

/// Tests which namespaces the kernel lets this process create, and writes their names to standard output. If one of them is missing,
/// the error says why.
pub(super) fn probe(shim: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<(), String> {
    let failed = |what: &'static str| move |error: io::Error| format!("cannot create a {what}: {error}");
    if !rustix::process::geteuid().is_root() {
        unshare_users().map_err(failed("user namespace"))?;
    }
    view::unshare_mounts().map_err(failed("mount namespace"))?;
    println!("{MOUNTS}");
    unshare(UnshareFlags::NEWPID).map_err(failed("PID namespace"))?;
    let child = Command::new("/proc/self/exe")
        .args(shim)
        .arg(PROBE_PROCESSES)
        .stdin(Stdio::null())
        .output()
        .map_err(failed("process"))?;
    if !child.status.success() {
        return Err(format!("cannot mount /proc: {}", String::from_utf8_lossy(&child.stderr).trim()));
    }
    println!("{PROCESSES}");
    Ok(())
}

/// The line of [`probe`] if mount namespaces work.
pub(in super::super) const MOUNTS: &str = "mounts";
/// The line of [`probe`] if PID namespaces work.
pub(in super::super) const PROCESSES: &str = "processes";
