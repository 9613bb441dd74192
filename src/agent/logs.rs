//! Where log lines go: to standard output, or below the live table.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use super::cli::LogFormat;

/// How many lines are kept for the table.
const KEPT: usize = 200;
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
        LogFormat::Text => logs.fmt_fields(debug_fn(write_field)).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}

/// One field of a line for people. What they do not read is left to the other format: UIDs, and the phase of a span, which
/// is noted there once for each move.
fn write_field(to: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(to, "{value:?}"),
        "pod.uid" | "phase" => Ok(()),
        name => write!(to, " {name}={value:?}"),
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
}
