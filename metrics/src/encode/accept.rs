//! Content negotiation.

use std::cmp::Reverse;

use super::Format;

/// How much a format is wanted; the greater wins. Ordered by weight in thousandths, how exactly it was named, and how
/// early in the header.
type Preference = (u32, Specificity, Reverse<usize>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Specificity {
    Anything,
    AnySubtype,
    Type,
    Version,
}

pub(super) fn negotiate(header: &str) -> Format {
    let open_metrics = preference(header, "application", "openmetrics-text", "1.0.0");
    let classic = preference(header, "text", "plain", "0.0.4");
    match (open_metrics, classic) {
        (Some(open_metrics), classic) if Some(open_metrics) > classic => Format::OpenMetrics,
        _ => Format::Classic,
    }
}

/// What the header says about one format; none if nothing in it matches or the format is refused (weight zero).
fn preference(header: &str, main: &str, sub: &str, version: &str) -> Option<Preference> {
    let ranges = header.split(',').enumerate().filter_map(|(position, range)| {
        let (specificity, weight) = matches(range, main, sub, version)?;
        Some((specificity, Reverse(position), weight))
    });
    let (specificity, position, weight) = ranges.max()?;
    (weight > 0).then_some((weight, specificity, position))
}

/// How exactly one range of the header names the format and with which weight; none if it is about another one or
/// malformed.
fn matches(range: &str, main: &str, sub: &str, version: &str) -> Option<(Specificity, u32)> {
    let mut parts = range.split(';').map(str::trim);
    let (range_main, range_sub) = parts.next()?.split_once('/')?;
    let mut specificity = match (range_main, range_sub) {
        ("*", "*") => Specificity::Anything,
        (m, "*") if m.eq_ignore_ascii_case(main) => Specificity::AnySubtype,
        (m, s) if m.eq_ignore_ascii_case(main) && s.eq_ignore_ascii_case(sub) => Specificity::Type,
        _ => return None,
    };
    let mut weight = 1000;
    for parameter in parts {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        let value = value.trim().trim_matches('"');
        match name.trim().to_ascii_lowercase().as_str() {
            "q" => weight = thousandths(value)?,
            // Another version of the format is another format: its syntax may be one we do not write.
            "version" if value != version => return None,
            "version" => specificity = Specificity::Version,
            // Character set and escaping scheme: both formats are UTF-8, and no name here needs escaping.
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
            // A version that we do not write is not ours to send.
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
            // What Prometheus 2 and 3 send.
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
            assert_eq!(Format::from_accept(header), format, "{header:?}");
        }
    }
}
