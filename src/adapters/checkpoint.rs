//! The final statuses of pods in one file, which outlives the agent. Each record is a line with a checksum. The first line
//! is a header with the number of records that were saved together. Later records were appended.
//!
//! If an agent was killed during an append, or the disk was full, the last line has no newline. That append was never
//! acknowledged, so the line is ignored. Any other difference counts as damage.
//!
//! A node that is dropped does not wait for its last write, which runs on a blocking thread. A later node of the same process may
//! use the same file. So its `load` waits for a write that is in progress, and a write that has not begun by then is refused.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_actors::ports::{Checkpoint, CheckpointError};

use super::record::{self, Durability, ReadError};

/// The beginning of the header.
const NAME: &str = "podwright journal ";
/// The version of the format, which follows in the header. After it comes the number of saved records.
const VERSION: &str = "2 ";
/// The suffix of the copy of a damaged file.
const CORRUPT: &str = "corrupt";

/// [`Checkpoint`] in one file.
#[derive(Clone, Debug)]
pub struct FileCheckpoint {
    path: Arc<Path>,
    access: Arc<FileAccess>,
}

/// The access of this process to one file.
#[derive(Debug, Default)]
struct FileAccess {
    /// Locked while the file is read or written.
    busy: Mutex<()>,
    /// The number of loads. A write that was requested before the last load is refused.
    loads: AtomicU64,
}

/// The access to each file that a [`FileCheckpoint`] of this process uses, by path.
static ACCESS: Mutex<BTreeMap<PathBuf, Weak<FileAccess>>> = Mutex::new(BTreeMap::new());

impl FileAccess {
    /// The access to a file. All stores of the file share it.
    fn of(path: &Path) -> Arc<Self> {
        // Two nodes may write the path of the same file in different ways.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut all = ACCESS.lock();
        all.retain(|_, access| access.strong_count() > 0);
        let shared = all.get(&path).and_then(Weak::upgrade).unwrap_or_default();
        all.insert(path, Arc::downgrade(&shared));
        shared
    }
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
    /// A store in this file. The file need not exist, but its directory must.
    pub fn new(path: PathBuf) -> Self {
        FileCheckpoint { access: FileAccess::of(&path), path: path.into() }
    }

    fn error(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> CheckpointError {
        CheckpointError::new(&*self.path, source)
    }

    /// Gives the damaged file a second name, `aside`, so that it can be inspected after the file is replaced.
    fn keep_aside(&self, aside: &Path) -> io::Result<()> {
        let temp = aside.with_extension("corrupt.tmp");
        match fs::remove_file(&temp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Not every file system has hard links.
        fs::hard_link(&self.path, &temp).or_else(|_| fs::copy(&self.path, &temp).map(drop))?;
        fs::rename(&temp, aside)?;
        // `rename` keeps `temp` if it and `aside` are already names of the same file.
        let _ = fs::remove_file(&temp);
        record::sync_parent(aside)
    }

    /// Logs that the file is damaged, keeps a copy of it, and replaces it by its good records.
    fn repair(&self, good: &[String]) {
        let aside = self.path.with_extension(CORRUPT);
        let replace = || record::replace(&self.path, whole(good).as_bytes(), Durability::Disk);
        let copy = match self.keep_aside(&aside) {
            Ok(()) => match replace() {
                Ok(()) => format!("the damaged file is kept in {}", aside.display()),
                Err(error) => format!("a copy is in {}, but the file cannot be replaced yet: {error}", aside.display()),
            },
            // The file is replaced by the next save.
            Err(error) => format!("the damaged file cannot be kept in {}: {error}", aside.display()),
        };
        tracing::error!(
            path = %self.path.display(), good = good.len(), copy,
            "the journal of final statuses is damaged, the agent uses its intact lines: pods that were rejected or have finished \
             may run again, and a pod that was created again may get its old status; remove the manifests of such pods"
        );
    }

    fn blocking<'a>(
        &'a self,
        work: impl FnOnce(&Path) -> io::Result<()> + Send + 'static,
    ) -> BoxFuture<'a, Result<(), CheckpointError>> {
        let (path, access) = (self.path.clone(), self.access.clone());
        let loads = access.loads.load(Ordering::Acquire);
        async move {
            let write = move || {
                let _busy = access.busy.lock();
                if access.loads.load(Ordering::Acquire) != loads {
                    return Err(io::Error::other(
                        "another node uses the file now: the write of the earlier node is refused",
                    ));
                }
                work(&path)
            };
            let done = tokio::task::spawn_blocking(write).await;
            done.map_err(io::Error::other).flatten().map_err(|error| self.error(error))
        }
        .boxed()
    }
}

impl Checkpoint for FileCheckpoint {
    fn load(&self) -> Result<Vec<String>, CheckpointError> {
        let _busy = self.access.busy.lock();
        self.access.loads.fetch_add(1, Ordering::AcqRel);
        let file = match record::bytes(&self.path) {
            Ok(file) => file,
            Err(ReadError::Missing(_)) => return Ok(Vec::new()),
            // The file is most likely intact, so it is not replaced. A later agent may be able to read it.
            Err(ReadError::Io { path, error }) => return Err(CheckpointError::new(path, error)),
            Err(error @ ReadError::Damaged { .. }) => return Err(self.error(error)),
        };
        let LoadedRecords { records, damaged } = parse(&file);
        if damaged {
            self.repair(&records);
        }
        Ok(records)
    }

    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.blocking(move |path| record::replace(path, whole(&records).as_bytes(), Durability::Disk))
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.blocking(move |path| {
            // A missing file must be saved as a whole, so this does not create it.
            let mut file = OpenOptions::new().append(true).open(path)?;
            file.write_all(lines(&records).as_bytes())?;
            file.sync_data()
        })
    }
}

#[cfg(test)]
mod tests {
    use podwright_actors::text::error_chain;

    use super::*;

    fn records(texts: &[&str]) -> Vec<Arc<str>> {
        texts.iter().map(|text| Arc::from(*text)).collect()
    }

    fn store() -> (tempfile::TempDir, FileCheckpoint) {
        let dir = tempfile::tempdir().unwrap();
        let store = FileCheckpoint::new(dir.path().join("journal"));
        (dir, store)
    }

    #[tokio::test]
    async fn saved_and_appended_final_statuses_are_loaded() {
        let (_dir, store) = store();
        assert_eq!(store.load().unwrap(), [""; 0]);
        for saved in [&["{\"a\":1}", "b"][..], &[], &["c"]] {
            store.save(records(saved)).await.unwrap();
            assert_eq!(store.load().unwrap(), saved);
        }
        store.append(records(&["d", "c"])).await.unwrap();
        store.append(records(&["e"])).await.unwrap();
        assert_eq!(store.load().unwrap(), ["c", "d", "c", "e"]);
    }

    #[test]
    fn pending_write_of_a_dropped_node_is_refused_after_the_next_load() {
        let (_dir, store) = store();
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            store.save(records(&["a"])).await.unwrap();
            // The only blocking thread is occupied, so the write stays pending while its node is dropped.
            let (free, occupied) = std::sync::mpsc::channel::<()>();
            let occupier = tokio::task::spawn_blocking(move || occupied.recv());
            assert!(store.append(records(&["late"])).now_or_never().is_none());

            let next = FileCheckpoint::new(store.path.to_path_buf());
            assert_eq!(next.load().unwrap(), ["a"]);
            drop(free);
            occupier.await.unwrap().unwrap_err();
            next.append(records(&["b"])).await.unwrap();
            assert_eq!(next.load().unwrap(), ["a", "b"]);
        });
    }

    /// Loads a file, and returns the records and whether the file was damaged.
    fn load(store: &FileCheckpoint, file: &[u8]) -> (Vec<String>, bool) {
        let aside = store.path.with_extension(CORRUPT);
        let _none = fs::remove_file(&aside);
        fs::write(&store.path, file).unwrap();
        let records = store.load().unwrap();
        let damaged = aside.exists();
        if damaged {
            assert_eq!(fs::read(&aside).unwrap(), file, "the copy of the damaged file");
            fs::remove_file(&aside).unwrap();
        }
        assert_eq!((store.load().unwrap(), aside.exists()), (records.clone(), false), "the damage is reported once");
        (records, damaged)
    }

    #[tokio::test]
    async fn interrupted_append_keeps_whole_lines_and_a_cut_save_is_damage() {
        let (_dir, store) = store();
        store.save(records(&["a"])).await.unwrap();
        let saved = fs::read(&store.path).unwrap().len();
        store.append(records(&["bb", "cc"])).await.unwrap();
        let file = fs::read(&store.path).unwrap();
        let line = (file.len() - saved) / 2;
        for end in 0..saved {
            assert_eq!(load(&store, &file[..end]), (vec![], true), "{end}");
        }
        for end in saved..=file.len() {
            let expected = ["a", "bb", "cc"].map(str::to_owned)[..1 + (end - saved) / line].to_vec();
            assert_eq!(load(&store, &file[..end]), (expected, false), "{end}");
        }
    }

    #[tokio::test]
    async fn damaged_line_loses_no_other_line_and_a_copy_is_kept() {
        let (_dir, store) = store();
        store.save(records(&["aa", "bb"])).await.unwrap();
        store.append(records(&["cc"])).await.unwrap();
        let good = fs::read(&store.path).unwrap();
        let ends: Vec<usize> = (0..good.len()).filter(|at| good[*at] == b'\n').collect();
        // For each line: the records that are lost if one of its bytes changes, or its newline.
        let lost =
            [(&[""; 0][..], &["aa"][..]), (&["aa"], &["aa", "bb"]), (&["bb"], &["bb", "cc"]), (&["cc"], &["cc"])];
        for (at, bit) in (0..good.len()).flat_map(|at| [(at, 1), (at, 0x80)]) {
            let line = ends.iter().position(|end| at <= *end).unwrap();
            let lost = if at == ends[line] { lost[line].1 } else { lost[line].0 };
            let mut bad = good.clone();
            bad[at] ^= bit;
            let expected: Vec<_> = ["aa", "bb", "cc"].into_iter().filter(|record| !lost.contains(record)).collect();
            let (found, damaged) = load(&store, &bad);
            assert_eq!(found, expected, "{bit} at {at}");
            // Without its newline the last line is an interrupted append.
            assert_eq!(damaged, at != good.len() - 1, "{bit} at {at}");
        }
        let newer = [record::seal_line("podwright journal 3 1"), record::seal_line("aa")].concat();
        assert_eq!(load(&store, newer.as_bytes()), (vec!["aa".to_owned()], true), "of another version");
    }

    #[test]
    fn unreadable_file_is_not_replaced() {
        let (_dir, store) = store();
        // Root may read any file, but a directory cannot be read as a file.
        fs::create_dir(&store.path).unwrap();
        let error = error_chain(&store.load().unwrap_err()).to_string();
        assert!(error.contains("journal: Is a directory"), "{error}");
        assert!(store.path.is_dir() && !store.path.with_extension(CORRUPT).exists());
    }

    #[tokio::test]
    async fn write_error_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileCheckpoint::new(dir.path().join("gone/journal"));
        for done in [store.save(records(&["a"])).await, store.append(records(&["a"])).await] {
            let error = done.unwrap_err();
            assert!(error.to_string().contains("gone/journal"), "{error}");
        }
    }
}
