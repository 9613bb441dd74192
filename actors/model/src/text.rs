//! Makes the text of errors and of other programs ready to print.

use std::any::Any;
use std::borrow::Cow;
use std::error::Error;
use std::fmt::{self, Write};
use std::io;

/// Makes a text safe for a log line or a terminal and limits it to `most` bytes. Characters that move the cursor, end
/// the line or change the reading direction are escaped as in Rust. A text that is too long loses its middle, because
/// the start names the subject and the end names the remedy.
pub fn plain(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most && !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    // Escapes only make the text longer, so the rest is not needed.
    let head = escaped(&text[..text.floor_char_boundary(most)]);
    if text.len() <= most && head.len() <= most {
        return Cow::Owned(head);
    }
    let tail = escaped(&text[text.ceil_char_boundary(text.len().saturating_sub(most))..]);
    let room = most.saturating_sub(GAP.len());
    let head = &head[..head.floor_char_boundary(room - room / 3)];
    let tail = &tail[tail.ceil_char_boundary(tail.len().saturating_sub(room / 3))..];
    Cow::Owned([head, GAP, tail].concat())
}

/// The message of a panic that was caught.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&'static str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Displays an error with all its sources, separated by colons. A source whose text the error before it ends with is
/// displayed once, because some libraries put the text of a source into their own.
pub fn error_chain<'a>(error: &'a (dyn Error + 'a)) -> impl fmt::Display + 'a {
    fmt::from_fn(move |f| {
        let mut last = error.to_string();
        f.write_str(&last)?;
        let mut cause = error.source();
        while let Some(source) = cause {
            let text = source.to_string();
            if !is_tail(&last, &text) {
                write!(f, ": {text}")?;
            }
            last = text;
            cause = source.source();
        }
        Ok(())
    })
}

/// The text of an error with all its sources, as [`error_chain`] displays them. Fast for an error without sources.
pub fn error_text<E: Error>(error: &E) -> String {
    if error.source().is_none() { error.to_string() } else { error_chain(error).to_string() }
}

/// The text of a system error as part of a sentence: without its number and without a capital letter.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// Whether `last` is this text, or ends with it after a colon or in quotes.
fn is_tail(last: &str, text: &str) -> bool {
    let after_colon = last.strip_suffix(text).is_some_and(|start| start.is_empty() || start.ends_with(": "));
    after_colon
        || last.strip_suffix('"').and_then(|last| last.strip_suffix(text)).is_some_and(|start| start.ends_with(": \""))
}

/// Replaces the omitted part.
const GAP: &str = " ... ";

fn is_harmful(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmful(c) {
            write!(out, "{}", c.escape_debug()).expect("writing to a string cannot fail");
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_other_text_stays() {
        assert!(matches!(plain("söme \"téxt\" 👍", 100), Cow::Borrowed("söme \"téxt\" 👍")));
        assert_eq!(plain("a\x1b[2Jb\nc\u{9b}d\u{202e}e\u{feff}", 100), "a\\u{1b}[2Jb\\nc\\u{9b}d\\u{202e}e\\u{feff}");
    }

    #[test]
    fn reason_of_a_system_error_is_part_of_a_sentence() {
        assert_eq!(reason(&io::Error::from_raw_os_error(2)), "no such file or directory");
        assert_eq!(reason(&io::Error::other("")), "");
    }

    #[test]
    fn a_long_text_keeps_its_start_and_its_end() {
        let text = format!("start{}end", "é\n".repeat(1000));
        for most in 20..200 {
            let short = plain(&text, most);
            assert!(short.len() <= most && short.len() + 4 > most - most / 8, "{most}: {short:?}");
            assert!(short.starts_with("start") && short.ends_with("end") && short.contains(GAP), "{short:?}");
        }
        assert_eq!(plain(&"\n".repeat(99), 100).len(), 100, "escapes count too");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Step {
        text: &'static str,
        source: Option<Box<Step>>,
    }

    #[test]
    fn error_chain_prints_each_source_once() {
        let chain = |texts: &[&'static str]| {
            let step = |source, text: &&'static str| Some(Box::new(Step { text, source }));
            error_chain(&*texts.iter().rev().fold(None, step).unwrap()).to_string()
        };
        assert_eq!(chain(&["cannot read"]), "cannot read");
        assert_eq!(chain(&["cannot read", "disk full"]), "cannot read: disk full");
        assert_eq!(chain(&["cannot read: disk full", "disk full", "disk full"]), "cannot read: disk full");
        assert_eq!(chain(&["runtime unreachable", "unreachable"]), "runtime unreachable: unreachable");
    }
}
