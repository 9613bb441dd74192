//! Attaches a client to the command of a running container.
//!
//! The client's input goes to a FIFO, from which the shim reads ([`input`](super::super::shim)). The shim keeps the command's end across
//! restarts of the agent, and several clients may write at once. The output comes from the log, so a client that does not read slows down
//! nobody else. The shim writes unfinished lines to the log of a container with an input or a terminal, so that the client sees a prompt.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use podwright_host::streaming::{CHUNKS, CommandEnd, LocalCommand, WindowSize};
use rustix::io::Errno;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::{OpenOptions, Sender};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::follow::Follower;
use super::spawn;
use crate::container::Container;
use crate::create;
use crate::files::{ContainerFiles, Layout, Request};
use crate::shared::ProcessRuntimeState;

/// How often the log is read at its end.
const INTERVAL: Duration = Duration::from_millis(100);
/// The same for a container with which a client may have a dialogue.
const DIALOGUE_INTERVAL: Duration = Duration::from_millis(25);
/// How long a client gets output after the end of its input, if that ends the stream.
const LAST_OUTPUT_WITHIN: Duration = Duration::from_millis(500);

/// The streams that a client requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttachedStreams {
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    /// The standard error becomes part of the standard output, as that of a terminal.
    pub(super) merged: bool,
}

/// Copies the output of a container from now on, and the client's input to the container. Ends when the container ends, and with the
/// client's input unless that ends the input of the container (`stdinOnce`).
pub(super) async fn attach(
    shared: Arc<ProcessRuntimeState>,
    container: Arc<Container>,
    streams: AttachedStreams,
) -> Result<LocalCommand, String> {
    let input = container.record.input;
    let (dir, file) = Layout::split_log(&create::rootfs_and_log(&shared.layout, &container.record).1);
    // The log is opened before the first input is written, so that the client gets every answer.
    let open = move || Follower::at_end(dir, file, streams.merged);
    let follower = shared.blocking(open).await.map_err(|error| format!("cannot read the container's log: {error}"))?;
    let channel = |requested: bool| requested.then(|| mpsc::channel(CHUNKS)).unzip();
    let ((to_stdout, stdout), (to_stderr, stderr)) = (channel(streams.stdout), channel(streams.stderr));
    let mut tasks = Vec::new();
    let input_ended = CancellationToken::new();
    let mut stdin = None;
    if streams.stdin
        && let Some(fifo) = open_input(&container.files)
            .map_err(|error| format!("cannot open the container's standard input: {error}"))?
    {
        let (sender, receiver) = mpsc::channel(CHUNKS);
        stdin = Some(sender);
        let ends_stream = (!input.ends_with_client()).then(|| input_ended.clone());
        tasks.push(spawn(copy_input(receiver, fifo, ends_stream)));
    }
    let resize = input.terminal.then(|| {
        let (sizes, size) = watch::channel(None);
        tasks.push(spawn(copy_sizes(size, container.files.clone())));
        sizes
    });
    let (end, ended) = oneshot::channel();
    tasks.push(spawn(async move {
        let last_output = async {
            input_ended.cancelled().await;
            sleep(LAST_OUTPUT_WITHIN).await;
        };
        let copied = tokio::select! {
            copied = copy_output(&shared, &container, follower, to_stdout, to_stderr) => copied,
            () = last_output => Ok(()),
        };
        let _ = end.send(match copied {
            Ok(()) => CommandEnd::Exited(0),
            Err(error) => CommandEnd::Failed(format!("cannot read the container's log: {error}")),
        });
    }));
    Ok(LocalCommand { stdin, stdout, stderr, resize, ended, tasks })
}

/// Opens the FIFO for the input; `None` if the input of the command has ended. The call does not wait.
fn open_input(files: &ContainerFiles) -> io::Result<Option<Sender>> {
    match OpenOptions::new().open_sender(files.stdin()) {
        Ok(fifo) => Ok(Some(fifo)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // No process reads the FIFO any more.
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Copies the client's input. A command that does not read lets the copy wait, and nothing else.
async fn copy_input(mut from: mpsc::Receiver<Vec<u8>>, mut fifo: Sender, ends_stream: Option<CancellationToken>) {
    while let Some(bytes) = from.recv().await {
        if fifo.write_all(&bytes).await.is_err() {
            // The command has closed its input. The client still gets the output.
            return;
        }
    }
    if let Some(input_ended) = ends_stream {
        input_ended.cancel();
    }
}

async fn copy_sizes(mut from: watch::Receiver<Option<WindowSize>>, files: ContainerFiles) {
    while from.changed().await.is_ok() {
        let size = *from.borrow_and_update();
        if let Some(size) = size
            && let Err(error) = files.request(Request::Resize(size))
        {
            tracing::debug!(%error, "the shim accepts no size of a terminal");
        }
    }
}

async fn copy_output(
    shared: &Arc<ProcessRuntimeState>,
    container: &Container,
    mut follower: Follower,
    stdout: Option<mpsc::Sender<Vec<u8>>>,
    stderr: Option<mpsc::Sender<Vec<u8>>>,
) -> io::Result<()> {
    let interval = if container.record.input.is_interactive() { DIALOGUE_INTERVAL } else { INTERVAL };
    loop {
        // The container ends before the last read, so the last read sees everything.
        let ended = container.ended().now_or_never().is_some();
        let (result, back) = shared
            .blocking(move || {
                let read = follower.read();
                (read, follower)
            })
            .await;
        follower = back;
        let Some(output) = result? else {
            if ended {
                return Ok(());
            }
            tokio::select! {
                () = sleep(interval) => {}
                () = container.ended() => {}
                () = shared.closed() => return Ok(()),
            }
            continue;
        };
        for (bytes, to) in [(output.stdout, &stdout), (output.stderr, &stderr)] {
            if let Some(to) = to.as_ref().filter(|_| !bytes.is_empty())
                && to.send(bytes).await.is_err()
            {
                return Ok(());
            }
        }
    }
}
