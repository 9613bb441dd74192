//! A container's termination message.

use std::fs::File;
use std::io::Read;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use super::super::record::RunRecord;
use crate::adapters::log::end_of_log;

/// The termination message of a container that has ended: the first 4096 bytes of its termination log. If that is empty, the
/// container failed and its policy is `FallbackToLogsOnError`, the message is the end of the container's log, at most 2048
/// bytes and 80 lines (limits of `kubelet/container/runtime.go`, kubelet 1.36).
pub(super) fn termination_message(run: &RunRecord, exit_code: i32) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = open_inside(run) {
        let _ = file.take(4096).read_to_end(&mut bytes);
    }
    if bytes.is_empty() && run.message_from_log && exit_code != 0 {
        bytes = end_of_log(&run.log);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Opens the termination log. The container may have replaced the file. A link must not give access to a file that the
/// container may not read, and opening a FIFO must not block.
fn open_inside(run: &RunRecord) -> rustix::io::Result<File> {
    let dir = openat(CWD, &run.rootfs, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(File::from(openat2(dir, &run.termination_log, flags, Mode::empty(), inside)?))
}
