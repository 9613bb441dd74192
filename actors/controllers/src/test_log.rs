//! Collects log lines with the fields of their spans.

use std::collections::HashMap;
use std::fmt::{Debug, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Clone, Debug, Default)]
pub(super) struct Log(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    lines: Vec<String>,
    spans: HashMap<u64, String>,
    entered: Vec<u64>,
}

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Log {
    pub(super) fn lines(&self) -> Vec<String> {
        self.0.lock().lines.clone()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("podwright_controllers")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = String::new();
        span.record(&mut Text(&mut text));
        let spans = &mut self.0.lock().spans;
        let id = spans.len() as u64 + 1;
        spans.insert(id, text);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut Text(&mut text));
        let mut log = self.0.lock();
        let spans: String = log.entered.iter().filter_map(|id| log.spans.get(id)).map(String::as_str).collect();
        log.lines.push(format!("{spans}{text}"));
    }

    fn enter(&self, span: &Id) {
        self.0.lock().entered.push(span.into_u64());
    }

    fn exit(&self, span: &Id) {
        self.0.lock().entered.retain(|id| *id != span.into_u64());
    }
}
