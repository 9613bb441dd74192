//! Runs the corpora of the fuzz targets through the `check` functions of the targets. Inputs that failed once stay in
//! their corpus.

use podwright_fuzz::corpus;

fn run(target: &str, check: fn(&[u8])) {
    for (name, bytes) in corpus(target) {
        // Names the input if the check panics.
        println!("{target}/{name}");
        check(&bytes);
    }
}

#[test]
fn manifest_corpus_parses_to_valid_pods_or_short_faults() {
    run("manifest", podwright_fuzz::manifest::check);
}

#[test]
fn runtime_record_corpus_round_trips_or_is_refused() {
    run("runtime_records", podwright_fuzz::runtime_records::check);
}

#[test]
fn cdi_spec_corpus_resolves_or_is_refused_with_a_short_text() {
    run("cdi_spec", podwright_fuzz::cdi_spec::check);
}

#[test]
fn checkpoint_corpus_is_loaded_or_moved_aside() {
    run("checkpoint", podwright_fuzz::checkpoint::check);
}

#[test]
fn log_reading_corpus_reads_the_same_after_rotation() {
    run("log_reading", podwright_fuzz::log_reading::check);
}

#[test]
fn log_writing_corpus_reads_back_as_written() {
    run("log_writing", podwright_fuzz::log_writing::check);
}

#[test]
fn recording_corpus_is_replayed_or_refused_with_a_remedy() {
    run("recording", podwright_fuzz::recording::check);
}

#[test]
fn claims_file_corpus_is_read_and_written_or_refused_unchanged() {
    run("claims_file", podwright_fuzz::claims_file::check);
}

#[test]
fn plugin_answer_corpus_becomes_bounded_texts() {
    run("plugin_answers", podwright_fuzz::plugin_answers::check);
}

#[test]
fn node_resource_corpus_can_be_published_or_is_refused() {
    run("node_resources", podwright_fuzz::node_resources::check);
}

#[test]
fn spdy_corpus_is_read_the_same_in_any_chunking() {
    run("spdy", podwright_fuzz::spdy::check);
}
