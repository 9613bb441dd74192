//! The shim's second thread: it copies the container's output to the log and the clients' input to the command, and turns the agent's
//! requests into signals.

use std::convert::Infallible;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

use super::super::files::Request;
use super::super::pty;
use super::super::record::{self, Cgroup};
use super::input_relay::InputRelay;
use super::log::{Lines, Log};
use super::note;
use super::stdio::ShimStreams;

/// The files and the target of the thread.
pub(super) struct Pump {
    pub(super) streams: ShimStreams,
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
        let mut lines = [Lines::new("stdout"), Lines::new("stderr")];
        let mut open = [true, self.streams.err.is_some()];
        let mut requests = Vec::new();
        let mut buffer = vec![0; CHUNK];
        let mut flush_at = None;
        loop {
            let [dead, control, input] = self.wait(open, flush_at)?;
            if control {
                self.take_requests(&mut requests);
            }
            if input && !self.streams.input.as_mut().is_some_and(InputRelay::copy) {
                self.streams.input = None;
            }
            for (i, lines) in lines.iter_mut().enumerate() {
                let fd = if i == 0 { Some(&self.streams.out) } else { self.streams.err.as_ref() };
                let Some(fd) = fd else { continue };
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
                lines.iter_mut().for_each(|lines| lines.finish(&time, &mut records));
                self.log.write(&records);
                return Ok(());
            }
            flush_at = self.flush(&mut lines, flush_at);
        }
    }

    /// Waits until something happens, or until `flush_at`. Returns whether all processes have ended, whether requests have arrived,
    /// and whether the input can be copied.
    fn wait(&self, open: [bool; 2], flush_at: Option<Instant>) -> io::Result<[bool; 3]> {
        // A stream that has ended is always ready, so it is not polled.
        let none = || PollFd::new(&self.dead, PollFlags::empty());
        let mut fds = [
            PollFd::new(&self.dead, PollFlags::IN),
            PollFd::new(&self.control, PollFlags::IN),
            self.streams.input.as_ref().map_or_else(none, InputRelay::poll_fd),
            if open[0] { PollFd::new(&self.streams.out, PollFlags::IN) } else { none() },
            match &self.streams.err {
                Some(err) if open[1] => PollFd::new(err, PollFlags::IN),
                _ => none(),
            },
        ];
        let timeout = flush_at.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = timeout.map(|left| Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let [dead, control, input, ..] = fds.map(|fd| !fd.revents().is_empty());
        Ok([dead, control, input && self.streams.input.is_some()])
    }

    /// Writes the unfinished lines of an interactive container to the log when they are [`FLUSH_AFTER`] old. Returns when to call this
    /// again.
    fn flush(&mut self, lines: &mut [Lines; 2], flush_at: Option<Instant>) -> Option<Instant> {
        if !self.streams.interactive || !lines.iter().any(Lines::has_pending) {
            return None;
        }
        let now = Instant::now();
        let at = flush_at.unwrap_or(now + FLUSH_AFTER);
        if now < at {
            return Some(at);
        }
        let mut records = Vec::new();
        let time = time_text();
        lines.iter_mut().for_each(|lines| lines.flush(&time, &mut records));
        self.log.write(&records);
        None
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
                Some(Request::Resize(size)) => pty::resize(&self.streams.out, size),
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
        // No process has the terminal open.
        Err(Errno::IO) => Ok(Copied::Ended),
        Err(error) => Err(error.into()),
    }
}

/// The current time in the log's format.
fn time_text() -> String {
    format!("{:.9}", record::now().to_timestamp())
}

/// How long the log of an interactive container waits for the rest of a line. Output that a program writes in pieces stays in one record,
/// and a person does not notice the delay.
const FLUSH_AFTER: Duration = Duration::from_millis(20);
/// How many bytes are read at once. A pipe holds 64 KiB.
const CHUNK: usize = 8 * 1024;
/// The size of the thread's stack in bytes. The thread makes no deeply nested calls.
const STACK: usize = 64 * 1024;
