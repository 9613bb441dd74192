//! The stage between the shim and the command: what must be set from within the process that becomes the command.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::Mode;
use rustix::process::{Gid, Signal, Uid, getppid, set_parent_process_death_signal, setsid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use super::super::files::ContainerFiles;
use super::super::record::{self, RunRecord};
use super::InitResult;

/// Becomes the container's command. Returns only with an error, which it also sends to the shim.
///
/// Standard input is the pipe for that error. It moves to a descriptor that closes when the command is executed, which is
/// how the shim learns of success.
pub(super) fn become_command(dir: &Path, parent: &str) -> InitResult {
    let report = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(|error| error.to_string())?;
    let result = enter(&ContainerFiles::new(dir.into()), parent);
    if let Err(text) = &result {
        let _ = File::from(report).write_all(text.as_bytes());
    }
    // The shim has it; on standard error it would stand in the container's log.
    result.map_err(|_| String::new())
}

fn enter(files: &ContainerFiles, parent: &str) -> InitResult {
    let null = File::open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
    rustix::stdio::dup2_stdin(null).map_err(|error| format!("cannot replace standard input: {error}"))?;
    let run: RunRecord = record::read(&files.run()).map_err(|error| error.to_string())?;
    let [program, args @ ..] = run.command.as_slice() else {
        return Err("the command is empty".into());
    };
    setsid().map_err(|error| format!("cannot make a session: {error}"))?;
    if let Some(cgroup) = &run.cgroup {
        cgroup.enter().map_err(|error| format!("cannot enter the cgroup: {error}"))?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // Before the change of user, who may not be allowed to walk to a directory that lies in the agent's root.
    std::env::set_current_dir(&run.cwd).map_err(|error| {
        let cwd = run.cwd.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                format!("working directory {cwd} does not exist: set `workingDir` to one that is on this node")
            }
            _ => format!("working directory {cwd}: {error}"),
        }
    })?;
    if let Some(user) = &run.user {
        let groups: Vec<Gid> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        set_thread_groups(&groups)
            .and_then(|()| set_thread_gid(Gid::from_raw(user.gid)))
            .and_then(|()| set_thread_uid(Uid::from_raw(user.uid)))
            .map_err(|error| format!("cannot become user {} group {}: {error}", user.uid, user.gid))?;
    }
    // After the change of user, which clears it.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| format!("cannot bind to the shim: {error}"))?;
    if getppid().map(|pid| pid.to_string()).as_deref() != Some(parent) {
        return Err("the shim is gone".into());
    }
    let error = Command::new(program).args(args).env_clear().envs(run.env.iter().map(|(k, v)| (k, v))).exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => {
            format!("cannot execute {program:?}: there is no such file on this node")
        }
        io::ErrorKind::NotFound => format!("cannot execute {program:?}: it is in no directory of PATH on this node"),
        _ => format!("cannot execute {program:?}: {error}"),
    })
}
