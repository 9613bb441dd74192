//! Properties that hold for any input, one `check` function for each fuzz target. The test `fuzz_corpora` runs the
//! corpora through the same functions.

pub mod cdi_spec;
pub mod checkpoint;
#[cfg(feature = "dra")]
pub mod claims_file;
pub mod log_reading;
pub mod log_writing;
pub mod manifest;
#[cfg(all(feature = "dra", feature = "kube"))]
pub mod node_resources;
#[cfg(feature = "dra")]
pub mod plugin_answers;
pub mod recording;
pub mod requests;
pub mod runtime_records;
#[cfg(feature = "kube")]
pub mod spdy;

/// Text for people is short and has no character that moves the cursor, ends a line or changes the text direction.
fn assert_plain(text: &str, most: usize) {
    assert!(text.len() <= most, "{} bytes: {text:.200}", text.len());
    let bad = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    assert!(!text.contains(bad), "raw control characters: {text:?}");
}
