//! Splits what the registry wrote, and prints it sorted in either format.

use std::fmt::Write;

use super::Format;
use super::number::shortest;
use crate::register::COUNTERS_WITHOUT_TOTAL;

/// One family as the registry wrote it. All texts are slices of that, escaped as they were: both formats escape label
/// values in the same way.
#[derive(Debug)]
pub(super) struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
    samples: Vec<Sample<'a>>,
}

#[derive(Debug, PartialEq)]
struct Sample<'a> {
    /// What follows the family's name: `_total`, `_bucket`, `_sum`, `_count` or nothing.
    suffix: &'a str,
    /// Without `le`.
    labels: Vec<(&'a str, &'a str)>,
    le: Option<&'a str>,
    value: &'a str,
}

/// The families of an OpenMetrics text by `prometheus_client`. It is not a parser for that of others.
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

/// A sample from what follows the family's name in its line.
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

/// Where the first quote stands that no backslash escapes.
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
    /// The name in the family's header. The classic format calls a counter's family by the name of its samples.
    fn shown_name(&self, format: Format) -> String {
        let suffix = if format == Format::Classic { self.total() } else { "" };
        format!("{}{suffix}", self.name)
    }

    /// What the classic format appends to the name of a counter.
    fn total(&self) -> &'static str {
        if self.kind == COUNTER && !COUNTERS_WITHOUT_TOTAL.contains(&self.name) { "_total" } else { "" }
    }
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a String takes every write");
}

/// Where a sample stands among those of its series: buckets, sum, count.
fn rank(sample: &Sample<'_>) -> u8 {
    match sample.suffix {
        "_sum" => 1,
        "_count" => 2,
        _ => 0,
    }
}

/// Labels by name, the bound of a bucket last.
fn labels(sample: &Sample<'_>, format: Format) -> String {
    let own = sample.labels.iter().map(|(name, value)| format!("{name}=\"{value}\""));
    let le = sample.le.map(|bound| format!("le=\"{}\"", number(bound, format)));
    let labels: Vec<String> = own.chain(le).collect();
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

/// OpenMetrics wants bounds such as `1.0` and takes any form of a value, so what the registry wrote stands; the classic
/// format has the form that scrapers of the kubelet see.
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
