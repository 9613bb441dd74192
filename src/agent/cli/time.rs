//! Times on the command line.

use std::time::Duration;

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
}
