//! The stage between the shim and the command. It makes the settings that a process can only make for itself.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Uid, getrlimit, set_dumpable_behavior, setrlimit, setsid,
};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

use super::super::files::ContainerFiles;
use super::super::procfs;
use super::super::record::{self, RunRecord, User};
use super::exec_input::{ExecInput, ReceivedInput};
use super::exec_reaper::{self, StartFailure};
use super::namespaces::{self, bind_to_reader};
use super::{InitResult, confine, seccomp, stdio};

/// Becomes the container's command in the mount namespace `mounts`, with the input of [`stdio`]. Returns only with an error, which it
/// also sends to the shim.
pub(super) fn become_command(dir: &Path, mounts: &str, input: &str) -> InitResult {
    report_failure(|report| {
        let mut run: RunRecord =
            record::read(&ContainerFiles::new(dir.into()).run()).map_err(|error| error.to_string())?;
        let mut received = ReceivedInput::Null;
        enter(&run, || {
            received =
                stdio::receive_input(input).map_err(|error| format!("cannot open the standard input: {error}"))?;
            if let Some(cgroup) = &run.cgroup {
                cgroup.enter().map_err(|error| format!("cannot enter the cgroup: {error}"))?;
            }
            // This comes before the change of capabilities: the kernel keeps the lowest value that a process with the right to lower it
            // set, and the container may return to that.
            procfs::open_oom_score_adj(None)
                .and_then(|mut file| procfs::apply_oom_score_adj(&mut file, run.oom_score_adj))
                .map_err(|error| error.to_string())?;
            namespaces::enter_mounts(mounts).map_err(|error| format!("cannot join the container's mounts: {error}"))
        })?;
        received.install(&mut run.env)?;
        bind_to_reader(report)?;
        Err(execution_failed(&run.command, program(&run.command, &run.env)?.exec()))
    })
}

/// Becomes an exec command. In a PID namespace, starts it and ends after it, with its exit code. Returns only with an error, which it
/// also sends to the keeper.
///
/// The keeper has joined the container's namespaces and has moved this process into the container's cgroup. It sends the container's
/// record, which is not visible in the container's mounts.
pub(super) fn become_exec(input: &str, command: &[&str]) -> InitResult {
    report_failure(|report| {
        let input = ExecInput::parse(input).map_err(|error| error.to_string())?;
        let (mut run, received) = receive(report, input)
            .map_err(|error| format!("cannot read the container's record and the command's input: {error}"))?;
        enter(&run, || Ok(()))?;
        received.install(&mut run.env)?;
        let mut program = program(command, &run.env)?;
        if exec_reaper::is_needed(&run.confinement, input) {
            return exec_reaper::run(program, report).map_err(|error| match error {
                StartFailure::Spawn(error) => execution_failed(command, error),
                StartFailure::Other(text) => text,
            });
        }
        bind_to_reader(report)?;
        Err(execution_failed(command, program.exec()))
    })
}

fn receive(keeper: &OwnedFd, input: ExecInput) -> io::Result<(RunRecord, ReceivedInput)> {
    let mut text = Vec::new();
    let mut keeper = File::from(keeper.try_clone()?);
    keeper.write_all(&[READY])?;
    let input = input.receive(&keeper)?;
    keeper.read_to_end(&mut text)?;
    Ok((serde_json::from_slice(&text)?, input))
}

/// The first message to the keeper. The kernel lets a keeper without rights change the settings of this process only after the process
/// has executed this program, and the end of the `exec` is later than the keeper's return from the spawn.
const READY: u8 = 1;

/// Runs `work` and writes its error to the pipe or socket that is this process's standard input. The pipe is moved to a descriptor
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

/// Enters the container: its session, limit on open files, working directory and user. `join` runs before every step that depends on
/// the container's mounts or takes rights away.
fn enter(run: &RunRecord, join: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let null = File::open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
    rustix::stdio::dup2_stdin(null).map_err(|error| format!("cannot replace standard input: {error}"))?;
    setsid().map_err(|error| format!("cannot create a session: {error}"))?;
    join()?;
    // Other processes of the container's user must not read or change this process before it executes the command.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|error| format!("cannot hide the process: {error}"))?;
    if let Some(files) = run.open_files {
        setrlimit(Resource::Nofile, lowered(getrlimit(Resource::Nofile), files))
            .map_err(|error| format!("cannot limit open files to {files}: {error}"))?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // This step comes before the change of user, because the new user may not have access to the agent's directories above.
    std::env::set_current_dir(&run.rootfs)
        .map_err(|error| format!("the container's root {}: {error}", run.rootfs.display()))?;
    confine::limit_capabilities(&run.confinement)?;
    become_user(&run.user)?;
    confine::give_up_capabilities(&run.confinement)?;
    enter_working_dir(run)?;
    confine::deny_new_privileges(&run.confinement)?;
    // This comes last, because the steps above make calls that the container may not make.
    seccomp::apply(run.confinement.seccomp)
}

/// Enters the working directory with the rights of the container. Its path may lead through links that a container put into a volume.
/// This process must be in the container's root already.
fn enter_working_dir(run: &RunRecord) -> Result<(), String> {
    let path = run.cwd.strip_prefix(&run.rootfs).unwrap_or(&run.cwd);
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    std::env::set_current_dir(path).map_err(|error| {
        let cwd = run.cwd.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                format!("working directory {cwd} does not exist: set `workingDir` to a directory of this node")
            }
            io::ErrorKind::PermissionDenied => format!(
                "working directory {cwd}: user {} of the container may not enter it: change its permissions, or set \
                 `workingDir` to another directory",
                run.user.uid
            ),
            _ => format!("working directory {cwd}: {error}"),
        }
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
    set_groups(&groups).map_err(failed)?;
    set_thread_gid(Gid::from_raw(user.gid)).and_then(|()| set_thread_uid(Uid::from_raw(user.uid))).map_err(failed)
}

/// Gives up the supplementary groups of this process, which are those of the agent.
pub(super) fn drop_groups() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    match set_groups(&[]) {
        // An agent without the right to change groups keeps its own.
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(error) => Err(format!("cannot give up the groups: {error}")),
    }
}

fn set_groups(groups: &[Gid]) -> Result<(), Errno> {
    if same_groups(&rustix::process::getgroups()?, groups) {
        return Ok(());
    }
    match set_thread_groups(groups) {
        // In a user namespace without the right to change groups, the process has no groups of the node either.
        Err(Errno::PERM) if groups.is_empty() && groups_are_fixed() => Ok(()),
        result => result,
    }
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

/// The program with its arguments and the environment of the container.
fn program<S: AsRef<str>>(command: &[S], env: &[(String, String)]) -> Result<Command, String> {
    let (program, args) = command.split_first().ok_or("the command is empty")?;
    let mut found = Command::new(program.as_ref());
    found.args(args.iter().map(AsRef::as_ref)).env_clear().envs(env.iter().map(|(name, value)| (name, value)));
    Ok(found)
}

/// The text of the error of a command that could not be executed.
fn execution_failed<S: AsRef<str>>(command: &[S], error: io::Error) -> String {
    let program = command.first().map_or("", AsRef::as_ref);
    match error.kind() {
        io::ErrorKind::NotFound if program.contains('/') => {
            format!("cannot execute {program:?}: this node has no such file")
        }
        io::ErrorKind::NotFound => format!("cannot execute {program:?}: no directory in PATH on this node contains it"),
        _ => format!("cannot execute {program:?}: {error}"),
    }
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
