//! Copies the input of attached clients to a container's command.
//!
//! Clients write to a FIFO, which has no reader except the shim. The FIFO reports its end when the last client has closed it, also if the
//! agent was killed. The shim alone has the other end of the command's pipe or terminal, so the command's input outlives every client,
//! and ends with a client only by `stdinOnce`.
//!
//! The shim holds at most [`PORTION`] bytes. If the command does not read, the FIFO fills up and the clients wait.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::Errno;

use super::super::files::remove_file;

/// The FIFO, and the shim's end of the command's input.
pub(super) struct InputRelay {
    path: PathBuf,
    fifo: File,
    to: OwnedFd,
    /// Bytes that were read and not written yet.
    pending: Vec<u8>,
    /// Whether the command's input ends when no client is left.
    ends_with_client: bool,
}

impl InputRelay {
    /// Creates the FIFO. `to` must not block.
    pub(super) fn open(path: PathBuf, to: OwnedFd, ends_with_client: bool) -> io::Result<Self> {
        match mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let fifo = open_fifo(&path)?;
        Ok(InputRelay { path, fifo, to, pending: Vec::new(), ends_with_client })
    }

    /// What the relay waits for.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        match self.pending.is_empty() {
            true => PollFd::new(&self.fifo, PollFlags::IN),
            false => PollFd::new(&self.to, PollFlags::OUT),
        }
    }

    /// Copies some bytes, when the descriptor of [`InputRelay::poll_fd`] is ready. Returns false if the command's input has ended.
    pub(super) fn copy(&mut self) -> bool {
        let result = if self.pending.is_empty() { self.read() } else { self.write() };
        match result {
            Ok(goes_on) => goes_on,
            Err(Errno::AGAIN | Errno::INTR) => true,
            // The command has closed its input.
            Err(_) => false,
        }
    }

    fn read(&mut self) -> Result<bool, Errno> {
        let mut buffer = [0; PORTION];
        let count = rustix::io::read(&self.fifo, &mut buffer)?;
        if count > 0 {
            self.pending.extend_from_slice(&buffer[..count]);
        } else if self.ends_with_client {
            return Ok(false);
        } else {
            // A new descriptor reports an end only after the next client. The old one is closed later, so that a client that came
            // meanwhile loses nothing.
            match open_fifo(&self.path) {
                Ok(fifo) => self.fifo = fifo,
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    fn write(&mut self) -> Result<bool, Errno> {
        let count = rustix::io::write(&self.to, &self.pending)?;
        self.pending.drain(..count);
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
        Ok(count > 0)
    }
}

impl Drop for InputRelay {
    fn drop(&mut self) {
        // Later clients find no FIFO, and get only the output.
        let _ = remove_file(&self.path);
    }
}

/// Opens the FIFO for reading, without waiting for a client.
fn open_fifo(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("the flag is one low bit");
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// The most bytes that are read at once.
const PORTION: usize = 4 << 10;
