//! Keeps the specifications that were read, and reads them again when their files have changed.

use std::collections::HashMap;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::directories::{files, read_file};
use super::error::{SpecError, SpecFault};
use super::resolve::{Spec, Specs};

/// A file that changed so shortly before it was read may change again without a change of its time: the times of file systems have a
/// resolution of up to 2 s.
const RESOLUTION: Duration = Duration::from_secs(2);

/// The specifications of directories. A file is read again only if it has changed.
#[derive(Debug, Default)]
pub struct SpecCache {
    directories: Vec<PathBuf>,
    files: Mutex<HashMap<PathBuf, CachedSpec>>,
}

#[derive(Debug)]
struct CachedSpec {
    version: FileVersion,
    spec: Arc<Spec>,
}

/// What differs between two versions of a file. The time of the last change (`ctime`) differs also if a writer sets the time of
/// the last modification back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    owner: u32,
    mode: u32,
}

impl FileVersion {
    pub(super) fn of(metadata: &Metadata) -> Self {
        FileVersion {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            owner: metadata.uid(),
            mode: metadata.mode(),
        }
    }

    /// Whether every later change gives the file another version.
    fn is_settled(&self, now: SystemTime) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let changed = Duration::from_secs(u64::try_from(self.changed.0).unwrap_or_default());
        now.checked_sub(changed).is_some_and(|age| age > RESOLUTION)
    }
}

impl SpecCache {
    /// A cache of directories. Where two describe one device, the later directory counts. Reads nothing.
    pub fn new(directories: Vec<PathBuf>) -> Self {
        let is_last = |(index, directory): &(usize, &PathBuf)| !directories[index + 1..].contains(directory);
        let directories = directories.iter().enumerate().filter(is_last).map(|(_, directory)| directory.clone());
        SpecCache { directories: directories.collect(), files: Mutex::default() }
    }

    /// The specifications as the files have them now. A directory that does not exist has none. A directory or a file that cannot be
    /// used, or that a user other than root and the agent's can change, becomes a fault, and the others are used.
    ///
    /// Blocks on the disk: lists the directories, and reads the changed files.
    pub fn read(&self) -> Specs {
        self.read_at(SystemTime::now())
    }

    pub(super) fn read_at(&self, now: SystemTime) -> Specs {
        let mut specs = Specs { directories: self.directories.clone(), ..Specs::default() };
        let mut cached = self.files.lock();
        let mut found = HashMap::new();
        for (index, directory) in self.directories.iter().enumerate() {
            let files = match files(directory) {
                Ok(files) => files,
                Err(SpecError::Io(error)) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    specs.faults.push(SpecFault { path: directory.clone(), error });
                    continue;
                }
            };
            for (path, format) in files {
                let known = cached.remove(&path).filter(|known| is_current(&path, known));
                let read = match known {
                    Some(known) => Ok(known),
                    None => {
                        read_file(&path, format).map(|(spec, version)| CachedSpec { version, spec: Arc::new(spec) })
                    }
                };
                match read {
                    Ok(mut known) => {
                        if known.spec.directory != index {
                            Arc::make_mut(&mut known.spec).directory = index;
                        }
                        specs.specs.push(known.spec.clone());
                        if known.version.is_settled(now) {
                            found.insert(path, known);
                        }
                    }
                    // The driver has removed or renamed the file.
                    Err(SpecError::Io(error)) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => specs.faults.push(SpecFault { path, error }),
                }
            }
        }
        // Files that do not exist any more leave the cache.
        *cached = found;
        specs
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.files.lock().len()
    }
}

/// Whether the file is the one that was read. If this cannot be determined, it is read again.
fn is_current(path: &Path, known: &CachedSpec) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| FileVersion::of(&metadata) == known.version)
}
