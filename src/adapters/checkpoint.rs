//! Records that outlive the agent, in one file: a line each, with a checksum, below one that says how many of them were
//! saved at once. The lines behind those were appended.
//!
//! The last line has no end if an agent was killed in it, or its disk was full; nobody was told of it, and it does not
//! count. All else that is not as it was written is damage.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_actors::ports::{Checkpoint, CheckpointError};

use super::record::{self, Durability, ReadError};

/// What the first line begins with.
const NAME: &str = "podwright journal ";
/// What follows it: the version of the format. Then comes how many lines were saved.
const VERSION: &str = "2 ";
/// Suffix of what is kept of a damaged file.
const CORRUPT: &str = "corrupt";

/// [`Checkpoint`] in one file.
#[derive(Clone, Debug)]
pub struct FileCheckpoint {
    path: Arc<Path>,
}

/// What a file holds.
struct Found {
    records: Vec<String>,
    damaged: bool,
}

fn parse(file: &[u8]) -> Found {
    let mut lines = file.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n")).peekable();
    let header = lines.peek().and_then(|line| record::unseal_line(line)?.strip_prefix(NAME));
    let saved = header.and_then(|header| header.strip_prefix(VERSION)?.parse::<usize>().ok());
    if header.is_some() {
        lines.next();
    }
    let lines: Vec<_> = lines.map(record::unseal_line).collect();
    let damaged = saved.is_none_or(|saved| lines.len() < saved) || lines.contains(&None);
    Found { records: lines.into_iter().flatten().map(str::to_owned).collect(), damaged }
}

fn lines(records: &[impl AsRef<str>]) -> String {
    records.iter().map(|record| record::seal_line(record.as_ref())).collect()
}

/// A file with nothing behind what is saved at once.
fn whole(records: &[impl AsRef<str>]) -> String {
    record::seal_line(&format!("{NAME}{VERSION}{}", records.len())) + &lines(records)
}

impl FileCheckpoint {
    /// In a file that need not be there, in a directory that is.
    pub fn new(path: PathBuf) -> Self {
        FileCheckpoint { path: path.into() }
    }

    fn error(&self, error: impl ToString) -> CheckpointError {
        CheckpointError { path: self.path.to_path_buf(), error: error.to_string() }
    }

    /// Gives the damaged file a second name, for whoever can make sense of it. It keeps that when it is replaced.
    fn keep_aside(&self, aside: &Path) -> io::Result<()> {
        let temp = aside.with_extension("corrupt.tmp");
        match fs::remove_file(&temp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Not every file system has second names.
        fs::hard_link(&self.path, &temp).or_else(|_| fs::copy(&self.path, &temp).map(drop))?;
        fs::rename(&temp, aside)?;
        // Where both names are those of one file the other name stays.
        let _ = fs::remove_file(&temp);
        record::sync_parent(aside)
    }

    /// Tells of damage, and goes on with what is good.
    fn mend(&self, good: &[String]) {
        let aside = self.path.with_extension(CORRUPT);
        let replace = || record::replace(&self.path, whole(good).as_bytes(), Durability::Disk);
        let kept = match self.keep_aside(&aside) {
            Ok(()) => match replace() {
                Ok(()) => format!("as it was found it is in {}", aside.display()),
                Err(error) => format!("it is in {} too, and cannot be replaced yet: {error}", aside.display()),
            },
            // Left where it is until there is something to write.
            Err(error) => format!("it cannot be kept in {}: {error}", aside.display()),
        };
        tracing::error!(
            path = %self.path.display(), good = good.len(), kept,
            "the journal of final statuses is damaged, and the agent goes on with its good lines: pods that were refused or have ended may \
             run again, and one that came back since may be held for what it was; take away the manifests of those"
        );
    }

    fn blocking<'a>(
        &'a self,
        work: impl FnOnce(&Path) -> io::Result<()> + Send + 'static,
    ) -> BoxFuture<'a, Result<(), CheckpointError>> {
        let path = self.path.clone();
        async move {
            let done = tokio::task::spawn_blocking(move || work(&path)).await;
            done.map_err(io::Error::other).flatten().map_err(|error| self.error(error))
        }
        .boxed()
    }
}

impl Checkpoint for FileCheckpoint {
    fn load(&self) -> Result<Vec<String>, CheckpointError> {
        let file = match record::bytes(&self.path) {
            Ok(file) => file,
            Err(ReadError::Missing(_)) => return Ok(Vec::new()),
            // It is most likely whole: the next agent may be able to read it.
            Err(ReadError::Io { path, error }) => return Err(CheckpointError { path, error: error.to_string() }),
            Err(error @ ReadError::Damaged { .. }) => return Err(self.error(error)),
        };
        let Found { records, damaged } = parse(&file);
        if damaged {
            self.mend(&records);
        }
        Ok(records)
    }

    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.blocking(move |path| record::replace(path, whole(&records).as_bytes(), Durability::Disk))
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.blocking(move |path| {
            // One that is no longer there is to be saved as a whole.
            let mut file = OpenOptions::new().append(true).open(path)?;
            file.write_all(lines(&records).as_bytes())?;
            file.sync_data()
        })
    }
}

#[cfg(test)]
mod tests {
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
    async fn what_was_saved_and_appended_is_loaded() {
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

    /// Loads a file, and says whether it was found to be damaged.
    fn load(store: &FileCheckpoint, file: &[u8]) -> (Vec<String>, bool) {
        let aside = store.path.with_extension(CORRUPT);
        let _none = fs::remove_file(&aside);
        fs::write(&store.path, file).unwrap();
        let records = store.load().unwrap();
        let damaged = aside.exists();
        if damaged {
            assert_eq!(fs::read(&aside).unwrap(), file, "for whoever can make sense of it");
            fs::remove_file(&aside).unwrap();
        }
        assert_eq!((store.load().unwrap(), aside.exists()), (records.clone(), false), "it is told once");
        (records, damaged)
    }

    #[tokio::test]
    async fn of_an_append_that_was_cut_short_the_whole_lines_count_and_a_save_cannot_be() {
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
    async fn what_is_damaged_is_kept_aside_and_costs_no_other_line() {
        let (_dir, store) = store();
        store.save(records(&["aa", "bb"])).await.unwrap();
        store.append(records(&["cc"])).await.unwrap();
        let good = fs::read(&store.path).unwrap();
        let ends: Vec<usize> = (0..good.len()).filter(|at| good[*at] == b'\n').collect();
        // What is lost if a byte of that line is another one, or its end.
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
            // Without its end the last line was never finished.
            assert_eq!(damaged, at != good.len() - 1, "{bit} at {at}");
        }
        let newer = [record::seal_line("podwright journal 3 1"), record::seal_line("aa")].concat();
        assert_eq!(load(&store, newer.as_bytes()), (vec!["aa".to_owned()], true), "of another version");
    }

    #[test]
    fn what_cannot_be_read_now_stays_where_it_is() {
        let (_dir, store) = store();
        // Root may read any file, and nobody a directory.
        fs::create_dir(&store.path).unwrap();
        let error = store.load().unwrap_err().to_string();
        assert!(error.contains("journal: Is a directory"), "{error}");
        assert!(store.path.is_dir() && !store.path.with_extension(CORRUPT).exists());
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileCheckpoint::new(dir.path().join("gone/journal"));
        for done in [store.save(records(&["a"])).await, store.append(records(&["a"])).await] {
            let error = done.unwrap_err();
            assert!(error.to_string().contains("gone/journal"), "{error}");
        }
    }
}
