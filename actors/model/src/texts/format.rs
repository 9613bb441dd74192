//! The forms in which Go prints values.

use std::fmt::Write;
use std::time::Duration;

use crate::pod::PodObject;

/// A pod as `NAME_NAMESPACE(UID)` (`util/format/pod.go`, `Pod`).
pub fn pod(pod: &PodObject) -> String {
    format!("{}_{}({})", pod.full_name().name(), pod.full_name().namespace(), pod.uid())
}

/// A list of texts as `[a b]`: `fmt.Sprint` of a slice.
pub fn list(texts: &[impl AsRef<str>]) -> String {
    let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
    format!("[{}]", texts.join(" "))
}

/// Several error texts as one: a single text stays, several become `[a, b]`, and repeated texts count once
/// (`apimachinery/pkg/util/errors`, `Aggregate`).
pub fn aggregate(errors: &[impl AsRef<str>]) -> String {
    let mut unique: Vec<&str> = Vec::with_capacity(errors.len());
    for error in errors.iter().map(AsRef::as_ref) {
        if !unique.contains(&error) {
            unique.push(error);
        }
    }
    match unique[..] {
        [one] => one.to_owned(),
        _ => format!("[{}]", unique.join(", ")),
    }
}

/// A duration such as `1m2.345s`, `850ms` or `0s` (`time.Duration.String`).
pub fn duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    // Trailing zeros of the fraction are left out.
    let decimal = |unit: u128| {
        let digits = unit.ilog10() as usize;
        let text = format!("{}.{:0digits$}", nanos / unit, nanos % unit);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match nanos {
        0 => return "0s".to_owned(),
        1..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => return format!("{}µs", decimal(1_000)),
        1_000_000..1_000_000_000 => return format!("{}ms", decimal(1_000_000)),
        _ => {}
    }
    let (minutes, rest) = (nanos / 60_000_000_000, nanos % 60_000_000_000);
    let fraction = format!("{}.{:09}", rest / 1_000_000_000, rest % 1_000_000_000);
    let seconds = fraction.trim_end_matches('0').trim_end_matches('.');
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// A text in double quotes: the verb `%q` (`strconv.Quote`).
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        let escape = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\x07' => "\\a",
            '\x08' => "\\b",
            '\x0c' => "\\f",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\x0b' => "\\v",
            _ => "",
        };
        let number = u32::from(c);
        let written = match c {
            _ if !escape.is_empty() => out.write_str(escape),
            '\0'..' ' | '\x7f' => write!(out, "\\x{number:02x}"),
            // Go prints no spaces other than the ASCII one, and no character without a shape.
            c if c != ' ' && (c.is_control() || c.is_whitespace() || is_format(c)) => write!(out, "\\u{number:04x}"),
            c => out.write_char(c),
        };
        written.expect("writing to a string cannot fail");
    }
    out.push('"');
    out
}

/// Whether a character is without a shape of its own and is not covered by the standard library's classes.
fn is_format(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e000}'..='\u{f8ff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_form_of_go() {
        for (nanos, text) in [
            (0, "0s"),
            (15, "15ns"),
            (1_500, "1.5µs"),
            (106_000_000, "106ms"),
            (1_050_000, "1.05ms"),
            (1_000_000_000, "1s"),
            (2_345_000_000, "2.345s"),
            (10_500_000_000, "10.5s"),
            (60_000_000_000, "1m0s"),
            (60_007_000_000, "1m0.007s"),
            (300_000_000_000, "5m0s"),
            (3_723_400_000_000, "1h2m3.4s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanos)), text);
        }
    }

    #[test]
    fn quoted_texts_have_the_form_of_go() {
        for (text, expected) in [
            ("a:1", "\"a:1\""),
            ("say \"hi\"\n", "\"say \\\"hi\\\"\\n\""),
            ("\x1b[2J\x07\0", "\"\\x1b[2J\\a\\x00\""),
            ("é 👍 '", "\"é 👍 '\""),
            ("a\u{a0}b\u{200b}", "\"a\\u00a0b\\u200b\""),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn one_error_prints_itself_and_several_print_a_list() {
        assert_eq!(aggregate(&["a"]), "a");
        assert_eq!(aggregate(&["a", "b", "a"]), "[a, b]");
        assert_eq!(aggregate(&["a", "a"]), "a");
        assert_eq!(list(&["a", "b"]), "[a b]");
    }
}
