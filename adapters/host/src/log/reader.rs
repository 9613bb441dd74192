//! Reads the log of one run: the rotated files, then the file that is written to, and follows it.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use jiff::civil::DateTime;

use super::LogDir;
use super::dir::OpenLogDir;
use super::file_names::{self, RotatedFile};
use super::printer::{PrintOptions, Printer};

/// How many bytes are read at once.
const CHUNK: usize = 64 << 10;
/// How many times the reader tries to open a file while a rotation moves files.
const OPEN_ATTEMPTS: usize = 10;

/// Which lines of a log to read, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// Read only this many lines from the end of the log.
    pub tail: Option<u64>,
    /// Read only lines that began at this time or later.
    pub since: Option<Timestamp>,
    /// Print the time of each line before its text.
    pub timestamps: bool,
    /// Read only the lines of this stream. [`tail`](ReadOptions::tail) counts the lines of both streams.
    pub stream: Option<LogStream>,
}

/// One of the two output streams of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A reader of the log of one run of a container. Every method blocks.
pub struct Reader {
    dir: OpenLogDir,
    current: String,
    printer: Printer,
    position: Position,
    buffer: Vec<u8>,
}

/// The file that is being read.
enum Position {
    /// A file that was moved away at this time.
    Rotated(DateTime, Box<dyn Read + Send>),
    /// The file that was the newest when it was opened.
    Current {
        file: File,
        /// The time of the newest rotated file when this file was opened.
        after: Option<DateTime>,
        /// The file was moved away, and the reader has reached its end once after that.
        ended_after_move: bool,
    },
}

/// The files of a log at one time.
struct LogFiles {
    /// The rotated files, oldest first.
    older: Vec<RotatedFile>,
    /// The time of the newest rotated file.
    after: Option<DateTime>,
    /// The newest file.
    newest: File,
}

impl LogFiles {
    fn new(older: Vec<RotatedFile>, newest: File) -> Self {
        LogFiles { after: older.last().map(|last| last.at), older, newest }
    }
}

/// The result of one read.
#[derive(Debug, PartialEq, Eq)]
pub enum LogRead {
    /// Text of the log, which may be empty.
    Text(Vec<u8>),
    /// Everything that was written so far has been read.
    End,
}

impl Reader {
    /// Opens the log of run `run` in the log directory of its container. Only regular files are read.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the run has no log; otherwise the system's error.
    pub fn open(dir: &LogDir, run: u32, options: ReadOptions) -> io::Result<Self> {
        let mut reader = Reader {
            current: file_names::current(run),
            dir: dir.open()?,
            printer: Printer::default(),
            position: Position::Rotated(DateTime::MIN, Box::new(io::empty())),
            buffer: vec![0; CHUNK],
        };
        let files = reader.open_current()?;
        reader.start(files, options)?;
        Ok(reader)
    }

    /// Goes to the first requested line of these files. If a file was compressed or removed after it was listed, the files are listed
    /// again.
    fn start(&mut self, mut files: LogFiles, options: ReadOptions) -> io::Result<()> {
        for _ in 0..OPEN_ATTEMPTS {
            match self.first_position(&files, options) {
                Err(error) if error.kind() == ErrorKind::NotFound => files = self.open_current()?,
                Err(error) => return Err(error),
                Ok((rotated, skip)) => {
                    self.printer = Printer::new(PrintOptions {
                        since: options.since,
                        timestamps: options.timestamps,
                        skip,
                        stream: options.stream,
                    });
                    let LogFiles { after, newest: file, .. } = files;
                    self.position = rotated.unwrap_or(Position::Current { file, after, ended_after_move: false });
                    return Ok(());
                }
            }
        }
        Err(io::Error::other("its files are rotated faster than they can be read"))
    }

    /// The rotated file to begin with, and how many lines to skip from there on. `None` for the newest file.
    fn first_position(&self, files: &LogFiles, options: ReadOptions) -> io::Result<(Option<Position>, u64)> {
        let older = &files.older;
        let (first, skip) = match (options.tail, options.since) {
            (Some(lines), _) => self.last_lines(older, &files.newest, lines)?,
            (None, Some(since)) => {
                (older.iter().position(|old| self.written_since(old, since)).unwrap_or(older.len()), 0)
            }
            (None, None) => (0, 0),
        };
        let first = older.get(first);
        let opened = first.map(|old| self.open_rotated(old.at).map(|source| Position::Rotated(old.at, source)));
        Ok((opened.transpose()?, skip))
    }

    /// Reads the next part of the log. After [`LogRead::End`] a later call may return more.
    ///
    /// # Errors
    /// The system's error.
    pub fn read(&mut self) -> io::Result<LogRead> {
        loop {
            let read = match &mut self.position {
                Position::Rotated(_, source) => source.read(&mut self.buffer),
                Position::Current { file, .. } => file.read(&mut self.buffer),
            };
            let count = match read {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            if count > 0 {
                let mut text = Vec::new();
                self.printer.feed(&self.buffer[..count], &mut text);
                return Ok(LogRead::Text(text));
            }
            if !self.open_next()? {
                return Ok(LogRead::End);
            }
        }
    }

    /// Ends the reading and returns the rest of the text, such as a line without an end.
    pub fn finish(mut self) -> Vec<u8> {
        let mut text = Vec::new();
        self.printer.finish(&mut text);
        text
    }

    /// Opens the file after the one that was read to its end. Returns false if there is none.
    fn open_next(&mut self) -> io::Result<bool> {
        let at = match &mut self.position {
            Position::Rotated(at, _) => *at,
            Position::Current { file, after, ended_after_move } => {
                let ours = file.metadata()?;
                match self.dir.facts(&self.current) {
                    Ok(there) if there.identity != (ours.dev(), ours.ino()) => {}
                    // Either nothing was rotated, or the container has no new file yet and still writes to this one.
                    _ => return Ok(false),
                }
                if !*ended_after_move {
                    // The container may still write to this file just after it opened the new one: read it once more.
                    *ended_after_move = true;
                    return Ok(false);
                }
                let older = rotated(&self.dir, &self.current)?;
                match older.iter().find(|old| Some(old.at) > *after) {
                    // The first file that was rotated after this file was opened is this file itself.
                    Some(old) => old.at,
                    None => after.unwrap_or(DateTime::MIN),
                }
            }
        };
        for _ in 0..OPEN_ATTEMPTS {
            let LogFiles { older, after, newest: file } = self.open_current()?;
            self.position = match older.iter().find(|old| old.at > at) {
                Some(old) => match self.open_rotated(old.at) {
                    Ok(source) => Position::Rotated(old.at, source),
                    // The file was compressed or removed after it was listed.
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                },
                None => Position::Current { file, after, ended_after_move: false },
            };
            return Ok(true);
        }
        Ok(false)
    }

    /// Opens the file that the container writes to, and lists the rotated files, as of one point in time. If that file was just moved
    /// away and the container has no new file yet, the newest rotated file takes its place.
    fn open_current(&self) -> io::Result<LogFiles> {
        let mut before = rotated(&self.dir, &self.current)?;
        let mut missing = io::Error::from(ErrorKind::NotFound);
        for _ in 0..OPEN_ATTEMPTS {
            let opened = self.dir.file(&self.current);
            let after = rotated(&self.dir, &self.current)?;
            let same = before.last().map(|last| last.at) == after.last().map(|last| last.at);
            match opened {
                Ok(newest) if same => return Ok(LogFiles::new(after, newest)),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    missing = error;
                    if let (true, Some(last)) = (same, after.last()) {
                        match self.dir.file(last.name(&self.current)) {
                            Ok(newest) => return Ok(LogFiles::new(after[..after.len() - 1].to_vec(), newest)),
                            Err(error) if error.kind() == ErrorKind::NotFound => {}
                            Err(error) => return Err(error),
                        }
                    }
                }
                Err(error) => return Err(error),
                Ok(_) => {}
            }
            before = after;
        }
        Err(missing)
    }

    /// Opens a rotated file, compressed or not.
    fn open_rotated(&self, at: DateTime) -> io::Result<Box<dyn Read + Send>> {
        let open = |compressed| self.dir.file(RotatedFile { at, compressed }.name(&self.current));
        match open(false) {
            Ok(file) => Ok(Box::new(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(Box::new(MultiGzDecoder::new(io::BufReader::with_capacity(CHUNK, open(true)?))))
            }
            Err(error) => Err(error),
        }
    }

    fn written_since(&self, old: &RotatedFile, since: Timestamp) -> bool {
        let facts = self.dir.facts(&old.name(&self.current));
        facts.map_or(true, |facts| facts.modified >= SystemTime::from(since))
    }

    /// The index of the file to begin with for the last `lines` lines, and how many lines come before them from there on. No line
    /// continues from an older file in that file.
    fn last_lines(&self, older: &[RotatedFile], mut newest: &File, lines: u64) -> io::Result<(usize, u64)> {
        let (complete, open) = count_lines(newest)?;
        newest.rewind()?;
        let mut count = complete + open;
        let mut first = older.len();
        let mut has_joined_line = false;
        while first > 0 {
            let (complete, open) = match self.open_rotated(older[first - 1].at).and_then(count_lines) {
                // A file that holds no requested line may be unreadable.
                Err(_) if count >= lines => break,
                counted => counted?,
            };
            if count >= lines && open == 0 {
                break;
            }
            has_joined_line |= open > 0;
            count += complete;
            first -= 1;
        }
        if has_joined_line {
            // The order and the number of the lines around the end of a file depend on both files.
            let mut whole: Box<dyn Read + Send> = Box::new(io::empty());
            for old in &older[first..] {
                whole = Box::new(whole.chain(self.open_rotated(old.at)?));
            }
            let (complete, open) = count_lines(whole.chain(newest))?;
            newest.rewind()?;
            count = complete + open;
        }
        Ok((first, count.saturating_sub(lines)))
    }
}

/// The runs of a container that have a log in its log directory, in ascending order. Empty if there is no such directory.
/// Blocks.
///
/// # Errors
/// The system's error.
pub fn runs(dir: &LogDir) -> io::Result<Vec<u32>> {
    let files = match dir.open().and_then(|dir| dir.names()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let mut runs: Vec<u32> = files.iter().filter_map(|file| file.split_once(".log")?.0.parse().ok()).collect();
    runs.sort_unstable();
    runs.dedup();
    Ok(runs)
}

/// The rotated files, oldest first. Anything with the name of a rotated file that is not a regular file is left out.
fn rotated(dir: &OpenLogDir, current: &str) -> io::Result<Vec<RotatedFile>> {
    let mut names = dir.names()?;
    names.retain(|name| dir.facts(name).is_ok());
    Ok(file_names::rotated(current, names.iter().map(String::as_str)))
}

/// The number of complete lines in a file, and the number of lines that its end leaves open: lines whose end was not written yet, and
/// lines that wait for it.
fn count_lines(mut file: impl Read) -> io::Result<(u64, u64)> {
    let (mut printer, mut buffer, mut out) = (Printer::default(), vec![0; CHUNK], Vec::new());
    let newlines = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count() as u64;
    let mut lines = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                printer.feed(&buffer[..count], &mut out);
                lines += newlines(&out);
                out.clear();
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    printer.finish(&mut out);
    Ok((lines, newlines(&out)))
}

#[cfg(test)]
mod tests;
