//! Where log lines go: to standard output, or below the live table.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use crate::actors::text::plain;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::field::Field;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer, debug_fn};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormattedFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use super::cli::LogFormat;

/// How many lines are kept for the table.
const KEPT: usize = 200;
/// The most bytes of a line for people.
const LONGEST: usize = 16 << 10;
/// What is logged unless `RUST_LOG` says otherwise.
const FILTER: &str = "info";

/// The last log lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    kept: Mutex<VecDeque<String>>,
    changed: Notify,
}

impl Lines {
    /// The last `n` lines, oldest first.
    pub(crate) fn last(&self, n: usize) -> Vec<String> {
        let kept = self.kept.lock();
        kept.iter().skip(kept.len().saturating_sub(n)).cloned().collect()
    }

    /// Resolves when there are new lines. For one waiter.
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

/// Logs to standard output.
pub(crate) fn to_stdout(format: LogFormat) {
    init(format, io::stdout);
}

/// Logs into `lines`.
pub(crate) fn to_lines(format: LogFormat, lines: Arc<Lines>) {
    init(format, move || LineWriter(lines.clone()));
}

fn init<W>(format: LogFormat, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(FILTER));
    // A reader of the lines that has gone is no reason to write about it elsewhere.
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_target(false)
        .with_ansi(false)
        .log_internal_errors(false);
    match format {
        LogFormat::Text => logs.fmt_fields(debug_fn(write_field)).event_format(Line).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}

/// One field of a line for people. UIDs, and the phase that a span notes with each move, are left to the other format; the
/// name of a span's pod comes in two fields, one after the other.
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

/// A line for people: when, how bad, what, and at the end which pod it was about. What containers and runtimes said in it
/// neither ends the line nor moves a cursor.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
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
                // A space follows each recording.
                write!(words, "{}", fields.trim_end())?;
            }
        }
        SystemTime.format_time(&mut to)?;
        writeln!(to, " {:>5} {}", event.metadata().level(), plain(&line, LONGEST))
    }
}

struct LineWriter(Arc<Lines>);

impl Write for LineWriter {
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
    fn only_the_last_lines_are_kept() {
        let lines = Lines::default();
        for n in 0..KEPT + 5 {
            lines.push(&format!("line {n}\n"));
        }
        assert_eq!(lines.last(2), ["line 203", "line 204"]);
        assert_eq!(lines.last(KEPT * 2).len(), KEPT);
    }

    #[test]
    fn a_line_for_people_names_the_pod_of_its_span_once() {
        let lines = Arc::new(Lines::default());
        let writer = lines.clone();
        let logs = tracing_subscriber::fmt()
            .with_writer(move || LineWriter(writer.clone()))
            .with_ansi(false)
            .fmt_fields(debug_fn(write_field))
            .event_format(Line)
            .finish();
        tracing::subscriber::with_default(logs, || {
            let phase = tracing::field::Empty;
            let span = tracing::info_span!("pod_worker", pod.uid = "u", pod.namespace = "a", pod.name = "b", phase);
            span.record("phase", "sync");
            span.in_scope(|| tracing::info!(lifecycle = "terminated", "moved"));
            tracing::warn!(pod = %"a/c", "told");
            tracing::warn!(error = %"x\x1b[2J", "it said {}", "a\nb");
        });
        let lines = lines.last(3);
        assert!(lines[0].ends_with("  INFO moved lifecycle=\"terminated\" pod=a/b"), "{lines:?}");
        assert!(lines[1].ends_with("  WARN told pod=a/c"), "{lines:?}");
        assert!(lines[2].ends_with("  WARN it said a\\nb error=x\\u{1b}[2J"), "{lines:?}");
    }
}
