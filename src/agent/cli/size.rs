//! Sizes in bytes on the command line.

use std::fmt;
use std::str::FromStr;

use podwright_engine::recorder::Recorder;

/// The size in bytes at which a container's log is rotated; 0 for never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogSize(pub(crate) usize);

impl Default for LogSize {
    fn default() -> Self {
        LogSize(10 << 20)
    }
}

impl fmt::Display for LogSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(self.0, f)
    }
}

impl FromStr for LogSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_bytes(text).map(LogSize)
    }
}

/// Parses a number of bytes, with or without a unit.
fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim_end_matches('B') {
        "" => 1,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "k" | "K" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        other => return Err(format!("unknown unit {other:?}: use Ki, Mi or Gi as in 16Mi, or no unit for bytes")),
    };
    let number = digits.parse::<usize>().map_err(|_| "not a size: write one such as 16Mi, or 0 for none".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "too large: write a size such as 16Mi".to_owned())
}

fn write_bytes(bytes: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match bytes {
        bytes if bytes > 0 && bytes % (1 << 20) == 0 => write!(f, "{}Mi", bytes >> 20),
        bytes if bytes > 0 && bytes % (1 << 10) == 0 => write!(f, "{}Ki", bytes >> 10),
        bytes => write!(f, "{bytes}"),
    }
}

/// The memory of the flight recorder in bytes; 0 turns it off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordingSize(pub(crate) usize);

impl RecordingSize {
    /// The largest size, half of what `replay` reads. A saved recording is larger than this memory, because it holds whole
    /// segments and the state of idle pods.
    pub(crate) const LARGEST: Self = RecordingSize(512 << 20);
}

impl Default for RecordingSize {
    fn default() -> Self {
        RecordingSize(16 << 20)
    }
}

impl fmt::Display for RecordingSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_bytes(self.0, f)
    }
}

impl FromStr for RecordingSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = parse_bytes(text)?;
        if bytes > 0 && bytes < Recorder::SMALLEST {
            return Err(format!(
                "too small for the flight recorder: give {} or more, or 0 to turn it off",
                RecordingSize(Recorder::SMALLEST)
            ));
        }
        if bytes > RecordingSize::LARGEST.0 {
            return Err(format!("larger than replay can read: give {} or less", RecordingSize::LARGEST));
        }
        Ok(RecordingSize(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recording_sizes_parse_with_units_and_limits() {
        let parse = |text: &str| text.parse::<RecordingSize>().map(|RecordingSize(bytes)| bytes);
        for (text, bytes) in [
            ("16Mi", 16 << 20),
            ("512Mi", 512 << 20),
            ("0", 0),
            ("65536", 65_536),
            ("64KiB", 65_536),
            ("1M", 1_000_000),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        assert_eq!(RecordingSize::default().to_string(), "16Mi");
        for (bad, says) in [
            ("63Ki", "64Ki"),
            ("513Mi", "512Mi"),
            ("16MI", "unit"),
            ("much", "unit"),
            ("", "not a size"),
            ("-1", "not a size"),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
        assert!(parse("99999999999999999Gi").unwrap_err().contains("too large"));
    }

    #[test]
    fn log_sizes_parse_with_units() {
        let size = |text: &str| text.parse::<LogSize>().map(|LogSize(bytes)| bytes);
        assert_eq!([size("10Mi"), size("0"), size("1Ki")], [Ok(10 << 20), Ok(0), Ok(1024)]);
        assert_eq!(LogSize::default().to_string(), "10Mi");
        assert!(size("10MB!").unwrap_err().contains("unit"));
    }
}
