//! Records that outlive the agent, in one file: a line each, with a checksum.
//!
//! A line that an agent was killed in, or the machine, has no end; nobody was told of it, and it does not count. Any other line that
//! is not as it was written is damage.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_actors::ports::{Checkpoint, CheckpointError};

use super::record::{self, Durability};

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
    /// Whole lines that nobody wrote like that.
    damaged: usize,
}

fn parse(file: &[u8]) -> Found {
    let mut found = Found { records: Vec::new(), damaged: 0 };
    for line in file.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n").map(record::unseal_line) {
            Some(Some(record)) => found.records.push(record.to_owned()),
            Some(None) => found.damaged += 1,
            None => {}
        }
    }
    found
}

fn lines(records: &[impl AsRef<str>]) -> Vec<u8> {
    records.iter().map(|record| record::seal_line(record.as_ref())).collect::<String>().into_bytes()
}

impl FileCheckpoint {
    /// In a file that need not be there, in a directory that is.
    pub fn new(path: PathBuf) -> Self {
        FileCheckpoint { path: path.into() }
    }

    fn error(&self, error: impl ToString) -> CheckpointError {
        CheckpointError { path: self.path.to_path_buf(), error: error.to_string() }
    }

    /// Keeps the damaged file for whoever can make sense of it, and goes on with what is good of it. Answers with where it is.
    fn put_aside(&self, file: &[u8], good: &[String]) -> io::Result<PathBuf> {
        let aside = self.path.with_extension(CORRUPT);
        record::replace(&aside, file, Durability::Disk)?;
        record::replace(&self.path, &lines(good), Durability::Disk)?;
        Ok(aside)
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
        let file = match fs::read(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            // It is most likely whole: the next agent may be able to read it.
            Err(error) => return Err(self.error(error)),
        };
        let Found { records, damaged } = parse(&file);
        if damaged > 0 {
            let aside = match self.put_aside(&file, &records) {
                Ok(aside) => format!("as it was found it is in {}", aside.display()),
                Err(error) => format!("it cannot be kept aside: {error}"),
            };
            tracing::error!(
                path = %self.path.display(), damaged, good = records.len(), %aside,
                "the journal is damaged, and the agent goes on with the good lines: pods that the others tell of may run \
                 again; take away the manifests of those that must not"
            );
        }
        Ok(records)
    }

    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.blocking(move |path| record::replace(path, &lines(&records), Durability::Disk))
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.blocking(move |path| {
            // One that is no longer there is to be saved as a whole.
            let mut file = OpenOptions::new().append(true).open(path)?;
            file.write_all(&lines(&records))?;
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

    #[tokio::test]
    async fn of_an_append_that_was_cut_short_the_whole_lines_count() {
        let (_dir, store) = store();
        store.save(records(&["a"])).await.unwrap();
        let before = fs::read(&store.path).unwrap().len();
        store.append(records(&["bb", "cc"])).await.unwrap();
        let file = fs::read(&store.path).unwrap();
        let line = (file.len() - before) / 2;
        for end in before..=file.len() {
            fs::write(&store.path, &file[..end]).unwrap();
            let expected = &["a", "bb", "cc"][..1 + (end - before) / line];
            assert_eq!(store.load().unwrap(), expected, "{end}");
            assert!(!store.path.with_extension(CORRUPT).exists(), "nothing is wrong with it");
        }
    }

    #[tokio::test]
    async fn what_is_damaged_is_kept_aside_and_costs_no_other_line() {
        let (_dir, store) = store();
        store.save(records(&["aa", "bb", "cc"])).await.unwrap();
        let good = fs::read(&store.path).unwrap();
        let line = good.len() / 3;
        for at in line..2 * line {
            let mut bad = good.clone();
            bad[at] ^= 0x80;
            fs::write(&store.path, &bad).unwrap();
            // Without its end a line takes the one behind it along.
            let expected = if at == 2 * line - 1 { &["aa"][..] } else { &["aa", "cc"] };
            assert_eq!(store.load().unwrap(), expected, "{at}");
            let aside = store.path.with_extension(CORRUPT);
            assert_eq!(fs::read(&aside).unwrap(), bad, "for whoever can make sense of it");
            // That is told once.
            fs::remove_file(&aside).unwrap();
            assert_eq!(store.load().unwrap(), expected);
            assert!(!aside.exists());
        }
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
