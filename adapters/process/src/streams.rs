//! Streams of clients: commands with input, output and terminals, the input and output of running containers, and forwarded ports.
//!
//! A command runs as an exec probe does: a keeper stands between the agent and the command (see [`shim`]). When the client
//! disconnects, the agent closes the keeper's socket, and the keeper kills the command.

mod attach;
mod follow;
mod listeners;
mod ports;
mod terminal;

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::Stdio;
use std::sync::Arc;

use podwright_host::streaming::{
    CHUNK_BYTES, CHUNKS, CommandEnd, LocalCommand, LocalSession, StartCommand, StreamError, StreamRequest,
};
use podwright_ports::RuntimeError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::attach::AttachedStreams;
use self::terminal::Terminal;
use super::CONTAINER_ENV;
use super::container::{Container, RunState};
use super::exec::{FAILED, STATUS};
use super::files::ContainerFiles;
use super::pty;
use super::record::{self, RunRecord};
use super::shared::ProcessRuntimeState;
use super::shim::{self, ExecInput};

/// Opens a stream.
pub(super) fn open(shared: &Arc<ProcessRuntimeState>, stream: StreamRequest) -> Result<LocalSession, StreamError> {
    match stream {
        StreamRequest::Exec { container, command, stdin, stdout, stderr, tty } => {
            let container = running(shared.container(&container)?)?;
            let streams = ExecStreams { stdin, stdout, stderr, tty };
            Ok(LocalSession::Command(StartCommand::new(exec(Arc::clone(shared), container, command, streams))))
        }
        StreamRequest::Attach { container, stdin, stdout, stderr, tty } => {
            let container = running(shared.container(&container)?)?;
            if stdin && !container.record.input.stdin {
                return Err(StreamError::Refused(no_input(&container)));
            }
            let streams = AttachedStreams { stdin, stdout, stderr, merged: tty };
            Ok(LocalSession::Command(StartCommand::new(attach::attach(Arc::clone(shared), container, streams))))
        }
        StreamRequest::PortForward { sandbox, .. } if shared.is_ready(&sandbox) => {
            Ok(LocalSession::Ports(ports::of_sandbox(shared, sandbox)))
        }
        StreamRequest::PortForward { sandbox, .. } => {
            Err(RuntimeError::NotFound(format!("running sandbox {sandbox}")).into())
        }
    }
}

fn running(container: Arc<Container>) -> Result<Arc<Container>, StreamError> {
    let is_running = matches!(*container.run.lock(), RunState::Running { .. });
    if is_running { Ok(container) } else { Err(RuntimeError::failed(not_running(&container)).into()) }
}

fn not_running(container: &Container) -> String {
    format!("container {} is not running", container.id)
}

fn no_input(container: &Container) -> String {
    format!(
        "container {} has no standard input to attach to: set `stdin: true` for the container, or run a command with `exec`",
        container.record.container
    )
}

/// The streams of a command.
#[derive(Clone, Copy, Debug)]
struct ExecStreams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

/// Starts a command in a container.
async fn exec(
    shared: Arc<ProcessRuntimeState>,
    container: Arc<Container>,
    words: Vec<String>,
    streams: ExecStreams,
) -> Result<LocalCommand, String> {
    if words.is_empty() {
        return Err("the command is empty: name a program".to_owned());
    }
    let (files, shim) = (container.files.clone(), shared.shim());
    let prepared = shared.blocking(move || prepare(&files, shim, &words, streams)).await;
    let failed = |error: io::Error| format!("cannot run the command: {error}");
    let PreparedKeeper { mut command, keeper, ends } = prepared.map_err(failed)?;
    // Dropping the handle does not kill the keeper, which would leave the processes of the command without a parent. Tokio reaps it.
    let _child = command.spawn().map_err(failed)?;
    // The command builder holds the command's ends. They must be closed, or the output would never end.
    drop(command);
    let finished = CancellationToken::new();
    let mut local = ends.copy(streams, &finished).map_err(failed)?;
    let keeper = UnixStream::from_std(keeper).map_err(failed)?;
    let (end, ended) = oneshot::channel();
    local.ended = ended;
    local.tasks.push(spawn(async move {
        let outcome = tokio::select! {
            biased;
            outcome = outcome(keeper) => outcome,
            () = container.ended() => CommandEnd::Failed(not_running(&container)),
            () = shared.closed() => return,
        };
        finished.cancel();
        let _ = end.send(outcome);
    }));
    Ok(local)
}

fn spawn(task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(task))
}

/// Waits until the keeper reports how the command ended.
async fn outcome(mut keeper: UnixStream) -> CommandEnd {
    let mut message = String::new();
    let lost = || CommandEnd::Failed("the process that keeps the command was killed".to_owned());
    if let Err(error) = keeper.read_to_string(&mut message).await {
        return CommandEnd::Failed(format!("cannot read from the process that keeps the command: {error}"));
    }
    if let Some(reason) = message.strip_prefix(FAILED) {
        return CommandEnd::Failed(reason.to_owned());
    }
    message.strip_prefix(STATUS).and_then(|code| code.parse().ok()).map_or_else(lost, CommandEnd::Exited)
}

/// A keeper that was not spawned yet.
struct PreparedKeeper {
    command: Command,
    keeper: StdUnixStream,
    ends: AgentEnds,
}

/// The agent's ends of the streams.
enum AgentEnds {
    Pipes { stdin: Option<OwnedFd>, stdout: Option<OwnedFd>, stderr: Option<OwnedFd> },
    Terminal(OwnedFd),
}

fn prepare(
    files: &ContainerFiles,
    (program, args): (String, Vec<String>),
    words: &[String],
    streams: ExecStreams,
) -> io::Result<PreparedKeeper> {
    // The keeper locks this file, so that the shim can wait for the keeper at the container's end.
    std::fs::write(files.exec_used(), b"")?;
    let run: RunRecord = record::read(&files.run()).map_err(io::Error::other)?;
    let (keeper, keeper_end) = StdUnixStream::pair()?;
    let (input, ends, out, err) = if streams.tty {
        let (agent, command) = pty::open(run.user.uid)?;
        let (out, err) = (command.try_clone()?, command);
        (ExecInput::Terminal, AgentEnds::Terminal(agent), Stdio::from(out), Stdio::from(err))
    } else {
        let output = |requested: bool| -> io::Result<_> {
            if !requested {
                return Ok((None, Stdio::null()));
            }
            let (read, write) = io::pipe()?;
            Ok((Some(OwnedFd::from(read)), Stdio::from(write)))
        };
        let ((stdout, out), (stderr, err)) = (output(streams.stdout)?, output(streams.stderr)?);
        let (mut input, mut stdin) = (ExecInput::Null, None);
        if streams.stdin {
            let (read, write) = io::pipe()?;
            shim::send_input(&keeper, &read.into())?;
            (input, stdin) = (ExecInput::Pipe, Some(OwnedFd::from(write)));
        }
        (input, AgentEnds::Pipes { stdin, stdout, stderr }, out, err)
    };
    keeper.set_nonblocking(true)?;
    let mut command = Command::new(program);
    command
        .args(args)
        .args([shim::EXEC, input.word()])
        .arg(files.dir())
        .args(words)
        .env_clear()
        .env(CONTAINER_ENV, &run.id)
        .stdin(Stdio::from(OwnedFd::from(keeper_end)))
        .stdout(out)
        .stderr(err);
    Ok(PreparedKeeper { command, keeper, ends })
}

impl AgentEnds {
    /// Starts the tasks that copy the streams. `finished` is cancelled when the command has ended. The output that is buffered at that time is
    /// still copied. Later output of a process in the background is not copied.
    fn copy(self, streams: ExecStreams, finished: &CancellationToken) -> io::Result<LocalCommand> {
        // The caller replaces the receiver.
        let (_, ended) = oneshot::channel();
        let mut local =
            LocalCommand { stdin: None, stdout: None, stderr: None, resize: None, ended, tasks: Vec::new() };
        match self {
            AgentEnds::Terminal(terminal) => Terminal::new(terminal)?.copy(streams.stdin, &mut local, finished),
            AgentEnds::Pipes { stdin, stdout, stderr } => {
                if let Some(pipe) = stdin {
                    let (sender, receiver) = mpsc::channel(CHUNKS);
                    local.stdin = Some(sender);
                    local.tasks.push(spawn(copy_input(receiver, Sender::from_owned_fd(pipe)?)));
                }
                for (pipe, to) in [(stdout, &mut local.stdout), (stderr, &mut local.stderr)] {
                    let Some(pipe) = pipe else { continue };
                    let (sender, receiver) = mpsc::channel(CHUNKS);
                    *to = Some(receiver);
                    local.tasks.push(spawn(copy_output(Receiver::from_owned_fd(pipe)?, sender, finished.clone())));
                }
            }
        }
        Ok(local)
    }
}

async fn copy_input(mut from: mpsc::Receiver<Vec<u8>>, mut pipe: Sender) {
    while let Some(bytes) = from.recv().await {
        if pipe.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn copy_output(pipe: Receiver, to: mpsc::Sender<Vec<u8>>, finished: CancellationToken) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        tokio::select! {
            biased;
            () = finished.cancelled() => break,
            ready = pipe.readable() => if ready.is_err() {
                return;
            }
        }
        if !copy_available(&pipe, &mut buffer, &to).await {
            return;
        }
    }
    // A process in the background may write for ever, so only the bytes that are in the pipe now are copied.
    let mut left = rustix::io::ioctl_fionread(&pipe).ok().and_then(|left| usize::try_from(left).ok()).unwrap_or(0);
    while left > 0 {
        let part = left.min(CHUNK_BYTES);
        if !copy_available(&pipe, &mut buffer[..part], &to).await {
            return;
        }
        left -= part;
    }
}

/// Copies the bytes that are in the pipe, at most as many as the buffer holds. Returns false if no more can be copied.
async fn copy_available(pipe: &Receiver, buffer: &mut [u8], to: &mpsc::Sender<Vec<u8>>) -> bool {
    match pipe.try_read(buffer) {
        Ok(0) => false,
        Ok(count) => to.send(buffer[..count].to_vec()).await.is_ok(),
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}
