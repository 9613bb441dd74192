//! Parts of error texts: the limits for foreign text in them, and the text of a system error.

use std::io;

/// The maximum length in bytes of request text that an error answer repeats.
pub(crate) const MAX_ECHO_BYTES: usize = 300;
/// The maximum length of one problem in bytes: a path, a field and what is wrong with it.
pub(crate) const MAX_PROBLEM_BYTES: usize = 8192;

/// The text of a system error as part of a sentence: without its number and without a capital letter.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}
