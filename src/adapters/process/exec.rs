//! Exec commands: the commands of exec probes and hooks, which run beside a container's own command.

use std::io;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

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
    let not_running = || RuntimeError::Failed(format!("container {} does not run", container.id));
    if !matches!(*container.run.lock(), RunState::Running { .. }) {
        return Err(not_running());
    }
    let mark = format!("{}:{}", container.id, shared.next_exec());
    let (files, with_mark) = (container.files.clone(), mark.clone());
    let failed = |error: io::Error| RuntimeError::Failed(format!("cannot run the command: {error}"));
    let prepared = shared.blocking(move || prepare(&files, &command, &with_mark)).await.map_err(failed)?;
    let Prepared { mut command, output, failure } = prepared;
    let child = command.spawn().map_err(failed)?;
    // The command holds the writing ends of the pipes, which would never close.
    drop(command);
    let mut running = Running::new(child, mark, Arc::clone(&shared));
    let output = Receiver::from_owned_fd(output.into()).map_err(failed)?;
    let mut failure = Receiver::from_owned_fd(failure.into()).map_err(failed)?;
    let run = async {
        // The pipe closes without text when the command is executed.
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

struct Prepared {
    command: Command,
    output: io::PipeReader,
    failure: io::PipeReader,
}

fn prepare(files: &ContainerFiles, words: &[String], mark: &str) -> io::Result<Prepared> {
    // Written before the command runs, so that the shim kills the command when the container ends, even if the agent dies.
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
    Ok(Prepared { command, output, failure })
}

/// An exec command that was spawned. Dropping it kills the command and all processes that the command started.
struct Running {
    child: Child,
    pid: Option<Pid>,
    mark: String,
    shared: Arc<ProcessRuntimeState>,
    done: bool,
}

impl Running {
    fn new(child: Child, mark: String, shared: Arc<ProcessRuntimeState>) -> Self {
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        Running { child, pid, mark, shared, done: false }
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
                    open = take(pipe, &mut output);
                }
            }
        };
        self.done = true;
        // Reads what the pipe holds now. Its end may never come: a background process may keep the pipe open.
        take(pipe, &mut output);
        use std::os::unix::process::ExitStatusExt;
        let exit_code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        Ok(ExecOutput { exit_code, output })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A command that ended by itself may have left a background process on purpose.
        if self.done {
            return;
        }
        // The child is not reaped before it is dropped, so its pid was not reused. A child that has not yet created its session
        // leads no process group; then dropping the handle kills it.
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

/// Reads what the pipe holds now and keeps the first [`MAX_OUTPUT`] bytes. Returns whether the pipe is still open.
fn take(pipe: &Receiver, output: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return false,
            Ok(n) => output.extend_from_slice(&buffer[..n.min(MAX_OUTPUT - output.len())]),
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

/// How many bytes of output are kept: as many as the event of a probe may have.
const MAX_OUTPUT: usize = 10 * 1024;
