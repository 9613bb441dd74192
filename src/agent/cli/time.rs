//! Times on the command line.

use std::time::Duration;

use jiff::Timestamp;

/// Parses a whole number of seconds.
pub(super) fn whole_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text
        .trim()
        .parse::<u32>()
        .map_err(|_| format!("{text:?} is not a number of seconds: write a whole number such as 30"))?;
    Ok(Duration::from_secs(seconds.into()))
}

/// Parses a time span such as `90s`, `5m` or `1h30m`, or a number of seconds.
pub(super) fn time_span(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(seconds.into()));
    }
    let span = text.parse::<jiff::SignedDuration>().ok().and_then(|span| Duration::try_from(span).ok());
    span.ok_or_else(|| format!("{text:?} is not a time span: write one such as 90s, 5m or 1h30m"))
}

/// Parses a time span with its unit.
pub(super) fn span_with_unit(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(number) => Err(format!("{text:?} has no unit: write {number}s, {number}m or {number}h")),
        Err(_) => time_span(text),
    }
}

/// Parses a point in time with its offset from UTC, such as `2026-11-21T20:30:00Z`.
pub(super) fn point_in_time(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| format!("{text:?} is not a time: write one such as 2026-11-21T20:30:00Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_spans_parse_with_and_without_unit() {
        for (text, seconds) in [("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("7", 7.0), ("1500ms", 1.5)] {
            assert_eq!(time_span(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for text in ["soon", "-5s", "", "5 parsecs"] {
            assert!(time_span(text).unwrap_err().contains("1h30m"), "{text}");
        }
    }

    #[test]
    fn span_with_unit_is_no_bare_number() {
        assert_eq!(span_with_unit("5m"), Ok(Duration::from_secs(300)));
        for (text, says) in [("5", "write 5s, 5m or 5h"), ("soon", "1h30m"), ("", "1h30m")] {
            assert!(span_with_unit(text).unwrap_err().contains(says), "{text}");
        }
    }

    #[test]
    fn points_in_time_need_an_offset() {
        let time = Ok(Timestamp::from_second(1_800_000_000).unwrap());
        for text in ["2027-01-15T08:00:00Z", "2027-01-15T09:00:00+01:00", "2027-01-15T08:00:00.000Z"] {
            assert_eq!(point_in_time(text), time, "{text}");
        }
        for text in ["2027-01-15T08:00:00", "5m", ""] {
            assert!(point_in_time(text).unwrap_err().contains("20:30:00Z"), "{text}");
        }
    }
}
