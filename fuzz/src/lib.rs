//! Properties that hold for any input. Each fuzz target has one `check` function. The tests in `fuzz/tests` run the corpora
//! through the same functions.

use std::fs;
use std::path::Path;

pub mod cdi_spec;
pub mod checkpoint;
pub mod claims_file;
pub mod log_reading;
pub mod log_writing;
pub mod manifest;
pub mod node_resources;
pub mod plugin_answers;
pub mod recording;
pub mod requests;
pub mod runtime_records;
pub mod spdy;

/// The names and contents of the files of a target's corpus, sorted by name.
///
/// # Panics
/// If the corpus cannot be read, or has fewer than ten files.
pub fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries =
        fs::read_dir(dir).expect("the target has a corpus").map(|entry| entry.expect("its files can be listed"));
    let mut files: Vec<_> = entries
        .map(|entry| {
            (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).expect("a file can be read"))
        })
        .collect();
    files.sort();
    assert!(files.len() > 9, "{target} has a corpus");
    files
}

/// Text for people is short and has no character that moves the cursor, ends a line or changes the text direction.
fn assert_plain(text: &str, most: usize) {
    assert!(text.len() <= most, "{} bytes: {text:.200}", text.len());
    let bad = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    assert!(!text.contains(bad), "raw control characters: {text:?}");
}
