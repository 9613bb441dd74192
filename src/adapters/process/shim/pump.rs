//! The shim's second thread: it copies the container's output to the log and turns the agent's requests into signals.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_setfl, mknodat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use super::super::files::Request;
use super::super::record::{self, Cgroup};
use super::log::{Lines, Log};
use super::note;

/// The files and the target of the thread.
pub(super) struct Pump {
    pub(super) out: OwnedFd,
    pub(super) err: OwnedFd,
    pub(super) control: File,
    /// A pipe that closes when no process of the container is left.
    pub(super) dead: OwnedFd,
    pub(super) log: Log,
    /// The leader of the container's process group; `None` once it is reaped.
    pub(super) target: Arc<Mutex<Option<Pid>>>,
    pub(super) stop_signal: Signal,
    pub(super) cgroup: Option<Cgroup>,
}

/// Creates and opens the FIFO for requests.
pub(super) fn open_control(path: &Path) -> io::Result<File> {
    match mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // The FIFO is opened for writing too. Otherwise a read would report its end whenever no agent has the FIFO open.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("the flag is one low bit");
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

impl Pump {
    /// Starts the thread, which ends when `dead` closes. The returned channel closes when the thread has ended.
    pub(super) fn spawn(mut self) -> io::Result<Receiver<Infallible>> {
        for fd in [&self.out, &self.err] {
            fcntl_setfl(fd, OFlags::NONBLOCK)?;
        }
        let (running, ended) = std::sync::mpsc::channel();
        let body = move || {
            if let Err(error) = self.run() {
                note(&format!("cannot copy the container's output any more: {error}"));
            }
            drop(running);
        };
        std::thread::Builder::new().stack_size(STACK).spawn(body)?;
        Ok(ended)
    }

    fn run(&mut self) -> io::Result<()> {
        let mut streams = [Lines::new("stdout"), Lines::new("stderr")];
        let mut open = [true, true];
        let mut requests = Vec::new();
        let mut buffer = vec![0; CHUNK];
        loop {
            // A stream that has ended is always ready, so it is not polled.
            let flags = |open: bool| if open { PollFlags::IN } else { PollFlags::empty() };
            let mut fds = [
                PollFd::new(&self.dead, PollFlags::IN),
                PollFd::new(&self.control, PollFlags::IN),
                PollFd::new(if open[0] { &self.out } else { &self.dead }, flags(open[0])),
                PollFd::new(if open[1] { &self.err } else { &self.dead }, flags(open[1])),
            ];
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [dead, control, ..] = fds.map(|fd| !fd.revents().is_empty());
            if control {
                self.take_requests(&mut requests);
            }
            for (i, lines) in streams.iter_mut().enumerate() {
                let fd = if i == 0 { &self.out } else { &self.err };
                while open[i] {
                    match copy(fd, lines, &mut buffer, &mut self.log)? {
                        // Only one chunk is copied at a time, so that a stream with much output delays neither requests
                        // nor the other stream.
                        Copied::Some | Copied::WouldBlock if !dead => break,
                        Copied::Some => {}
                        // All processes of the container have ended, so nothing more will be written, even if another
                        // process still has the pipe open.
                        Copied::WouldBlock | Copied::Ended => open[i] = false,
                    }
                }
            }
            if dead {
                let mut records = Vec::new();
                let time = time_text();
                streams.iter_mut().for_each(|lines| lines.finish(&time, &mut records));
                self.log.write(&records);
                return Ok(());
            }
        }
    }

    fn take_requests(&mut self, pending: &mut Vec<u8>) {
        let mut buffer = [0; 64];
        while let Ok(n @ 1..) = rustix::io::read(&self.control, &mut buffer) {
            pending.extend_from_slice(&buffer[..n]);
        }
        while let Some(end) = pending.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            match Request::parse(&line[..end]) {
                Some(Request::Term) => self.signal(self.stop_signal),
                Some(Request::Kill) => {
                    if let Some(cgroup) = &self.cgroup {
                        let _ = cgroup.kill();
                    }
                    // The first thread kills the other processes once the leader has ended.
                    self.signal(Signal::KILL);
                }
                Some(Request::Reopen) => {
                    if let Err(error) = self.log.reopen() {
                        note(&format!("cannot reopen the log: {error}"));
                    }
                }
                None => {}
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(leader) = *target {
            let _ = kill_process_group(leader, signal);
        }
    }
}

/// The result of one read.
enum Copied {
    Some,
    WouldBlock,
    Ended,
}

fn copy(fd: &OwnedFd, lines: &mut Lines, buffer: &mut [u8], log: &mut Log) -> io::Result<Copied> {
    match rustix::io::read(fd, &mut *buffer) {
        Ok(0) => Ok(Copied::Ended),
        Ok(n) => {
            let mut records = Vec::new();
            lines.feed(&time_text(), &buffer[..n], &mut records);
            log.write(&records);
            Ok(Copied::Some)
        }
        Err(Errno::AGAIN | Errno::INTR) => Ok(Copied::WouldBlock),
        Err(error) => Err(error.into()),
    }
}

/// The current time in the log's format.
fn time_text() -> String {
    format!("{:.9}", record::now().to_timestamp())
}

/// How many bytes are read at once. A pipe holds 64 KiB.
const CHUNK: usize = 8 * 1024;
/// The size of the thread's stack in bytes. The thread makes no deeply nested calls.
const STACK: usize = 64 * 1024;
