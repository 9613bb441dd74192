//! Writes metrics in the classic text format of Prometheus. Pure.

use std::fmt::Write;

use podwright_model::time::Time;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

/// The name, the type and the help text of a metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

/// Writes the series of one metric into a text. A metric without series leaves no trace there.
#[derive(Debug)]
pub(super) struct Series<'a> {
    text: &'a mut String,
    head: Head,
    is_begun: bool,
    labels: &'a str,
    at: Option<Time>,
}

impl<'a> Series<'a> {
    pub(super) fn new(text: &'a mut String, head: Head) -> Self {
        Series { text, head, is_begun: false, labels: "", at: None }
    }

    /// Sets the labels of the next series, as [`labels`] returns them, and the time at which they were measured.
    pub(super) fn of(&mut self, labels: &'a str, at: Option<Time>) -> &mut Self {
        (self.labels, self.at) = (labels, at);
        self
    }

    /// A series whose value is a number. An unknown number has no series.
    pub(super) fn number(&mut self, more: &[(&str, &str)], value: Option<u64>) {
        if let Some(value) = value {
            self.line(more, value, 0, 0);
        }
    }

    /// A series whose value is a time in seconds, from nanoseconds.
    pub(super) fn nanos(&mut self, more: &[(&str, &str)], value: Option<u64>) {
        if let Some(value) = value {
            self.line(more, value / 1_000_000_000, value % 1_000_000_000, 9);
        }
    }

    /// A series whose value is a time in seconds, from microseconds.
    pub(super) fn micros(&mut self, more: &[(&str, &str)], value: Option<u64>) {
        if let Some(value) = value {
            self.line(more, value / 1_000_000, value % 1_000_000, 6);
        }
    }

    fn line(&mut self, more: &[(&str, &str)], whole: u64, fraction: u64, digits: usize) {
        if !self.is_begun {
            self.is_begun = true;
            self.begin();
        }
        let text = &mut *self.text;
        text.push_str(self.head.name);
        if !(self.labels.is_empty() && more.is_empty()) {
            text.push('{');
            text.push_str(self.labels);
            more.iter().for_each(|(name, value)| add_label(text, name, value));
            text.push('}');
        }
        let written = match fraction {
            0 => write!(text, " {whole}"),
            _ => write!(text, " {whole}.{fraction:0digits$}"),
        };
        written.expect(TAKES_ANY);
        if let Some(at) = self.at {
            write!(text, " {}", at.as_nanos() / 1_000_000).expect(TAKES_ANY);
        }
        text.push('\n');
    }

    fn begin(&mut self) {
        let Head { name, kind, help } = self.head;
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}").expect(TAKES_ANY);
    }
}

const TAKES_ANY: &str = "a string takes any text";

/// The text of labels.
pub(super) fn labels(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    pairs.iter().for_each(|(name, value)| add_label(&mut text, name, value));
    text
}

fn add_label(text: &mut String, name: &str, value: &str) {
    if !(text.is_empty() || text.ends_with('{')) {
        text.push(',');
    }
    text.push_str(name);
    text.push_str("=\"");
    if value.contains(['\\', '"', '\n']) {
        text.push_str(&value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"));
    } else {
        text.push_str(value);
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head = Head { name: "a_total", kind: Kind::Counter, help: "what it is" };

    #[test]
    fn metric_begins_with_its_first_series() {
        let mut text = String::new();
        let mut series = Series::new(&mut text, HEAD);
        series.number(&[], None);
        series.of("x=\"1\"", Some(Time::from_secs(7))).number(&[], Some(u64::MAX));
        series.of("", None).number(&[], Some(0));
        series.nanos(&[], None);
        series.micros(&[], None);
        let expected = "# HELP a_total what it is\n# TYPE a_total counter\na_total{x=\"1\"} 18446744073709551615 7000\n\
                        a_total 0\n";
        assert_eq!(text, expected);
        let mut text = String::new();
        Series::new(&mut text, Head { kind: Kind::Gauge, ..HEAD }).number(&[], None);
        assert_eq!(text, "");
    }

    #[test]
    fn times_are_in_seconds_with_every_digit() {
        let mut text = String::new();
        let mut series = Series::new(&mut text, HEAD);
        for nanos in [1_500_000_000, 1, 2_000_000_000] {
            series.nanos(&[], Some(nanos));
        }
        series.micros(&[], Some(12_000_034));
        let values: Vec<_> = text.lines().skip(2).filter_map(|line| line.split(' ').nth(1)).collect();
        assert_eq!(values, ["1.500000000", "0.000000001", "2", "12.000034"]);
    }

    #[test]
    fn labels_of_a_series_follow_those_of_its_subject_and_are_escaped() {
        let own = labels(&[("id", "/a"), ("image", "a\\b\"c\nd")]);
        assert_eq!(own, "id=\"/a\",image=\"a\\\\b\\\"c\\nd\"");
        let mut text = String::new();
        let mut series = Series::new(&mut text, HEAD);
        series.of("id=\"/a\"", None).number(&[("device", "x\"y"), ("scope", "")], Some(1));
        series.of("", None).number(&[("device", "z")], Some(2));
        let series: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(series, ["a_total{id=\"/a\",device=\"x\\\"y\",scope=\"\"} 1", "a_total{device=\"z\"} 2"]);
    }
}
