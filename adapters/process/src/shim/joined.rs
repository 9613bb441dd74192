//! The namespaces of a container that an exec command joins.
//!
//! They are those that the shim created. The namespaces in which the command is now are never joined: the command may have entered a
//! user namespace of its own, in which it may read and change every process that joins it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, Pid, set_dumpable_behavior};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::super::procfs;
use super::super::record::{NamespaceId, OwnNamespaces, RunRecord};
use super::namespaces;

/// The namespaces of a running container.
pub(super) struct JoinedNamespaces {
    users: Option<File>,
    processes: Option<File>,
    mounts: Option<File>,
}

impl JoinedNamespaces {
    /// Opens the namespaces that the shim with the pid `shim` created.
    ///
    /// # Errors
    /// If the shim has other namespaces than its record, for example because another process has reused its pid.
    pub(super) fn of(shim: Pid, run: &RunRecord, created: Option<OwnNamespaces>) -> io::Result<Self> {
        let created = match (created, &run.confinement.view) {
            (Some(created), _) => created,
            (None, None) => OwnNamespaces::default(),
            (None, Some(_)) => {
                return Err(io::Error::other(
                    "an earlier version of the agent started the container and did not record its namespaces: restart the \
                     container",
                ));
            }
        };
        let open = |file: String, recorded: Option<NamespaceId>| {
            let Some(recorded) = recorded else { return Ok(None) };
            let path = format!("/proc/{shim}/{file}");
            let found = File::open(&path)?;
            match namespaces::id(&found)? == recorded {
                true => Ok(Some(found)),
                false => Err(io::Error::other(format!("{path} is not the namespace that the shim created"))),
            }
        };
        Ok(JoinedNamespaces {
            users: open("ns/user".into(), created.users)?,
            processes: open("ns/pid_for_children".into(), created.processes)?,
            mounts: open(format!("fd/{}", created.mounts_fd), created.mounts)?,
        })
    }

    /// Joins the user namespace. This process must have one thread only.
    ///
    /// The later children keep capabilities in that namespace until they become the command. No process of the container has them, so
    /// none can trace these children.
    pub(super) fn enter_users(&self) -> io::Result<()> {
        let Some(users) = &self.users else { return Ok(()) };
        join(users, LinkNameSpaceType::User)?;
        namespaces::pass_on_capabilities()
    }

    /// Joins the other namespaces with this thread and with its later children. No thread can be created afterwards.
    ///
    /// Processes of the container find the later children from their start, and the memory of this process is theirs until they
    /// execute a program. So this process is not dumpable, and this thread leaves the mounts of the agent before it enters the PID
    /// namespace of the container.
    pub(super) fn enter(&self) -> io::Result<()> {
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        if let Some(mounts) = &self.mounts {
            // The other thread keeps the mounts of the agent.
            namespaces::unshare(UnshareFlags::FS)?;
            namespaces::join_mounts(mounts)?;
        }
        if let Some(processes) = &self.processes {
            join(processes, LinkNameSpaceType::ProcessID)?;
        }
        Ok(())
    }
}

/// Whether the process `command` is still the child of `shim`. If it is, no other process has reused the pid of either one.
pub(super) fn is_child(command: Pid, pidfd: &OwnedFd, shim: Pid) -> io::Result<bool> {
    let is_child = procfs::parent_of(command) == Some(shim);
    Ok(is_child && poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec::default()))? == 0)
}

fn join(namespace: &File, kind: LinkNameSpaceType) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(kind))?)
}
