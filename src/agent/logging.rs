//! The agent's log output: to standard output, or to the lines below the live table.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_model::text::plain;
use tokio::sync::Notify;
use tracing::field::Field;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer, debug_fn};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormattedFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use super::cli::LogFormat;

/// How many lines are kept for the live table.
const KEPT: usize = 200;
/// The maximum length of a text line in bytes.
const MAX_LINE_BYTES: usize = 16 << 10;
/// The log filter if `RUST_LOG` is not set. The client of the API server logs each failed request as an error, without its object, and its
/// watcher logs each refusal as a Rust value. Who made the request logs that too, as a sentence with the object and what follows.
const DEFAULT_FILTER: &str = "info,kube_client::client::builder=off,kube_runtime::watcher=off";

/// The last log lines.
#[derive(Debug, Default)]
pub(crate) struct LogLines {
    kept: Mutex<VecDeque<String>>,
    changed: Notify,
}

impl LogLines {
    /// The last `n` lines, the oldest first.
    pub(crate) fn last(&self, n: usize) -> Vec<String> {
        let kept = self.kept.lock();
        kept.iter().skip(kept.len().saturating_sub(n)).cloned().collect()
    }

    /// Resolves when lines were added. Only one task may wait.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn push(&self, text: &str) {
        let mut kept = self.kept.lock();
        kept.extend(text.lines().map(str::to_owned));
        let over = kept.len().saturating_sub(KEPT);
        kept.drain(..over);
        drop(kept);
        self.changed.notify_one();
    }
}

/// Sends log lines to standard output.
pub(crate) fn to_stdout(format: LogFormat) {
    init(format, io::stdout);
}

/// Sends log lines to `lines`.
pub(crate) fn to_lines(format: LogFormat, lines: Arc<LogLines>) {
    init(format, move || LogLinesWriter(lines.clone()));
}

fn init<W>(format: LogFormat, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    // Internal errors are not logged. Otherwise a closed standard output would cause a message on standard error for each
    // line.
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_target(false)
        .with_ansi(false)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => logs.fmt_fields(debug_fn(write_field)).event_format(TextLine).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}

/// Writes one field of a text line. UIDs and the span's phase appear only in JSON. A span names its pod in two fields,
/// `pod.namespace` and then `pod.name`, which become `pod=NAMESPACE/NAME`.
fn write_field(to: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let plain = || format!("{value:?}").trim_matches('"').to_owned();
    match field.name() {
        "message" => write!(to, "{value:?}"),
        "pod.uid" | "phase" => Ok(()),
        "pod.namespace" => write!(to, " pod={}", plain()),
        "pod.name" => write!(to, "/{}", plain()),
        name => write!(to, " {name}={value:?}"),
    }
}

/// The text format of a log line: time, level, message, fields, and last the pod of the span. Text of containers and
/// runtimes is escaped, so that it cannot end the line or move the cursor.
struct TextLine;

impl<S, N> FormatEvent<S, N> for TextLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, cx: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = String::new();
        let mut words = Writer::new(&mut line);
        cx.field_format().format_fields(words.by_ref(), event)?;
        for span in cx.event_scope().into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>() {
                // Each recorded field ends with a space.
                write!(words, "{}", fields.trim_end())?;
            }
        }
        SystemTime.format_time(&mut to)?;
        writeln!(to, " {:>5} {}", event.metadata().level(), plain(&line, MAX_LINE_BYTES))
    }
}

struct LogLinesWriter(Arc<LogLines>);

impl Write for LogLinesWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_log_lines_are_kept_for_the_table() {
        let lines = LogLines::default();
        for n in 0..KEPT + 5 {
            lines.push(&format!("line {n}\n"));
        }
        assert_eq!(lines.last(2), ["line 203", "line 204"]);
        assert_eq!(lines.last(KEPT * 2).len(), KEPT);
    }

    #[test]
    fn a_text_log_line_names_the_pod_of_its_span_once() {
        let lines = Arc::new(LogLines::default());
        let writer = lines.clone();
        let logs = tracing_subscriber::fmt()
            .with_writer(move || LogLinesWriter(writer.clone()))
            .with_ansi(false)
            .fmt_fields(debug_fn(write_field))
            .event_format(TextLine)
            .finish();
        tracing::subscriber::with_default(logs, || {
            let phase = tracing::field::Empty;
            let span = tracing::info_span!("pod_worker", pod.uid = "u", pod.namespace = "a", pod.name = "b", phase);
            span.record("phase", "sync");
            span.in_scope(|| tracing::info!(lifecycle = "terminated", "transition"));
            tracing::warn!(pod = %"a/c", "reported");
            tracing::warn!(error = %"x\x1b[2J", "answer {}", "a\nb");
        });
        let lines = lines.last(3);
        assert!(lines[0].ends_with("  INFO transition lifecycle=\"terminated\" pod=a/b"), "{lines:?}");
        assert!(lines[1].ends_with("  WARN reported pod=a/c"), "{lines:?}");
        assert!(lines[2].ends_with("  WARN answer a\\nb error=x\\u{1b}[2J"), "{lines:?}");
    }
}
