//! Exec commands: the commands of exec probes and hooks, which run in addition to a container's own command.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use podwright_host::step_error::StepError;
use podwright_ports::{ExecOutput, RuntimeError};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;

use super::container::{Container, RunState};
use super::files::ContainerFiles;
use super::record::{self, RunRecord};
use super::shared::ProcessRuntimeState;
use super::{CONTAINER_ENV, shim};

/// The first byte of a keeper's message with the reason why the command could not be executed.
pub(super) const FAILED: &str = "!";
/// The first byte of a keeper's message with the exit code.
pub(super) const STATUS: &str = "=";

/// Runs a command in the environment of a running container and returns its exit code and output. A keeper process stands
/// between the agent and the command (see [`shim`]). All processes of the command are killed after `limit`, when the container
/// ends, and when the future is dropped. Processes that a finished command left behind are killed when the container ends.
pub(super) async fn exec(
    shared: Arc<ProcessRuntimeState>,
    container: Arc<Container>,
    command: Vec<String>,
    limit: Duration,
) -> Result<ExecOutput, RuntimeError> {
    let not_running = || RuntimeError::failed(format!("container {} is not running", container.id));
    if !matches!(*container.run.lock(), RunState::Running { .. }) {
        return Err(not_running());
    }
    let (files, shim) = (container.files.clone(), shared.shim());
    let failed = |error: io::Error| RuntimeError::failed(StepError::new("cannot run the command", error));
    let prepared = shared.blocking(move || prepare(&files, shim, &command)).await.map_err(failed)?;
    let PreparedExec { mut command, output, keeper } = prepared;
    // Dropping the handle does not kill the keeper, which would leave the processes of the command without a parent.
    let _child = command.spawn().map_err(failed)?;
    // The command builder holds the other ends. They must be closed, or the reads below would never end.
    drop(command);
    let output = Receiver::from_owned_fd(output.into()).map_err(failed)?;
    // Closing the socket makes the keeper kill the command.
    let keeper = UnixStream::from_std(keeper).map_err(failed)?;
    let run = finish(keeper, &output);
    tokio::select! {
        done = run => done.map_err(failed),
        () = tokio::time::sleep(limit) => Err(RuntimeError::Timeout { call: "exec", after: limit }),
        () = container.ended() => Err(not_running()),
    }
}

struct PreparedExec {
    command: Command,
    output: io::PipeReader,
    keeper: std::os::unix::net::UnixStream,
}

fn prepare(
    files: &ContainerFiles,
    (program, args): (String, Vec<String>),
    words: &[String],
) -> io::Result<PreparedExec> {
    // The keeper locks this file, so that the shim can wait for the keeper at the container's end.
    std::fs::write(files.exec_used(), b"")?;
    let run: RunRecord = record::read(&files.run()).map_err(io::Error::other)?;
    // One pipe for stdout and stderr keeps the order in which the command wrote to them.
    let (output, end) = io::pipe()?;
    let (keeper, keeper_end) = std::os::unix::net::UnixStream::pair()?;
    keeper.set_nonblocking(true)?;
    let mut command = Command::new(program);
    command
        .args(args)
        .args([shim::EXEC, shim::ExecInput::Null.word()])
        .arg(files.dir())
        .args(words)
        .env_clear()
        .env(CONTAINER_ENV, &run.id)
        .stdin(Stdio::from(OwnedFd::from(keeper_end)))
        .stdout(Stdio::from(end.try_clone()?))
        .stderr(Stdio::from(end));
    Ok(PreparedExec { command, output, keeper })
}

/// Reads the output of the command until the keeper reports its end.
async fn finish(mut keeper: UnixStream, pipe: &Receiver) -> io::Result<ExecOutput> {
    let mut output = Vec::new();
    let mut open = true;
    let mut message = String::new();
    let mut report = std::pin::pin!(keeper.read_to_string(&mut message));
    loop {
        tokio::select! {
            // The last output is read below.
            read = &mut report => {
                read?;
                break;
            }
            ready = pipe.readable(), if open => {
                ready?;
                open = read_available(pipe, &mut output);
                // A command that writes all the time must not delay its own time limit.
                tokio::task::yield_now().await;
            }
        }
    }
    // Reads the output that is in the pipe now. Reading until its end could block: a background process may keep it
    // open.
    read_available(pipe, &mut output);
    match (message.strip_prefix(STATUS).map(str::parse), message.strip_prefix(FAILED)) {
        (Some(Ok(exit_code)), _) => Ok(ExecOutput { exit_code, stderr_from: output.len(), output }),
        (_, Some(reason)) => Err(io::Error::other(reason.to_owned())),
        _ => Err(io::Error::other("the process that keeps the command was killed")),
    }
}

/// Reads the output that is in the pipe now, at most [`PORTION`] bytes, and keeps the first [`MAX_OUTPUT`] bytes of all output.
/// Returns whether the pipe is still open.
fn read_available(pipe: &Receiver, output: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    let mut left = PORTION;
    while left > 0 {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return false,
            Ok(n) => {
                output.extend_from_slice(&buffer[..n.min(MAX_OUTPUT - output.len())]);
                left = left.saturating_sub(n);
            }
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
    true
}

/// How many bytes of output are read at once: as many as a pipe holds. A command may write as fast as the agent reads.
const PORTION: usize = 64 << 10;
/// How many bytes of output are kept: the longest output that the event of a probe quotes.
const MAX_OUTPUT: usize = 10 * 1024;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::pipe::fcntl_setpipe_size;

    use super::*;

    #[tokio::test]
    async fn output_is_read_in_portions_of_a_limited_size() {
        let (read, mut write) = io::pipe().unwrap();
        fcntl_setpipe_size(&write, 4 * PORTION).unwrap();
        write.write_all(&vec![b'x'; 3 * PORTION]).unwrap();
        let pipe = Receiver::from_owned_fd(read.into()).unwrap();
        let mut output = Vec::new();
        for left in [2, 1, 0] {
            pipe.readable().await.unwrap();
            assert!(read_available(&pipe, &mut output));
            assert_eq!(rustix::io::ioctl_fionread(&pipe).unwrap(), left * PORTION as u64);
        }
        assert_eq!(output, vec![b'x'; MAX_OUTPUT]);
        drop(write);
        pipe.readable().await.unwrap();
        assert!(!read_available(&pipe, &mut output));
    }
}
