//! Exec commands: the commands of exec probes and hooks, which run in addition to a container's own command.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::adapters::step_error::StepError;
use podwright_actors::ports::{ExecOutput, RuntimeError};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};
use tracing::warn;

use super::container::{Container, RunState};
use super::files::ContainerFiles;
use super::record::{self, RunRecord};
use super::shared::ProcessRuntimeState;
use super::{CONTAINER_ENV, procfs, shim};

/// The environment variable with the mark of an exec command: the container's id, a colon and a number. All processes that
/// the command starts inherit it.
pub(super) const EXEC_ENV: &str = "PODWRIGHT_EXEC_OF";

/// Runs a command in the environment of a running container and returns its exit code and output. The command is a child of
/// the agent in a session of its own. The session is killed after `limit`, when the container ends, and when the future is
/// dropped.
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
    let mark = format!("{}:{}", container.id, shared.next_exec());
    let (files, with_mark) = (container.files.clone(), mark.clone());
    let failed = |error: io::Error| RuntimeError::failed(StepError::new("cannot run the command", error));
    let prepared = shared.blocking(move || prepare(&files, &command, &with_mark)).await.map_err(failed)?;
    let PreparedExec { mut command, output, failure } = prepared;
    let child = command.spawn().map_err(failed)?;
    // The command builder holds the write ends of the pipes. They must be closed, or the reads below would never end.
    drop(command);
    let mut running = RunningExec::new(child, mark, Arc::clone(&shared));
    let output = Receiver::from_owned_fd(output.into()).map_err(failed)?;
    let mut failure = Receiver::from_owned_fd(failure.into()).map_err(failed)?;
    let run = async {
        // If the command is executed, the pipe closes without any text.
        let mut text = String::new();
        failure.read_to_string(&mut text).await?;
        if text.is_empty() { running.finish(&output).await } else { Err(io::Error::other(text)) }
    };
    tokio::select! {
        done = run => done.map_err(failed),
        () = tokio::time::sleep(limit) => Err(RuntimeError::Timeout { call: "exec", after: limit }),
        () = container.ended() => Err(not_running()),
    }
}

struct PreparedExec {
    command: Command,
    output: io::PipeReader,
    failure: io::PipeReader,
}

fn prepare(files: &ContainerFiles, words: &[String], mark: &str) -> io::Result<PreparedExec> {
    // The file is written before the command runs, so that the shim kills the command at the container's end even if the
    // agent dies.
    std::fs::write(files.exec_used(), b"")?;
    let run: RunRecord = record::read(&files.run()).map_err(io::Error::other)?;
    let (program, args) = run.shim.split_first().ok_or_else(|| io::Error::other("the shim's command is empty"))?;
    // One pipe for stdout and stderr keeps the order in which the command wrote to them.
    let (output, end) = io::pipe()?;
    let (failure, failure_end) = io::pipe()?;
    let mut command = Command::new(program);
    command
        .args(args)
        .arg(shim::EXEC)
        .arg(files.dir())
        .args(words)
        .env_clear()
        .env(CONTAINER_ENV, &run.id)
        .env(EXEC_ENV, mark)
        .stdin(Stdio::from(failure_end))
        .stdout(Stdio::from(end.try_clone()?))
        .stderr(Stdio::from(end))
        .kill_on_drop(true);
    Ok(PreparedExec { command, output, failure })
}

/// An exec command that was spawned. Dropping it kills the command and all processes that the command started.
struct RunningExec {
    child: Child,
    pid: Option<Pid>,
    mark: String,
    shared: Arc<ProcessRuntimeState>,
    done: bool,
}

impl RunningExec {
    fn new(child: Child, mark: String, shared: Arc<ProcessRuntimeState>) -> Self {
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        RunningExec { child, pid, mark, shared, done: false }
    }

    async fn finish(&mut self, pipe: &Receiver) -> std::io::Result<ExecOutput> {
        let mut output = Vec::new();
        let mut open = true;
        let status = loop {
            tokio::select! {
                // The last output is read below.
                status = self.child.wait() => break status?,
                ready = pipe.readable(), if open => {
                    ready?;
                    open = read_available(pipe, &mut output);
                }
            }
        };
        self.done = true;
        // Reads the output that is in the pipe now. Reading until its end could block: a background process may keep it
        // open.
        read_available(pipe, &mut output);
        use std::os::unix::process::ExitStatusExt;
        let exit_code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Ok(ExecOutput { exit_code, output })
    }
}

impl Drop for RunningExec {
    fn drop(&mut self) {
        // A command that ended by itself may have left a background process on purpose.
        if self.done {
            return;
        }
        // The child has not been reaped yet, so its pid was not reused. A child that has not created its session yet leads
        // no process group. In that case dropping the handle kills it.
        if let Some(pid) = self.pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let mark = std::mem::take(&mut self.mark);
        let shared = Arc::clone(&self.shared);
        self.shared.spawn(async move {
            if let Err(error) = shared.blocking(move || procfs::kill_marked(EXEC_ENV, &mark)).await {
                warn!(%error, "cannot kill all processes of an exec command");
            }
        });
    }
}

/// Reads the output that is in the pipe now and keeps the first [`MAX_OUTPUT`] bytes. Returns whether the pipe is still
/// open.
fn read_available(pipe: &Receiver, output: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return false,
            Ok(n) => output.extend_from_slice(&buffer[..n.min(MAX_OUTPUT - output.len())]),
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

/// How many bytes of output are kept: the longest output that the event of a probe quotes.
const MAX_OUTPUT: usize = 10 * 1024;
