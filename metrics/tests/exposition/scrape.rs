//! A strict reader of both text formats, as small as the tests allow. It panics on anything malformed.

use podwright_metrics::Format;

pub(crate) struct Scrape {
    pub(crate) families: Vec<Family>,
}

#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    /// In the order of the text, unescaped.
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

impl Sample {
    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }

    /// The labels without `le`, as `a=1,b=2`.
    pub(crate) fn series(&self) -> String {
        let labels = self.labels.iter().filter(|(name, _)| name != "le");
        labels.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
    }
}

pub(crate) fn scrape(text: &str, format: Format) -> Scrape {
    let body = match format {
        Format::Classic => text,
        Format::OpenMetrics => text.strip_suffix("# EOF\n").expect("the end is marked"),
    };
    let body = body.strip_suffix('\n').expect("the last line is ended");
    let mut families: Vec<Family> = Vec::new();
    let mut lines = body.split('\n').peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line.strip_prefix("# HELP ").expect(line).split_once(' ').expect(line);
        let line = lines.next().expect("a type follows the help");
        let (typed, kind) = line.strip_prefix("# TYPE ").expect(line).split_once(' ').expect(line);
        assert_eq!(name, typed);
        let mut family = Family { name: name.into(), kind: kind.into(), help: help.into(), samples: vec![] };
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            family.samples.push(sample(line));
        }
        assert!(!family.samples.is_empty(), "{name} has no series");
        families.push(family);
    }
    Scrape { families }
}

fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if rest.starts_with('{') {
        loop {
            rest = &rest[1..];
            let (name, after) = rest.split_once("=\"").expect(line);
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
            let (value, after) = unescape(after);
            labels.push((name.to_owned(), value));
            rest = after;
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            assert!(rest.starts_with(','), "{line}");
        }
    }
    let value = rest.strip_prefix(' ').expect(line).parse().expect(line);
    Sample { name: name.to_owned(), labels, value }
}

/// A label value up to its closing quote, and what follows that.
fn unescape(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '"' => return (value, &text[i + 1..]),
            '\\' => value.push(match chars.next().expect("a backslash escapes something").1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                other => panic!("\\{other} is no escape"),
            }),
            c => value.push(c),
        }
    }
    panic!("a label value does not end: {text}")
}
