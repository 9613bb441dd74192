//! Records that outlive the agent, in files: the final statuses of pods, the allocations of pods, the facts of containers, the times of
//! the last shutdown, the claims of pods, and the health of devices.
//!
//! ```
//! use podwright_checkpoint::FileCheckpoint;
//! use podwright_ports::Checkpoint;
//!
//! # let dir = tempfile::tempdir()?;
//! let checkpoint = FileCheckpoint::new(dir.path().join("final-statuses"));
//! assert!(checkpoint.open()?.records.is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The file of a [`FileCheckpoint`]
//!
//! Each record is a line with a checksum. The first line is a header with the number of records that were saved
//! together. Later records were appended.
//!
//! If an agent was killed during an append, or the disk was full, the last line has no newline. That append was never
//! acknowledged, so the line is ignored. Any other difference counts as damage.
//!
//! A node that is dropped does not wait for its last write, which runs on a blocking thread. A later node of the same process may
//! use the same file. So each opening of a file has a number, and a writer writes only while its opening is the last one. A
//! write checks the number and changes the file under the lock that an opening holds while it reads.
//!
//! # Parts
//!
//! - [`FileCheckpoint`]: records of one kind in one file.
//! - [`ClaimCheckpoint`]: the claims, in the file of a kubelet and a journal.
//! - [`HealthCheckpoint`]: the health of devices.
//!
//! # Arrows
//!
//! The crate implements the port [`Checkpoint`] of `podwright-ports` over the checksummed files of `podwright-host`.

mod claims;
mod health;
mod reserve;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_host::record::{self, Durability, ReadError};
use podwright_ports::{Checkpoint, CheckpointError, CheckpointWriter, OpenCheckpoint};

use self::reserve::ReservedFile;

pub use claims::ClaimCheckpoint;
pub use health::HealthCheckpoint;

/// The beginning of the header.
const NAME: &str = "podwright journal ";
/// The version of the format, which follows in the header. After it comes the number of saved records.
const VERSION: &str = "2 ";
/// The suffix of the copy of a damaged file.
const CORRUPT: &str = "corrupt";

/// The longest file of facts of containers that is read. A node writes far less.
const MAX_RUN_FACTS: u64 = 64 << 20;

/// How long an opening waits for a write of an earlier node. A disk that needs longer has failed.
const WAIT: Duration = Duration::from_secs(10);

/// [`Checkpoint`] in one file.
#[derive(Clone, Debug)]
pub struct FileCheckpoint {
    path: PathBuf,
    records: Records,
}

/// What a file keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Records {
    FinalStatuses,
    Allocations,
    RunFacts,
    ShutdownTimes,
}

impl Records {
    /// What follows if lines of the file are damaged, and what to do about it.
    fn consequence(self) -> &'static str {
        match self {
            Records::FinalStatuses => {
                "the journal of final statuses is damaged, the agent uses its intact lines: pods that were rejected or have finished \
                 may run again, and a pod that was created again may get its old status; remove the manifests of such pods"
            }
            Records::Allocations => {
                "the file of allocations is damaged, the agent uses its intact lines: the allocations of the other pods are taken \
                 from their statuses, and their resizes are decided again"
            }
            Records::RunFacts => {
                "the file of the facts of containers is damaged, the agent uses its intact lines: a start that the last agent did not \
                 finish may count as a failed one, its post-start hook may be lost, and containers that stop may get their whole grace \
                 periods again; no action is needed"
            }
            Records::ShutdownTimes => {
                "the file of the times of the last shutdown is damaged: their metrics may be missing until the next shutdown; no action is \
                 needed"
            }
        }
    }

    /// How many bytes are read at most.
    fn limit(self) -> u64 {
        match self {
            Records::FinalStatuses | Records::Allocations | Records::ShutdownTimes => u64::MAX,
            Records::RunFacts => MAX_RUN_FACTS,
        }
    }

    /// Whether no records are better than outdated ones. A node starts without a file that cannot be read, and replaces it. A file that
    /// cannot be replaced is removed, which works on a full disk too.
    fn is_optional(self) -> bool {
        match self {
            Records::FinalStatuses | Records::Allocations | Records::ShutdownTimes => false,
            Records::RunFacts => true,
        }
    }

    /// Whether space is reserved for writes on a full disk. The end of a pod has to be recorded there, because it frees the files of the
    /// pod. The allocations are changed by resizes, which can wait.
    fn is_reserved(self) -> bool {
        match self {
            Records::FinalStatuses => true,
            Records::Allocations | Records::RunFacts | Records::ShutdownTimes => false,
        }
    }

    /// No container outlives the boot, and neither do the facts of containers.
    fn durability(self) -> Durability {
        match self {
            Records::FinalStatuses | Records::Allocations | Records::ShutdownTimes => Durability::Disk,
            Records::RunFacts => Durability::Boot,
        }
    }
}

/// A file that a writer of this process may write.
#[derive(Debug)]
struct SharedFile {
    path: PathBuf,
    /// The number of openings. Locked while the file is read or written.
    openings: Mutex<u64>,
}

/// The files of all writers and of all writes in progress, by path.
static SHARED_FILES: Mutex<BTreeMap<PathBuf, Weak<SharedFile>>> = Mutex::new(BTreeMap::new());

impl SharedFile {
    /// The file at a path. All openings and writers of the file share it.
    fn at(path: &Path) -> Result<Arc<Self>, CheckpointError> {
        let path = canonical(path)?;
        let mut files = SHARED_FILES.lock();
        files.retain(|_, file| file.strong_count() > 0);
        if let Some(file) = files.get(&path).and_then(Weak::upgrade) {
            return Ok(file);
        }
        let file = Arc::new(SharedFile { path: path.clone(), openings: Mutex::new(0) });
        files.insert(path, Arc::downgrade(&file));
        Ok(file)
    }
}

/// The one path of a file, however its directory is written. A symbolic link in place of the file is not followed, because the
/// first save replaces it.
fn canonical(path: &Path) -> Result<PathBuf, CheckpointError> {
    let name =
        path.file_name().ok_or_else(|| CheckpointError::new(path, "the path must end with the name of a file"))?;
    let directory = match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    let directory = directory.canonicalize().map_err(|error| {
        let remedy = format!("cannot open the directory of the file, create it or correct the path: {error}");
        CheckpointError::new(path, io::Error::new(error.kind(), remedy))
    })?;
    Ok(directory.join(name))
}

/// The content of a file.
struct LoadedRecords {
    records: Vec<String>,
    damaged: bool,
}

fn parse(file: &[u8]) -> LoadedRecords {
    let mut lines = file.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n")).peekable();
    let header = lines.peek().and_then(|line| record::unseal_line(line)?.strip_prefix(NAME));
    let saved = header.and_then(|header| header.strip_prefix(VERSION)?.parse::<usize>().ok());
    if header.is_some() {
        lines.next();
    }
    let lines: Vec<_> = lines.map(record::unseal_line).collect();
    let damaged = saved.is_none_or(|saved| lines.len() < saved) || lines.contains(&None);
    LoadedRecords { records: lines.into_iter().flatten().map(str::to_owned).collect(), damaged }
}

fn lines(records: &[impl AsRef<str>]) -> String {
    records.iter().map(|record| record::seal_line(record.as_ref())).collect()
}

/// The text of a file whose records are all saved together.
fn whole(records: &[impl AsRef<str>]) -> String {
    record::seal_line(&format!("{NAME}{VERSION}{}", records.len())) + &lines(records)
}

impl FileCheckpoint {
    /// A checkpoint of final statuses in this file. The file need not exist, but its directory must exist when the file is opened.
    /// A hidden file beside it reserves at least 256 KiB and twice the size of the file, so that it can be written on a full disk.
    pub fn new(path: PathBuf) -> Self {
        FileCheckpoint { path, records: Records::FinalStatuses }
    }

    /// The same for the resources that are allocated to pods, without reserved space. The log reports damage of the file accordingly.
    pub fn of_allocations(path: PathBuf) -> Self {
        FileCheckpoint { path, records: Records::Allocations }
    }

    /// The same for the times of the last shutdown, without reserved space.
    pub fn of_shutdown_times(path: PathBuf) -> Self {
        FileCheckpoint { path, records: Records::ShutdownTimes }
    }

    /// The same for the facts of containers, without reserved space. The file survives the end of the agent. No container outlives the boot of
    /// the machine, so the facts are of one boot: remove the file before the first node of another boot starts. A loss of power may damage the
    /// file. A file that cannot be read, or has more than 64 MiB, is logged and counts as empty, and the first write replaces it. A file that
    /// cannot be replaced is removed, because outdated facts are worse than none.
    pub fn of_run_facts(path: PathBuf) -> Self {
        FileCheckpoint { path, records: Records::RunFacts }
    }

    fn open_within(&self, wait: Duration) -> Result<OpenCheckpoint, CheckpointError> {
        let file = SharedFile::at(&self.path)?;
        let Some(mut openings) = file.openings.try_lock_for(wait) else {
            let seconds = wait.as_secs();
            return Err(CheckpointError::new(
                &file.path,
                format!(
                    "an earlier node of this process still writes the file after {seconds} s: \
                     wait until the disk responds, and start the node again"
                ),
            ));
        };
        let bytes = match record::bytes_up_to(&file.path, self.records.limit()) {
            Ok(bytes) => Some(bytes),
            Err(ReadError::Missing(_)) => None,
            Err(error) if self.records.is_optional() => {
                tracing::warn!(
                    %error,
                    "cannot read the file of the facts of containers: the agent replaces it, and does not know what the last agent was \
                     doing with the containers"
                );
                None
            }
            // The file is most likely intact, so it is not replaced. A later agent may be able to read it.
            Err(ReadError::Io { path, error }) => return Err(CheckpointError::new(path, error)),
            Err(error @ ReadError::Damaged { .. }) => return Err(CheckpointError::new(&file.path, error)),
        };
        *openings += 1;
        let LoadedRecords { records, damaged } =
            bytes.map_or(LoadedRecords { records: Vec::new(), damaged: false }, |bytes| parse(&bytes));
        if damaged {
            repair(&file.path, &records, self.records.consequence());
        }
        let reserved = self.records.is_reserved().then(|| Arc::new(ReservedFile::new(file.path.clone())));
        if let Some(reserved) = &reserved {
            reserved.reserve(reserved.size());
        }
        let writer = FileWriter { opening: *openings, file: file.clone() };
        let writer = RecordWriter { writer, records: self.records, reserved };
        Ok(OpenCheckpoint { records, writer: Box::new(writer) })
    }
}

impl Checkpoint for FileCheckpoint {
    /// Waits up to 10 s for a write of an earlier node that is in progress.
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        self.open_within(WAIT)
    }
}

/// Gives the damaged file a second name, `aside`, so that it can be inspected after the file is replaced.
fn keep_aside(path: &Path, aside: &Path) -> io::Result<()> {
    let temp = aside.with_extension("corrupt.tmp");
    match fs::remove_file(&temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    // Not every file system has hard links.
    fs::hard_link(path, &temp).or_else(|_| fs::copy(path, &temp).map(drop))?;
    fs::rename(&temp, aside)?;
    // `rename` keeps `temp` if it and `aside` are already names of the same file.
    let _ = fs::remove_file(&temp);
    record::sync_parent(aside)
}

/// Logs that the file is damaged, keeps a copy of it, and replaces it by its good records.
fn repair(path: &Path, good: &[String], consequence: &str) {
    let aside = path.with_extension(CORRUPT);
    let replace = || record::replace(path, whole(good).as_bytes(), Durability::Disk);
    let copy = match keep_aside(path, &aside) {
        Ok(()) => match replace() {
            Ok(()) => format!("the damaged file is kept in {}", aside.display()),
            Err(error) => format!("a copy is in {}, but the file cannot be replaced yet: {error}", aside.display()),
        },
        // The file is replaced by the next save.
        Err(error) => format!("the damaged file cannot be kept in {}: {error}", aside.display()),
    };
    tracing::error!(
        path = %path.display(), good = good.len(), copy, "{consequence}"
    );
}

/// Writes the file until it is opened again.
#[derive(Debug)]
struct FileWriter {
    file: Arc<SharedFile>,
    /// The number of the opening that made this writer.
    opening: u64,
}

/// Writes records of one kind to the file.
#[derive(Debug)]
struct RecordWriter {
    writer: FileWriter,
    records: Records,
    /// The file, if it is written also on a full disk.
    reserved: Option<Arc<ReservedFile>>,
}

/// Appends lines to a file. A missing file must be saved as a whole, so this does not create it.
fn append(path: &Path, lines: &str, durability: Durability) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(path)?;
    file.write_all(lines.as_bytes())?;
    if durability == Durability::Disk { file.sync_data() } else { Ok(()) }
}

impl FileWriter {
    fn write(
        &self,
        work: impl FnOnce(&Path) -> io::Result<()> + Send + 'static,
    ) -> BoxFuture<'_, Result<(), CheckpointError>> {
        let (file, opening) = (self.file.clone(), self.opening);
        let write = move || {
            let openings = file.openings.lock();
            if *openings != opening {
                return Err(CheckpointError::Superseded { path: file.path.clone() });
            }
            work(&file.path).map_err(|error| CheckpointError::new(&file.path, error))
        };
        async move {
            let written = tokio::task::spawn_blocking(write).await;
            written.map_err(|error| CheckpointError::new(&self.file.path, error)).flatten()
        }
        .boxed()
    }
}

impl CheckpointWriter for RecordWriter {
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        let (kind, reserved) = (self.records, self.reserved.clone());
        self.writer.write(move |path| {
            let file = whole(&records);
            if let Some(reserved) = reserved {
                return reserved.save(file.as_bytes());
            }
            record::replace(path, file.as_bytes(), kind.durability()).inspect_err(|_| {
                if kind.is_optional() {
                    let _none = fs::remove_file(path);
                }
            })
        })
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        let (durability, reserved) = (self.records.durability(), self.reserved.clone());
        self.writer.write(move |path| {
            append(path, &lines(&records), durability)?;
            if let Some(reserved) = reserved {
                reserved.reserve(reserved.size());
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
