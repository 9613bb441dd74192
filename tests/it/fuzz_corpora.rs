//! Runs the corpora of the fuzz targets through the `check` functions of the targets. Inputs that failed once stay in
//! their corpus.

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
        // Names the input if the check panics.
        println!("{target}/{name}");
        check(&bytes);
    }
}

#[test]
fn manifest_corpus_parses_to_valid_pods_or_short_faults() {
    run("manifest", properties::manifest::check);
}

#[test]
fn runtime_record_corpus_round_trips_or_is_refused() {
    run("runtime_records", properties::runtime_records::check);
}

#[test]
fn cdi_spec_corpus_resolves_or_is_refused_with_a_short_text() {
    run("cdi_spec", properties::cdi_spec::check);
}

#[test]
fn checkpoint_corpus_is_loaded_or_moved_aside() {
    run("checkpoint", properties::checkpoint::check);
}

#[test]
fn log_reading_corpus_reads_the_same_after_rotation() {
    run("log_reading", properties::log_reading::check);
}

#[test]
fn log_writing_corpus_reads_back_as_written() {
    run("log_writing", properties::log_writing::check);
}

#[test]
fn recording_corpus_is_replayed_or_refused_with_a_remedy() {
    run("recording", properties::recording::check);
}

#[cfg(feature = "dra")]
#[test]
fn claims_file_corpus_is_read_and_written_or_refused_unchanged() {
    run("claims_file", properties::claims_file::check);
}

#[cfg(feature = "dra")]
#[test]
fn plugin_answer_corpus_becomes_bounded_texts() {
    run("plugin_answers", properties::plugin_answers::check);
}

#[cfg(all(feature = "dra", feature = "kube"))]
#[test]
fn node_resource_corpus_can_be_published_or_is_refused() {
    run("node_resources", properties::node_resources::check);
}

#[cfg(feature = "kube")]
#[test]
fn spdy_corpus_is_read_the_same_in_any_chunking() {
    run("spdy", properties::spdy::check);
}
