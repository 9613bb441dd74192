//! Which pods are over: the file that an earlier agent left, and the journal that is made of it.

use std::fs;
use std::sync::Arc;

use podwright::actors::journal::Journal;
use podwright::actors::ports::Checkpoint;
use podwright::adapters::checkpoint::FileCheckpoint;
use podwright::adapters::record::{lines, seal};
use tempfile::TempDir;

thread_local! {
    static DIR: TempDir = tempfile::tempdir().unwrap();
}

/// A byte that says whether a header is to be put before the rest, which is the file.
pub fn check(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else { return };
    let file = if how & 0x80 == 0 { seal(rest) } else { rest.to_vec() };
    DIR.with(|dir| {
        let (path, aside) = (dir.path().join("journal"), dir.path().join("journal.corrupt"));
        let _none = fs::remove_file(&aside);
        fs::write(&path, &file).unwrap();
        let store = FileCheckpoint::new(path.clone());
        let loaded = store.load().unwrap();
        match lines(&file) {
            Ok(records) => {
                assert!(loaded == records && path.exists() && !aside.exists());
                assert!(records.iter().all(|record| !record.contains('\n')));
                let again: String = records.iter().map(|record| format!("{record}\n")).collect();
                assert_eq!(lines(&seal(again.as_bytes())).unwrap(), records);
            }
            Err(damage) => {
                super::assert_plain(&damage.to_string(), 600);
                assert!(loaded.is_empty() && !path.exists());
                assert!(fs::read(&aside).unwrap() == file, "what nobody can read is kept as it is");
            }
        }
        let (journal, statuses) = Journal::open(Arc::new(store)).unwrap();
        assert!(statuses.len() <= loaded.len());
        assert!(statuses.iter().all(|(uid, _)| journal.ending(uid).is_some()));
        journal.retain(|_| false);
        assert!(statuses.iter().all(|(uid, _)| journal.ending(uid).is_none()));
    });
}
