//! The terminal of a command: a pseudo-terminal. The command has one end, and the agent has the other end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use podwright_host::streaming::{CHUNK_BYTES, CHUNKS, LocalCommand, WindowSize};
use rustix::fs::{OFlags, fcntl_setfl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::spawn;
use crate::pty;

/// The agent's end of a terminal.
pub(super) struct Terminal(Arc<AsyncFd<OwnedFd>>);

impl Terminal {
    pub(super) fn new(terminal: OwnedFd) -> io::Result<Self> {
        fcntl_setfl(&terminal, OFlags::RDWR | OFlags::NONBLOCK)?;
        #[expect(
            deprecated,
            reason = "the replacement is `unsafe` because a descriptor could close while it is registered; here the \
                      registration owns the descriptor"
        )]
        let terminal = AsyncFd::with_interest(terminal, Interest::READABLE | Interest::WRITABLE)?;
        Ok(Terminal(Arc::new(terminal)))
    }

    /// Starts the tasks that copy the streams of the terminal.
    pub(super) fn copy(self, stdin: bool, local: &mut LocalCommand, finished: &CancellationToken) {
        if stdin {
            let (sender, receiver) = mpsc::channel(CHUNKS);
            local.stdin = Some(sender);
            local.tasks.push(spawn(copy_input(receiver, self.0.clone())));
        }
        let (sizes, size) = watch::channel(None);
        local.resize = Some(sizes);
        local.tasks.push(spawn(copy_sizes(size, self.0.clone())));
        let (sender, receiver) = mpsc::channel(CHUNKS);
        local.stdout = Some(receiver);
        local.tasks.push(spawn(copy_output(self.0, sender, finished.clone())));
    }
}

async fn copy_input(mut from: mpsc::Receiver<Vec<u8>>, terminal: Arc<AsyncFd<OwnedFd>>) {
    while let Some(bytes) = from.recv().await {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let Ok(mut ready) = terminal.writable().await else { return };
            match ready.try_io(|terminal| Ok(rustix::io::write(terminal, rest)?)) {
                Ok(Ok(count)) => rest = &rest[count..],
                Ok(Err(_)) => return,
                Err(_would_block) => {}
            }
        }
    }
}

async fn copy_sizes(mut from: watch::Receiver<Option<WindowSize>>, terminal: Arc<AsyncFd<OwnedFd>>) {
    while from.changed().await.is_ok() {
        let size = *from.borrow_and_update();
        if let Some(size) = size {
            pty::resize(terminal.get_ref(), size);
        }
    }
}

async fn copy_output(terminal: Arc<AsyncFd<OwnedFd>>, to: mpsc::Sender<Vec<u8>>, finished: CancellationToken) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let read = tokio::select! {
            biased;
            () = finished.cancelled() => break,
            read = read(&terminal, &mut buffer) => read,
        };
        if !send(read, &buffer, &to).await {
            return;
        }
    }
    // The system passes on the last output of the command a little later. A process in the background may write for ever.
    let mut left = DRAIN_BYTES;
    while left > 0 {
        let Ok(read) = timeout(DRAIN_TIME, read(&terminal, &mut buffer)).await else { return };
        left = left.saturating_sub(read);
        if !send(read, &buffer, &to).await {
            return;
        }
    }
}

/// Reads from the terminal; 0 if no process has it open any more.
async fn read(terminal: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> usize {
    loop {
        let Ok(mut ready) = terminal.readable().await else { return 0 };
        if let Ok(read) = ready.try_io(|terminal| Ok(rustix::io::read(terminal, &mut *buffer)?)) {
            return read.unwrap_or(0);
        }
    }
}

/// Sends the bytes that were read. Returns false if there is nothing more to send.
async fn send(count: usize, buffer: &[u8], to: &mpsc::Sender<Vec<u8>>) -> bool {
    count > 0 && to.send(buffer[..count].to_vec()).await.is_ok()
}

/// How long the output of a command that has ended may take to arrive.
const DRAIN_TIME: Duration = Duration::from_millis(100);
/// The most bytes that a terminal holds.
const DRAIN_BYTES: usize = 64 << 10;
