//! The corpora of the fuzz targets, through the functions that the targets call. What once failed stays in its corpus.

use std::fs;
use std::path::Path;

use crate::properties;

/// The files of a target's corpus, by name.
pub(crate) fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let mut files: Vec<_> =
        entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect();
    files.sort();
    assert!(files.len() > 9, "{target} has a corpus");
    files
}

fn run(target: &str, check: fn(&[u8])) {
    for (name, bytes) in corpus(target) {
        // Before a panic says what failed, this says with which file.
        println!("{target}/{name}");
        check(&bytes);
    }
}

#[test]
fn manifests_become_good_pods_or_short_faults() {
    run("manifest", properties::manifest::check);
}

#[test]
fn records_come_back_as_written_or_are_refused() {
    run("records", properties::records::check);
}

#[test]
fn checkpoints_are_taken_up_or_put_aside() {
    run("checkpoint", properties::checkpoint::check);
}

#[test]
fn logs_are_read_as_one_whatever_they_hold() {
    run("reading", properties::reading::check);
}

#[test]
fn logs_say_what_was_written() {
    run("logs", properties::logs::check);
}

#[test]
fn recordings_are_replayed_or_refused_with_a_remedy() {
    run("recording", properties::recording::check);
}
