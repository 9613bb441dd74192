//! Records that outlive the agent, in one file with a checksum.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_actors::ports::{Checkpoint, CheckpointError};

use super::record::{self, Durability, ReadError};

/// Suffix of a file that cannot be read.
const CORRUPT: &str = "corrupt";

/// [`Checkpoint`] in one file, a record a line.
#[derive(Clone, Debug)]
pub struct FileCheckpoint {
    path: Arc<Path>,
}

impl FileCheckpoint {
    /// In a file that need not be there, in a directory that is.
    pub fn new(path: PathBuf) -> Self {
        FileCheckpoint { path: path.into() }
    }
}

impl Checkpoint for FileCheckpoint {
    fn load(&self) -> Result<Vec<String>, CheckpointError> {
        let error = match record::read_lines(&self.path) {
            Ok(records) => return Ok(records),
            Err(ReadError::Missing(_)) => return Ok(Vec::new()),
            // It is most likely whole: the next agent may be able to read it.
            Err(ReadError::Io { path, error }) => return Err(CheckpointError { path, error: error.to_string() }),
            Err(error @ ReadError::Damaged { .. }) => error,
        };
        let aside = self.path.with_extension(CORRUPT);
        let aside = match fs::rename(&self.path, &aside) {
            Ok(()) => format!("moved to {}", aside.display()),
            Err(error) => format!("cannot be moved away: {error}"),
        };
        tracing::error!(
            %error, %aside,
            "the journal is lost, and the agent goes on without it: pods that were refused or have ended may run again; \
             take away the manifests of those that must not"
        );
        Ok(Vec::new())
    }

    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        let path = self.path.clone();
        let work = move || {
            let mut text = String::with_capacity(records.iter().map(|record| record.len() + 1).sum());
            for record in &records {
                text.push_str(record);
                text.push('\n');
            }
            record::replace(&path, &record::seal(text.as_bytes()), Durability::Disk)
        };
        async move {
            let done = tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string());
            let done = done.and_then(|done| done.map_err(|error| error.to_string()));
            done.map_err(|error| CheckpointError { path: self.path.to_path_buf(), error })
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_saved_is_loaded_and_what_is_damaged_is_moved_aside() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileCheckpoint::new(dir.path().join("journal"));
        assert_eq!(store.load().unwrap(), [""; 0]);
        for records in [vec!["{\"a\":1}", "b"], vec![], vec!["c"]] {
            store.save(records.iter().map(|record| Arc::from(*record)).collect()).await.unwrap();
            assert_eq!(store.load().unwrap(), records);
        }
        let good = fs::read(&store.path).unwrap();
        for bad in [&good[..good.len() - 1], b"", b"podwright 1 x\n\xff"] {
            fs::write(&store.path, bad).unwrap();
            assert_eq!(store.load().unwrap(), [""; 0]);
            assert!(!store.path.exists());
            assert_eq!(fs::read(dir.path().join("journal.corrupt")).unwrap(), bad, "for whoever can make sense of it");
        }
        // The next agent's first save is not in its way.
        store.save(vec!["d".into()]).await.unwrap();
        assert_eq!(store.load().unwrap(), ["d"]);
    }

    #[test]
    fn what_cannot_be_read_now_stays_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileCheckpoint::new(dir.path().join("journal"));
        // Root may read any file, and nobody a directory.
        fs::create_dir(&store.path).unwrap();
        let error = store.load().unwrap_err().to_string();
        assert!(error.contains("journal: Is a directory"), "{error}");
        assert!(store.path.is_dir() && !dir.path().join("journal.corrupt").exists());
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = FileCheckpoint::new(dir.path().join("gone/journal"));
        let error = store.save(vec!["a".into()]).await.unwrap_err();
        assert!(error.to_string().contains("gone/journal"), "{error}");
    }
}
