//! The stage between the shim and the command. It makes the settings that a process can only make for itself.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Rlimit, Uid, getrlimit, setrlimit, setsid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use super::super::files::ContainerFiles;
use super::super::procfs;
use super::super::record::{self, RunRecord, User};
use super::exec_input::StageInput;
use super::namespaces::{self, bind_to_reader};
use super::{InitResult, confine, view};

/// Becomes the container's command. Returns only with an error, which it also sends to the shim.
pub(super) fn become_command(dir: &Path) -> InitResult {
    report_failure(|report| {
        let run = enter(dir, view::enter)?;
        bind_to_reader(report)?;
        execute(&run.command, &run.env)
    })
}

/// Becomes an exec command. `mounts` is the mount namespace that it joins. Returns only with an error, which it also sends to the
/// keeper.
pub(super) fn become_exec(input: &str, dir: &Path, mounts: &str, command: &[&str]) -> InitResult {
    report_failure(|report| {
        let input = StageInput::open(input)?;
        let join = |_: &RunRecord| {
            namespaces::enter_mounts(mounts).map_err(|error| format!("cannot join the container's mounts: {error}"))
        };
        let mut run = enter(dir, join)?;
        input.install(&mut run.env)?;
        bind_to_reader(report)?;
        execute(command, &run.env)
    })
}

/// Runs `work` and writes its error to the pipe that is this process's standard input. The pipe is moved to a descriptor
/// that closes when the command is executed, so on success the reader of the pipe gets an end of file without text.
fn report_failure(work: impl FnOnce(&OwnedFd) -> InitResult) -> InitResult {
    let report = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(|error| error.to_string())?;
    let result = work(&report);
    if let Err(text) = &result {
        let _ = File::from(report).write_all(text.as_bytes());
    }
    // The error was sent. If it were also printed to standard error, it would appear in the container's log.
    result.map_err(|_| String::new())
}

/// Enters the container: its session, cgroup, limit on open files, mounts, working directory and user.
fn enter(dir: &Path, enter_mounts: impl FnOnce(&RunRecord) -> Result<(), String>) -> Result<RunRecord, String> {
    let null = File::open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
    rustix::stdio::dup2_stdin(null).map_err(|error| format!("cannot replace standard input: {error}"))?;
    let run: RunRecord = record::read(&ContainerFiles::new(dir.into()).run()).map_err(|error| error.to_string())?;
    setsid().map_err(|error| format!("cannot create a session: {error}"))?;
    if let Some(cgroup) = &run.cgroup {
        cgroup.enter().map_err(|error| format!("cannot enter the cgroup: {error}"))?;
    }
    // This comes before the change of capabilities: the kernel keeps the lowest value that a process with the right to lower it
    // set, and the container may return to that.
    set_oom_score_adj(run.oom_score_adj)?;
    if let Some(files) = run.open_files {
        setrlimit(Resource::Nofile, lowered(getrlimit(Resource::Nofile), files))
            .map_err(|error| format!("cannot limit open files to {files}: {error}"))?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    enter_mounts(&run)?;
    // This comes before the change of user, because the new user may not have access to the agent's directories above.
    std::env::set_current_dir(&run.cwd).map_err(|error| {
        let cwd = run.cwd.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                format!("working directory {cwd} does not exist: set `workingDir` to a directory of this node")
            }
            _ => format!("working directory {cwd}: {error}"),
        }
    })?;
    confine::limit_capabilities(&run.confinement)?;
    become_user(&run.user)?;
    confine::deny_new_privileges(&run.confinement)?;
    Ok(run)
}

/// Sets the `oom_score_adj` of this process. A value that is too high is kept if the kernel does not let the agent lower it. A value
/// that is too low would protect the container at the expense of the node.
fn set_oom_score_adj(value: i64) -> Result<(), String> {
    procfs::set_oom_score_adj(value).or_else(|error| match procfs::oom_score_adj() {
        Ok(own) if own >= value => Ok(()),
        _ => Err(format!("cannot set oom_score_adj to {value}: {error}")),
    })
}

/// Changes the groups and the user of this process. All of them are set, because the agent may be in groups that the container
/// must not have.
fn become_user(user: &User) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        // Only root can change the groups and the user. The agent has refused other ones.
        return Ok(());
    }
    let failed = |error| format!("cannot become user {} group {}: {error}", user.uid, user.gid);
    let groups: Vec<Gid> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    let own = rustix::process::getgroups().map_err(failed)?;
    if !same_groups(&own, &groups) {
        match set_thread_groups(&groups) {
            // In a user namespace without the right to change groups, the process has no groups of the node either.
            Err(Errno::PERM) if groups.is_empty() && groups_are_fixed() => {}
            result => result.map_err(failed)?,
        }
    }
    set_thread_gid(Gid::from_raw(user.gid)).and_then(|()| set_thread_uid(Uid::from_raw(user.uid))).map_err(failed)
}

fn same_groups(a: &[Gid], b: &[Gid]) -> bool {
    a.len() == b.len() && a.iter().all(|gid| b.contains(gid))
}

/// Whether this process's user namespace lets nobody change groups.
fn groups_are_fixed() -> bool {
    std::fs::read_to_string("/proc/self/setgroups").is_ok_and(|text| text.trim() == "deny")
}

/// Returns the limit with the soft limit `to`, or with the hard limit if that is lower.
fn lowered(limit: Rlimit, to: u64) -> Rlimit {
    Rlimit { current: Some(limit.maximum.map_or(to, |most| to.min(most))), ..limit }
}

fn execute<S: AsRef<str>>(command: &[S], env: &[(String, String)]) -> InitResult {
    let Some((program, args)) = command.split_first() else {
        return Err("the command is empty".into());
    };
    let program = program.as_ref();
    let error = Command::new(program)
        .args(args.iter().map(AsRef::as_ref))
        .env_clear()
        .envs(env.iter().map(|(k, v)| (k, v)))
        .exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => {
            format!("cannot execute {program:?}: this node has no such file")
        }
        io::ErrorKind::NotFound => format!("cannot execute {program:?}: no directory in PATH on this node contains it"),
        _ => format!("cannot execute {program:?}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_on_open_files_is_never_above_the_hard_limit() {
        for (maximum, to, current) in [(Some(4096), 1024, 1024), (Some(512), 1024, 512), (None, 1024, 1024)] {
            let limit = lowered(Rlimit { current: maximum, maximum }, to);
            assert_eq!((limit.current, limit.maximum), (Some(current), maximum));
        }
    }
}
