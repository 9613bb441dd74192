//! The file of final statuses that an earlier agent wrote, and the store that is loaded from it.

use std::fs;

use podwright::adapters::checkpoint::FileCheckpoint;
use podwright_actors::final_statuses::FinalStatusStore;
use podwright_host::record::{seal_line, unseal_line};
use podwright_ports::Checkpoint;
use tempfile::TempDir;

thread_local! {
    static DIR: TempDir = tempfile::tempdir().unwrap();
}

/// The input is one byte and the file. The byte selects whether a header and checksums are added to the lines.
pub fn check(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else { return };
    let file = match (how & 0x80, std::str::from_utf8(rest)) {
        (0, Ok(text)) => {
            let lines = text.split_terminator('\n');
            let header = format!("podwright journal 2 {}", lines.clone().count());
            std::iter::once(&*header).chain(lines).map(seal_line).collect::<String>().into_bytes()
        }
        _ => rest.to_vec(),
    };
    DIR.with(|dir| {
        let (path, aside) = (dir.path().join("journal"), dir.path().join("journal.corrupt"));
        let _none = fs::remove_file(&aside);
        fs::write(&path, &file).unwrap();
        let store = FileCheckpoint::new(path.clone());
        let loaded = store.open().unwrap().records;

        let whole = file.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<_> = file[..whole].split_inclusive(|byte| *byte == b'\n').collect();
        assert!(loaded.len() <= lines.len() && loaded.iter().all(|record| !record.contains('\n')));
        if aside.exists() {
            assert!(fs::read(&aside).unwrap() == file, "an unreadable file is moved aside unchanged");
        } else {
            assert!(loaded.len() + 1 == lines.len() && fs::read(&path).unwrap() == file);
        }
        let good = lines.iter().filter_map(|line| unseal_line(line.strip_suffix(b"\n")?));
        let header = usize::from(good.clone().count() > loaded.len());
        assert!(good.skip(header).eq(loaded.iter().map(String::as_str)), "the records keep their order");
        assert!(store.open().unwrap().records == loaded, "a repaired file is loaded the same again");

        let (final_statuses, statuses) = FinalStatusStore::open(&store).unwrap();
        assert!(statuses.len() <= loaded.len());
        assert!(statuses.iter().all(|(uid, _)| final_statuses.ending(uid).is_some()));
        final_statuses.retain(|_| false);
        assert!(statuses.iter().all(|(uid, _)| final_statuses.ending(uid).is_none()));
    });
}
