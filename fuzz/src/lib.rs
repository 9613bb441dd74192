//! What must hold for any input, one function for each fuzz target. The tests of the project run the corpora through the
//! same functions.

pub mod checkpoint;
pub mod logs;
pub mod manifest;
pub mod reading;
pub mod recording;
pub mod records;
pub mod requests;

/// What is said to people is short, and holds nothing that moves a cursor, ends a line or turns the reading direction.
fn assert_plain(text: &str, most: usize) {
    assert!(text.len() <= most, "{} bytes: {text:.200}", text.len());
    let bad = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    assert!(!text.contains(bad), "raw control characters: {text:?}");
}
