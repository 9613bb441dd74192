//! Splits the registry's output and prints it sorted in either format.

use std::fmt::Write;

use super::Format;
use super::number::shortest;
use crate::register::COUNTERS_WITHOUT_TOTAL;

/// One family in the registry's output. All texts are slices of the output with their escapes, because both formats
/// escape label values in the same way.
#[derive(Debug)]
pub(super) struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
    samples: Vec<Sample<'a>>,
}

#[derive(Debug, PartialEq)]
struct Sample<'a> {
    /// The suffix of the family's name: `_total`, `_bucket`, `_sum`, `_count` or nothing.
    suffix: &'a str,
    /// The labels without `le`.
    labels: Vec<(&'a str, &'a str)>,
    le: Option<&'a str>,
    value: &'a str,
}

/// The families of an OpenMetrics text from `prometheus_client`. This does not parse the output of other programs.
pub(super) fn parse(text: &str) -> Vec<Family<'_>> {
    let mut families: Vec<Family<'_>> = Vec::new();
    for line in text.split('\n') {
        if let Some(header) = line.strip_prefix("# HELP ") {
            let (name, help) = header.split_once(' ').unwrap_or((header, ""));
            families.push(Family { name, kind: "", help, samples: Vec::new() });
        } else if let (Some(header), Some(family)) = (line.strip_prefix("# TYPE "), families.last_mut()) {
            family.kind = header.rsplit(' ').next().unwrap_or_default();
        } else if let Some(family) = families.last_mut()
            && let Some(sample) = line.strip_prefix(family.name).and_then(parse_sample)
        {
            family.samples.push(sample);
        }
    }
    families
}

/// Parses a sample from the rest of its line after the family's name.
fn parse_sample(line: &str) -> Option<Sample<'_>> {
    let (suffix, mut rest) = line.split_at(line.find(['{', ' '])?);
    let (mut labels, mut le) = (Vec::new(), None);
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (name, after) = rest.split_once("=\"")?;
            let (value, after) = after.split_at(closing_quote(after)?);
            match name.trim_start_matches(',') {
                "le" => le = Some(value),
                name => labels.push((name, value)),
            }
            rest = &after[1..];
        }
        rest = &rest[1..];
    }
    labels.sort_unstable();
    Some(Sample { suffix, labels, le, value: rest.strip_prefix(' ')? })
}

/// The position of the first quote that no backslash escapes.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

/// Prints families by name and series by labels.
pub(super) fn render(mut families: Vec<Family<'_>>, format: Format) -> String {
    let mut out = String::new();
    families.sort_by_cached_key(|family| family.shown_name(format));
    for mut family in families {
        // The sort is stable: buckets stay in the order of their bounds.
        family.samples.sort_by(|a, b| (&a.labels, rank(a)).cmp(&(&b.labels, rank(b))));
        let shown_name = family.shown_name(format);
        line(&mut out, format_args!("# HELP {shown_name} {}", family.help));
        line(&mut out, format_args!("# TYPE {shown_name} {}", family.kind));
        for sample in &family.samples {
            let suffix = match format {
                Format::Classic if family.kind == COUNTER => family.total(),
                _ => sample.suffix,
            };
            let (labels, value) = (labels(sample, format), number(sample.value, format));
            line(&mut out, format_args!("{}{suffix}{labels} {value}", family.name));
        }
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

const COUNTER: &str = "counter";

impl Family<'_> {
    /// Whether a series has one of these labels.
    pub(super) fn has_label(&self, names: &[&str]) -> bool {
        self.samples.iter().flat_map(|sample| &sample.labels).any(|(name, _)| names.contains(name))
    }

    /// The name in the family's header. The classic format uses the name of a counter's samples.
    fn shown_name(&self, format: Format) -> String {
        let suffix = if format == Format::Classic { self.total() } else { "" };
        format!("{}{suffix}", self.name)
    }

    /// The suffix that the classic format adds to a counter's name.
    fn total(&self) -> &'static str {
        if self.kind == COUNTER && !COUNTERS_WITHOUT_TOTAL.contains(&self.name) { "_total" } else { "" }
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a String takes every write");
}

/// The order of a sample within its series: buckets, sum, count.
fn rank(sample: &Sample<'_>) -> u8 {
    match sample.suffix {
        "_sum" => 1,
        "_count" => 2,
        _ => 0,
    }
}

/// The labels by name, with the bound of a bucket last.
fn labels(sample: &Sample<'_>, format: Format) -> String {
    let own = sample.labels.iter().map(|(name, value)| format!("{name}=\"{value}\""));
    let le = sample.le.map(|bound| format!("le=\"{}\"", number(bound, format)));
    let labels: Vec<String> = own.chain(le).collect();
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

/// The text of a number. OpenMetrics needs bounds such as `1.0` and accepts any form of a value, so the registry's form
/// stays. The classic format uses the form of the kubelet's scrapers.
fn number(written: &str, format: Format) -> String {
    match (format, written.parse::<f64>()) {
        (Format::Classic, Ok(value)) => shortest(value),
        _ => written.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_split_at_quotes_that_are_not_escaped() {
        let sample = parse_sample(r#"_total{b="a\\",a="x\"} \\\" 1",le="+Inf"} 3"#).unwrap();
        assert_eq!(sample.labels, [("a", r#"x\"} \\\" 1"#), ("b", r"a\\")]);
        assert_eq!((sample.suffix, sample.le, sample.value), ("_total", Some("+Inf"), "3"));
    }

    #[test]
    fn a_sample_without_labels_is_split() {
        assert_eq!(parse_sample(" 1.5"), Some(Sample { suffix: "", labels: vec![], le: None, value: "1.5" }));
    }
}
