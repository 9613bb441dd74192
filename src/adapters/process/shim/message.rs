//! A container's termination message.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use super::super::record::RunRecord;
use super::log::text_of;

/// The message of a container that ended: what it wrote to its termination log, else, if it failed and asked for that,
/// the end of its log (limits of `kubelet/container/runtime.go`, kubelet 1.36: 4096 bytes, 2048 bytes, 80 lines).
pub(super) fn termination_message(run: &RunRecord, exit_code: i32) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = open_inside(run) {
        let _ = file.take(4096).read_to_end(&mut bytes);
    }
    if bytes.is_empty() && run.message_from_log && exit_code != 0 {
        bytes = end_of_log(run);
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

fn end_of_log(run: &RunRecord) -> Vec<u8> {
    let mut raw = Vec::new();
    let read = File::open(&run.log).and_then(|mut file| {
        // Times and tags come on top of the text, more of them the shorter the lines.
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(len.saturating_sub(MAX_BYTES as u64 + MAX_LINES as u64 * 64)))?;
        file.read_to_end(&mut raw)
    });
    if read.is_err() {
        return Vec::new();
    }
    last_lines(&raw)
}

fn last_lines(raw: &[u8]) -> Vec<u8> {
    let lines: Vec<&[u8]> = raw.split_inclusive(|b| *b == b'\n').filter_map(text_of).collect();
    let text = lines[lines.len().saturating_sub(MAX_LINES)..].concat();
    text[text.len().saturating_sub(MAX_BYTES)..].to_vec()
}

const MAX_BYTES: usize = 2048;
const MAX_LINES: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_eighty_lines_and_two_kibibytes_are_kept() {
        let log = |n: usize, text: &str| (0..n).map(|i| format!("T stderr F {text}{i}\n")).collect::<String>();
        let short = last_lines(log(100, "").as_bytes());
        assert_eq!(short.split(|b| *b == b'\n').count(), 81);
        assert!(short.starts_with(b"20\n") && short.ends_with(b"99\n"));
        let long = last_lines(log(100, &"x".repeat(100)).as_bytes());
        assert_eq!(long.len(), 2048);
        assert!(long.ends_with(b"x99\n"));
        assert_eq!(last_lines(b""), b"");
    }
}
