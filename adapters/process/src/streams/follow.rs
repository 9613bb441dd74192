//! Follows the output of a running container in its log.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;

use podwright_host::log::{LogDir, Record};
use podwright_host::streaming::CHUNK_BYTES;

/// The output in a part of a log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Output {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

/// Reads a log as it grows. All calls block.
pub(super) struct Follower {
    dir: LogDir,
    name: String,
    /// The standard error becomes part of the standard output, as that of a terminal.
    merged: bool,
    file: File,
    /// The beginning of a record whose end was not read yet.
    pending: Vec<u8>,
    /// The file was moved away, and its end was read once after that.
    moved: bool,
}

impl Follower {
    /// Starts at the end of the log.
    pub(super) fn at_end(dir: LogDir, name: String, merged: bool) -> io::Result<Self> {
        let mut file = dir.open()?.file(&name)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Follower { dir, name, merged, file, pending: Vec::new(), moved: false })
    }

    /// The output since the last read. `None` if there is none.
    pub(super) fn read(&mut self) -> io::Result<Option<Output>> {
        let mut buffer = vec![0; CHUNK_BYTES];
        let count = match self.file.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Some(Output::default())),
            read => read?,
        };
        if count == 0 {
            return self.open_next();
        }
        self.pending.extend_from_slice(&buffer[..count]);
        Ok(Some(take_records(&mut self.pending, self.merged)))
    }

    /// Opens the file that replaced this one after a rotation.
    fn open_next(&mut self) -> io::Result<Option<Output>> {
        let next = match self.dir.open()?.file(&self.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            next => next?,
        };
        let (ours, theirs) = (self.file.metadata()?, next.metadata()?);
        if (ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino()) {
            return Ok(None);
        }
        if !self.moved {
            // The shim may still write to the old file just after the new one was created: read it once more.
            self.moved = true;
            return Ok(None);
        }
        (self.file, self.moved) = (next, false);
        self.pending.clear();
        Ok(Some(Output::default()))
    }
}

/// Takes the complete records from the beginning of `pending`.
fn take_records(pending: &mut Vec<u8>, merged: bool) -> Output {
    let mut output = Output::default();
    let end = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    for record in pending[..end].split_inclusive(|byte| *byte == b'\n').filter_map(Record::parse) {
        let to = if record.stream == "stderr" && !merged { &mut output.stderr } else { &mut output.stdout };
        to.extend_from_slice(record.text);
        if record.ends {
            to.push(b'\n');
        }
    }
    pending.drain(..end);
    if pending.len() > MAX_RECORD {
        pending.clear();
    }
    output
}

/// No record is longer, unless another program has written to the log.
const MAX_RECORD: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_followed_from_its_end_through_a_rotation() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let append = |text: &str| {
            use std::io::Write;
            File::options().append(true).create(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
        };
        let output = |stdout: &str, stderr: &str| Output { stdout: stdout.into(), stderr: stderr.into() };
        append("T stdout F before\n");
        let mut follower = Follower::at_end(LogDir::new(dir.path(), "."), "0.log".to_owned(), false).unwrap();
        assert_eq!(follower.read().unwrap(), None);
        append("T stdout F one\nT stderr P tw");
        assert_eq!(follower.read().unwrap(), Some(output("one\n", "")));
        append("o\nT stderr F !\n");
        assert_eq!(follower.read().unwrap(), Some(output("", "two!\n")));
        append("T stdout F last\n");
        std::fs::rename(&path, dir.path().join("0.log.1")).unwrap();
        assert_eq!(follower.read().unwrap(), Some(output("last\n", "")));
        assert_eq!(follower.read().unwrap(), None, "there is no new file yet");
        append("T stdout F new\n");
        let found = (0..4).find_map(|_| follower.read().unwrap().filter(|found| *found != Output::default()));
        assert_eq!(found, Some(output("new\n", "")));
    }
}
