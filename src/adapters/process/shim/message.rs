//! A container's termination message.

use std::fs::File;
use std::io::Read;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use super::super::record::RunRecord;
use crate::adapters::log::end_of_log;

/// The message of a container that ended: what it wrote to its termination log, else, if it failed and asked for that,
/// the end of its log (limits of `kubelet/container/runtime.go`, kubelet 1.36: 4096 bytes, 2048 bytes, 80 lines).
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

/// Opens the termination log. The container could put anything in its place: a link must not make us read what the
/// container itself may not, and a FIFO must not make us wait.
fn open_inside(run: &RunRecord) -> rustix::io::Result<File> {
    let dir = openat(CWD, &run.rootfs, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    Ok(File::from(openat2(dir, &run.termination_log, flags, Mode::empty(), inside)?))
}
