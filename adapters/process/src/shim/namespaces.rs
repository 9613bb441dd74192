//! The namespaces of a container: mounts and processes, and users if the agent is not root.
//!
//! A process that creates or joins a PID namespace stays outside of it; only its later children are inside. So the shim and the
//! keepers of exec commands stay outside, where no process of the container can find them or signal them. They can no longer create
//! threads, because all threads of a process are in one PID namespace.
//!
//! The command may enter other namespaces, in which it has every capability. An exec command joins only the namespaces that
//! the shim created ([`joined`](super::joined)).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fstat, openat};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, mount};
use rustix::process::{DumpableBehavior, Pid, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities, configure_capability_in_ambient_set,
    move_into_link_name_space, set_capabilities,
};
use signal_hook::consts::SIGCHLD;
use signal_hook::iterator::Signals;

use super::super::files::ContainerFiles;
use super::super::procfs;
use super::super::record::{self, NamespaceId, OwnNamespaces, Processes, RunRecord};
use super::{INIT_OF_NAMESPACE, confine, init, view, with_context};

/// Moves this process into a new user namespace if the container has namespaces and the agent is not root. In the user namespace, the
/// process may create the other namespaces. The process must have one thread only. Returns whether there is a new user namespace.
pub(super) fn enter_users(run: &RunRecord) -> io::Result<bool> {
    let needed = run.confinement.view.is_some() && !rustix::process::geteuid().is_root();
    if needed {
        unshare_users()?;
    }
    Ok(needed)
}

pub(super) fn unshare_users() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    unshare(UnshareFlags::NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    pass_on_capabilities()
}

/// Lets the processes that this process executes keep the capabilities in their user namespace that they need to set up the
/// container. The stage that becomes the command gives them up.
pub(super) fn pass_on_capabilities() -> io::Result<()> {
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

/// The namespaces of a container whose command is about to start.
#[derive(Default)]
pub(super) struct Namespaces {
    /// The first process of the PID namespace. It ends with the shim, and all processes in the namespace end with it.
    pub(super) init: Option<Pid>,
    /// The mount namespace. While this is open, its identity belongs to no other namespace.
    mounts: Option<File>,
    pub(super) ids: OwnNamespaces,
}

/// Creates the mount namespace and the PID namespace of the container, if it has them. The later children of this thread are in the
/// PID namespace. `own_users` is the result of [`enter_users`].
///
/// The command is the second process of the PID namespace. If it were the first, the kernel would ignore every signal that the
/// command does not handle, and SIGTERM would not end a command such as `sleep`.
pub(super) fn create(run: &RunRecord, files: &ContainerFiles, own_users: bool) -> io::Result<Namespaces> {
    if run.confinement.view.is_none() {
        return Ok(Namespaces::default());
    }
    let own = |kind: &str| File::open(format!("/proc/self/ns/{kind}")).and_then(|file| id(&file));
    let users = if own_users { Some(own("user")?) } else { None };
    let (init, mounts, processes) = match run.confinement.processes {
        Processes::Node => (None, create_mounts(run)?, None),
        Processes::Own => {
            let (init, mounts) = create_processes(run, files)?;
            (Some(init), mounts, Some(own("pid_for_children")?))
        }
    };
    let ids = OwnNamespaces { users, processes, mounts: Some(id(&mounts)?), mounts_fd: mounts.as_raw_fd() };
    Ok(Namespaces { init, mounts: Some(mounts), ids })
}

/// Creates a mount namespace with the container's view. A thread of its own does that, because this process keeps the mounts of the
/// agent.
fn create_mounts(run: &RunRecord) -> io::Result<File> {
    let proc = procfs::open()?;
    std::thread::scope(|scope| {
        let set_up = || {
            unshare(UnshareFlags::FS)?;
            enter_view(run).map_err(io::Error::other)?;
            // The thread ends, but the open file keeps its namespace.
            Ok(openat(&proc, "thread-self/ns/mnt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?.into())
        };
        let thread = std::thread::Builder::new().spawn_scoped(scope, set_up)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the set-up of the container's mounts panicked")))
    })
}

/// Creates the PID namespace and the mount namespace. The first process of the PID namespace sets up the container's view, because
/// only a process of that namespace can mount its `/proc`.
fn create_processes(run: &RunRecord, files: &ContainerFiles) -> io::Result<(Pid, File)> {
    unshare(UnshareFlags::NEWPID).map_err(|error| with_context("cannot create a PID namespace", &error))?;
    let (link, end) = UnixStream::pair()?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("podwright-init")
        .args(run.shim.iter().skip(1))
        .args([INIT_OF_NAMESPACE.as_ref(), files.dir().as_os_str()])
        .stdin(OwnedFd::from(end))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let pid = Pid::from_child(&child);
    match finish_set_up(pid, link) {
        Ok(mounts) => Ok((pid, mounts)),
        Err(error) => {
            let _ = child.kill().and_then(|()| child.wait());
            Err(error)
        }
    }
}

/// Enters the container's view. Its directories must be passable for the container's user.
fn enter_view(run: &RunRecord) -> Result<(), String> {
    rustix::process::umask(Mode::from_raw_mode(0o022));
    view::enter(run)
}

/// Opens the mount namespace of the process that sets up the namespaces, and waits until it has finished.
fn finish_set_up(pid: Pid, mut link: UnixStream) -> io::Result<File> {
    let mut first = [0];
    let mut text = Vec::new();
    if link.read(&mut first)? == 0 {
        return Err(io::Error::other("the process that sets up the container's namespaces was killed"));
    }
    if first != MOUNTS_ARE_SET_UP {
        text.extend_from_slice(&first);
        link.read_to_end(&mut text)?;
        return Err(io::Error::other(String::from_utf8_lossy(&text).into_owned()));
    }
    let mounts = File::open(format!("/proc/{pid}/ns/mnt"))
        .map_err(|error| with_context("cannot open the container's mount namespace", &error))?;
    link.write_all(&MOUNTS_ARE_SET_UP)?;
    link.read_to_end(&mut text)?;
    if text != NAMESPACES_ARE_SET_UP {
        return Err(io::Error::other(match text.is_empty() {
            true => "the first process of the container's PID namespace was killed".into(),
            false => String::from_utf8_lossy(&text).into_owned(),
        }));
    }
    Ok(mounts)
}

/// The message of the process that sets up the namespaces when its mount namespace can be opened, and the answer of the shim.
const MOUNTS_ARE_SET_UP: [u8; 1] = *b"1";
/// The message of that process when the command may start.
const NAMESPACES_ARE_SET_UP: &[u8] = b"2";

/// The identity of a namespace.
pub(super) fn id(namespace: &File) -> io::Result<NamespaceId> {
    let found = fstat(namespace)?;
    Ok(NamespaceId { device: found.st_dev, inode: found.st_ino })
}

impl Namespaces {
    /// The argument for the stage that becomes the command, which joins the mount namespace: a descriptor. The stage inherits it if it
    /// is spawned by `spawn`.
    pub(super) fn pass_mounts<T>(&self, spawn: impl FnOnce(&str) -> io::Result<T>) -> io::Result<T> {
        let Some(mounts) = &self.mounts else { return spawn("") };
        fcntl_setfd(mounts, FdFlags::empty())?;
        let spawned = spawn(&mounts.as_raw_fd().to_string());
        fcntl_setfd(mounts, FdFlags::CLOEXEC)?;
        spawned
    }
}

/// Joins the mount namespace of [`Namespaces::pass_mounts`]. This process must have one thread only.
pub(super) fn enter_mounts(argument: &str) -> io::Result<()> {
    if argument.is_empty() {
        return Ok(());
    }
    join_mounts(&File::open(format!("/proc/self/fd/{argument}"))?)
}

/// Joins a mount namespace with this thread, which must share its working directory with no other thread.
pub(super) fn join_mounts(mounts: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?)
}

/// Runs as the first process of a PID namespace: sets up the container's view of the file system, and then reaps the processes whose
/// parents have ended. Returns only with an error.
///
/// The kernel lets no process of the namespace kill the first one. A process that could read and change it would gain nothing: it has no
/// capabilities and no groups, and its root directory is that of the container.
pub(super) fn be_init(dir: &Path) -> Result<(), String> {
    let report = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(|error| error.to_string())?;
    rustix::stdio::dup2_stdin(rustix::stdio::stdout()).map_err(|error| error.to_string())?;
    let mut link = UnixStream::from(report);
    let mut signals = set_up(dir, &link).inspect_err(|text| {
        let _ = link.write_all(text.as_bytes());
    })?;
    link.write_all(NAMESPACES_ARE_SET_UP).map_err(|error| error.to_string())?;
    drop(link);
    loop {
        while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
        signals.wait().for_each(drop);
    }
}

/// Returns the signals on which the first process of a PID namespace reaps.
fn set_up(dir: &Path, mut link: &UnixStream) -> Result<Signals, String> {
    let failed = |error: io::Error| format!("cannot set up the container's namespaces: {error}");
    let run: RunRecord = record::read(&ContainerFiles::new(dir.into()).run()).map_err(|error| error.to_string())?;
    rustix::thread::set_name(c"podwright-init").map_err(|error| failed(error.into()))?;
    enter_view(&run)?;
    std::env::set_current_dir("/").map_err(failed)?;
    // The shim opens the mount namespace before this process hides its files.
    link.write_all(&MOUNTS_ARE_SET_UP).and_then(|()| link.read_exact(&mut [0])).map_err(failed)?;
    // This comes before the first wait, so that no end of a process is missed.
    let signals = Signals::new([SIGCHLD]).map_err(failed)?;
    init::drop_groups()?;
    confine::drop_all_rights()?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| failed(error.into()))?;
    bind_to_reader(link)?;
    Ok(signals)
}

/// Makes the kernel kill this process when its parent ends: the shim or the keeper of an exec command. `pipe` is the end of a pipe or
/// socket whose other end only the parent has. The parent's pid cannot show whether the parent has ended: it is 0 if the parent is in
/// another PID namespace.
///
/// Call this after a change of user, which clears the setting.
pub(super) fn bind_to_reader(pipe: impl AsFd) -> Result<(), String> {
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| format!("cannot bind to the parent process: {error}"))?;
    // The parent may have ended before the setting was made.
    match poll(&mut [PollFd::new(&pipe, PollFlags::empty())], Some(&Timespec::default())) {
        Ok(0) => Ok(()),
        Ok(_) => Err("the parent process has ended".into()),
        Err(error) => Err(format!("cannot bind to the parent process: {error}")),
    }
}

/// Mounts a `/proc` with the processes of this process's PID namespace.
pub(super) fn mount_proc() -> io::Result<()> {
    Ok(mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)?)
}
