use podwright_model::text::error_chain;

use super::*;

fn records(texts: &[&str]) -> Vec<Arc<str>> {
    texts.iter().map(|text| Arc::from(*text)).collect()
}

fn store() -> (tempfile::TempDir, FileCheckpoint) {
    let dir = tempfile::tempdir().unwrap();
    let store = FileCheckpoint::new(dir.path().join("journal"));
    (dir, store)
}

fn open(store: &FileCheckpoint) -> (Vec<String>, Box<dyn CheckpointWriter>) {
    let OpenCheckpoint { records, writer } = store.open().unwrap();
    (records, writer)
}

fn is_superseded(written: Result<(), CheckpointError>) -> bool {
    matches!(written, Err(CheckpointError::Superseded { .. }))
}

#[tokio::test]
async fn saved_and_appended_final_statuses_are_loaded() {
    let (_dir, store) = store();
    let (none, mut writer) = open(&store);
    assert_eq!(none, [""; 0]);
    for saved in [&["{\"a\":1}", "b"][..], &[], &["c"]] {
        writer.save(records(saved)).await.unwrap();
        let loaded;
        (loaded, writer) = open(&store);
        assert_eq!(loaded, saved);
    }
    writer.append(records(&["d", "c"])).await.unwrap();
    writer.append(records(&["e"])).await.unwrap();
    assert_eq!(open(&store).0, ["c", "d", "c", "e"]);
}

#[test]
fn earlier_writer_writes_nothing_after_the_next_opening() {
    let (_dir, store) = store();
    let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let (_, old) = open(&store);
        old.save(records(&["a"])).await.unwrap();
        // The only blocking thread is occupied, so the write stays pending.
        let (free, occupied) = std::sync::mpsc::channel::<()>();
        let occupier = tokio::task::spawn_blocking(move || occupied.recv());
        let mut pending = old.append(records(&["late"]));
        assert!((&mut pending).now_or_never().is_none());

        let (loaded, new) = open(&store);
        assert_eq!(loaded, ["a"]);
        drop(free);
        occupier.await.unwrap().unwrap_err();
        new.append(records(&["b"])).await.unwrap();
        assert!(is_superseded(pending.await), "the write was requested before the opening");
        assert!(is_superseded(old.append(records(&["later"])).await), "the write was requested after the opening");
        assert!(is_superseded(old.save(records(&["later"])).await));
        new.append(records(&["c"])).await.unwrap();
        assert_eq!(open(&store).0, ["a", "b", "c"]);
    });
}

#[tokio::test]
async fn opening_by_another_path_of_the_same_file_supersedes_the_writer() {
    let (dir, store) = store();
    fs::create_dir(dir.path().join("below")).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(dir.path(), &link).unwrap();
    for path in [dir.path().join("below/../journal"), dir.path().join("./journal"), link.join("journal")] {
        let (_, old) = open(&store);
        let (_, new) = open(&FileCheckpoint::new(path.clone()));
        new.save(records(&["a"])).await.unwrap();
        assert!(is_superseded(old.save(records(&["late"])).await), "{}", path.display());
        assert_eq!(open(&store).0, ["a"], "{}", path.display());
    }
}

#[tokio::test]
async fn writers_of_other_files_in_the_directory_are_not_superseded() {
    let (dir, store) = store();
    let (_, writer) = open(&store);
    let (_, other) = open(&FileCheckpoint::new(dir.path().join("other")));
    writer.save(records(&["a"])).await.unwrap();
    other.save(records(&["b"])).await.unwrap();
    assert_eq!(open(&store).0, ["a"]);
}

#[tokio::test]
async fn failed_opening_does_not_supersede_the_writer() {
    let (_dir, store) = store();
    let (_, writer) = open(&store);
    // A directory cannot be read as a file.
    fs::create_dir(&store.path).unwrap();
    store.open().err().unwrap();
    fs::remove_dir(&store.path).unwrap();
    writer.save(records(&["a"])).await.unwrap();

    let file = SharedFile::at(&store.path).unwrap();
    let busy = file.openings.lock();
    let error = error_chain(&store.open_within(Duration::from_millis(20)).err().unwrap()).to_string();
    assert!(error.contains("journal: an earlier node of this process still writes the file"), "{error}");
    drop(busy);
    writer.append(records(&["b"])).await.unwrap();
    assert_eq!(open(&store).0, ["a", "b"]);
}

#[tokio::test]
async fn facts_of_containers_that_cannot_be_read_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run_facts");
    let store = FileCheckpoint::of_run_facts(path.clone());
    for is_large in [false, true] {
        let _none = fs::remove_file(&path);
        if is_large {
            fs::File::create(&path).unwrap().set_len(MAX_RUN_FACTS + 1).unwrap();
        } else {
            // A link is not followed.
            std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
            FileCheckpoint::new(path.clone()).open().err().unwrap();
        }
        let (loaded, writer) = open(&store);
        assert_eq!(loaded, [""; 0]);
        assert!(!path.with_extension(CORRUPT).exists(), "the file was not read");
        writer.save(records(&["a"])).await.unwrap();
        assert_eq!(open(&store).0, ["a"]);
    }
}

// A container that the file says is starting may have run for days.
#[tokio::test]
async fn only_facts_of_containers_that_cannot_be_replaced_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    for (name, temporary, new, kept) in [
        ("run_facts", ".run_facts.tmp", FileCheckpoint::of_run_facts as fn(PathBuf) -> FileCheckpoint, &[""; 0][..]),
        ("journal", ".journal.reserved", FileCheckpoint::new, &["a"]),
        ("allocations", ".allocations.tmp", FileCheckpoint::of_allocations, &["a"]),
        ("shutdown_times", ".shutdown_times.tmp", FileCheckpoint::of_shutdown_times, &["a"]),
    ] {
        let store = new(dir.path().join(name));
        let (_, writer) = open(&store);
        writer.save(records(&["a"])).await.unwrap();
        // A directory at the temporary name is in the way of a save.
        let in_the_way = dir.path().join(temporary);
        let _none = fs::remove_file(&in_the_way);
        fs::create_dir(&in_the_way).unwrap();
        writer.save(records(&["b"])).await.unwrap_err();
        let (loaded, writer) = open(&store);
        assert_eq!(loaded, kept, "{name}");
        fs::remove_dir(&in_the_way).unwrap();
        writer.save(records(&["c"])).await.unwrap();
        assert_eq!(open(&store).0, ["c"], "{name}");
    }
}

/// Loads a file, and returns the records and whether the file was damaged.
fn load(store: &FileCheckpoint, file: &[u8]) -> (Vec<String>, bool) {
    let aside = store.path.with_extension(CORRUPT);
    let _none = fs::remove_file(&aside);
    fs::write(&store.path, file).unwrap();
    let records = open(store).0;
    let damaged = aside.exists();
    if damaged {
        assert_eq!(fs::read(&aside).unwrap(), file, "the copy of the damaged file");
        fs::remove_file(&aside).unwrap();
    }
    assert_eq!((open(store).0, aside.exists()), (records.clone(), false), "the damage is reported once");
    (records, damaged)
}

#[tokio::test]
async fn interrupted_append_keeps_whole_lines_and_a_cut_save_is_damage() {
    let (_dir, store) = store();
    let (_, writer) = open(&store);
    writer.save(records(&["a"])).await.unwrap();
    let saved = fs::read(&store.path).unwrap().len();
    writer.append(records(&["bb", "cc"])).await.unwrap();
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
    let (_, writer) = open(&store);
    writer.save(records(&["aa", "bb"])).await.unwrap();
    writer.append(records(&["cc"])).await.unwrap();
    let good = fs::read(&store.path).unwrap();
    let ends: Vec<usize> = (0..good.len()).filter(|at| good[*at] == b'\n').collect();
    // For each line: the records that are lost if one of its bytes changes, or its newline.
    let lost = [(&[""; 0][..], &["aa"][..]), (&["aa"], &["aa", "bb"]), (&["bb"], &["bb", "cc"]), (&["cc"], &["cc"])];
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
    let error = error_chain(&store.open().err().unwrap()).to_string();
    assert!(error.contains("journal: Is a directory"), "{error}");
    assert!(store.path.is_dir() && !store.path.with_extension(CORRUPT).exists());
}

#[tokio::test]
async fn errors_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let gone = dir.path().join("gone");
    let store = FileCheckpoint::new(gone.join("journal"));
    let error = error_chain(&store.open().err().unwrap()).to_string();
    assert!(error.contains("gone/journal: cannot open the directory of the file, create it"), "{error}");

    fs::create_dir(&gone).unwrap();
    let (_, writer) = open(&store);
    fs::remove_dir_all(&gone).unwrap();
    for done in [writer.save(records(&["a"])).await, writer.append(records(&["a"])).await] {
        let error = done.unwrap_err();
        assert!(error.to_string().contains("gone/journal"), "{error}");
    }
    let error = FileCheckpoint::new("/".into()).open().err().unwrap();
    assert!(error_chain(&error).to_string().contains("must end with the name of a file"), "{error}");
}
