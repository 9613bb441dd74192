//! Times on the command line.

use std::fmt;
use std::str::FromStr;
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

/// The value of `--shutdown-grace`: `SECONDS[,CRITICAL]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShutdownGrace {
    pub(crate) total: Duration,
    /// The part of the total that is reserved for critical pods.
    pub(crate) critical: Duration,
}

impl Default for ShutdownGrace {
    /// Twice the default grace period of a pod (30 s), with a sixth of it reserved for critical pods.
    fn default() -> Self {
        ShutdownGrace { total: Duration::from_secs(60), critical: Duration::from_secs(10) }
    }
}

impl fmt::Display for ShutdownGrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.total.as_secs(), self.critical.as_secs())
    }
}

impl FromStr for ShutdownGrace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (total, critical) = match text.split_once(',') {
            Some((total, critical)) => (whole_seconds(total)?, whole_seconds(critical)?),
            None => {
                let total = whole_seconds(text)?;
                (total, total / 6)
            }
        };
        if critical > total {
            return Err(format!(
                "cannot reserve {} s of {} s for critical pods: give more seconds in total, or reserve fewer",
                critical.as_secs(),
                total.as_secs()
            ));
        }
        Ok(ShutdownGrace { total, critical })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shutdown_grace_parses_total_and_critical_seconds() {
        let parse = |text: &str| text.parse::<ShutdownGrace>().map(|grace| grace.to_string());
        assert_eq!(parse("60,10").as_deref(), Ok("60,10"));
        assert_eq!(parse("30").as_deref(), Ok("30,5"));
        assert_eq!(parse("0").as_deref(), Ok("0,0"));
        assert!(parse("5,10").unwrap_err().contains("critical"));
        assert!(parse("soon").unwrap_err().contains("seconds"));
    }

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
