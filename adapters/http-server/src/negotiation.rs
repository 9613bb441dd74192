//! Chooses the metrics format by the `Accept` header of a scrape.

use std::cmp::Reverse;

use podwright_metrics::Format;

/// The preference for a format; the greatest wins. Ordered by the weight in thousandths, by how exactly the header names
/// the format, and by its position in the header.
type FormatPreference = (u32, RangeSpecificity, Reverse<usize>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RangeSpecificity {
    Anything,
    AnySubtype,
    Type,
    Version,
}

/// The format that an `Accept` header requests. An empty or invalid header, or one that accepts neither format, gets the
/// classic format, because a scrape is never refused for its header.
///
/// The rules are those of RFC 9110, 12.5.1: the most specific range that matches a format gives its weight, and the
/// format with the greater weight wins. Of two equal weights the more specific range wins, then the first one.
pub fn negotiate(header: &str) -> Format {
    let open_metrics = preference(header, "application", "openmetrics-text", "1.0.0");
    let classic = preference(header, "text", "plain", "0.0.4");
    match (open_metrics, classic) {
        (Some(open_metrics), classic) if Some(open_metrics) > classic => Format::OpenMetrics,
        _ => Format::Classic,
    }
}

/// The header's preference for one format; `None` if no range matches or the format is refused (weight 0).
fn preference(header: &str, main: &str, sub: &str, version: &str) -> Option<FormatPreference> {
    let ranges = header.split(',').enumerate().filter_map(|(position, range)| {
        let (specificity, weight) = matches(range, main, sub, version)?;
        Some((specificity, Reverse(position), weight))
    });
    let (specificity, position, weight) = ranges.max()?;
    (weight > 0).then_some((weight, specificity, position))
}

/// How exactly one range of the header names the format, and its weight; `None` if it names another format or is
/// malformed.
fn matches(range: &str, main: &str, sub: &str, version: &str) -> Option<(RangeSpecificity, u32)> {
    let mut parts = range.split(';').map(str::trim);
    let (range_main, range_sub) = parts.next()?.split_once('/')?;
    let mut specificity = match (range_main, range_sub) {
        ("*", "*") => RangeSpecificity::Anything,
        (m, "*") if m.eq_ignore_ascii_case(main) => RangeSpecificity::AnySubtype,
        (m, s) if m.eq_ignore_ascii_case(main) && s.eq_ignore_ascii_case(sub) => RangeSpecificity::Type,
        _ => return None,
    };
    let mut weight = 1000;
    for parameter in parts {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        let value = value.trim().trim_matches('"');
        match name.trim().to_ascii_lowercase().as_str() {
            "q" => weight = thousandths(value)?,
            // Another version counts as another format, because its syntax may differ.
            "version" if value != version => return None,
            "version" => specificity = RangeSpecificity::Version,
            // The character set and the escaping scheme do not matter: both formats are UTF-8, and no name needs escapes.
            _ => {}
        }
    }
    Some((specificity, weight))
}

fn thousandths(weight: &str) -> Option<u32> {
    let weight: f64 = weight.parse().ok()?;
    // The cast of a float saturates; a NaN is not in the range.
    (0.0..=1.0).contains(&weight).then_some((weight * 1000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_header_decides_the_format() {
        use Format::{Classic, OpenMetrics};
        let table = [
            ("", Classic),
            ("*/*", Classic),
            ("text/html", Classic),
            ("nonsense", Classic),
            (";;,,/", Classic),
            ("text/plain", Classic),
            ("text/*", Classic),
            ("text/plain;version=0.0.4", Classic),
            ("application/openmetrics-text", OpenMetrics),
            ("application/*", OpenMetrics),
            ("Application/OpenMetrics-Text; Version=1.0.0; charset=utf-8", OpenMetrics),
            ("application/openmetrics-text; version=\"1.0.0\"", OpenMetrics),
            // Other versions are not supported.
            ("application/openmetrics-text;version=0.0.1", Classic),
            ("application/openmetrics-text;version=2.0.0,text/plain;q=0.1", Classic),
            ("text/plain;version=1.0.0,application/openmetrics-text;q=0.2", OpenMetrics),
            // Weights.
            ("application/openmetrics-text;q=0.5,text/plain;q=0.9", Classic),
            ("text/plain;q=0.5,application/openmetrics-text;q=0.9", OpenMetrics),
            ("application/openmetrics-text;q=0", Classic),
            ("text/plain;q=0,*/*", OpenMetrics),
            ("application/openmetrics-text;q=0,*/*", Classic),
            ("application/openmetrics-text; q = 0.9 , text/plain ; q=0.8", OpenMetrics),
            ("application/openmetrics-text;q=high,text/plain;q=0.1", Classic),
            ("application/openmetrics-text;q=NaN", Classic),
            ("application/openmetrics-text;q=7", Classic),
            // Equal weights: the exact name wins over a wildcard, the first one over the second.
            ("*/*,application/openmetrics-text", OpenMetrics),
            ("application/*,text/plain", Classic),
            ("application/openmetrics-text,text/plain", OpenMetrics),
            ("text/plain,application/openmetrics-text", Classic),
            // The exact name's weight counts, not the wildcard's, whatever their order.
            ("*/*;q=1,application/openmetrics-text;q=0.1", Classic),
            ("application/openmetrics-text;q=0.1,*/*;q=1", Classic),
            // The headers of Prometheus 2 and 3.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                 application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                OpenMetrics,
            ),
            ("application/vnd.google.protobuf;q=0.7,text/plain;version=0.0.4;q=0.3", Classic),
        ];
        for (header, format) in table {
            assert_eq!(negotiate(header), format, "{header:?}");
        }
    }
}
