//! The live table: redrawn when a pod or a log line changes.

mod frame;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::logging::LogLines;
use super::table;
use super::view::NodeView;
use frame::{ScreenContent, TerminalSize, compose};

/// The shortest time between two redraws.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest time between two redraws, so that ages advance.
const TICK: Duration = Duration::from_secs(1);

/// Escape sequences for the alternate screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The terminal in its alternate screen, until [`Terminal::leave`] or until this value is dropped.
#[derive(Debug)]
pub(crate) struct Terminal {
    entered: AtomicBool,
}

impl Terminal {
    /// Switches to the alternate screen if standard output is a terminal that can draw.
    pub(crate) fn enter() -> Option<Self> {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        if dumb || !io::stdout().is_terminal() {
            return None;
        }
        write(ENTER);
        Some(Terminal { entered: AtomicBool::new(true) })
    }

    /// Restores the terminal. Idempotent.
    pub(crate) fn leave(&self) {
        if self.entered.swap(false, Ordering::AcqRel) {
            write(LEAVE);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The live table.
pub(crate) struct Screen {
    pub(crate) terminal: Arc<Terminal>,
    pub(crate) view: NodeView,
    pub(crate) lines: Arc<LogLines>,
    /// The first line on the screen.
    pub(crate) title: String,
    /// The link to the page, once there is one.
    pub(crate) link: Option<watch::Receiver<Option<String>>>,
}

impl Screen {
    /// Draws until `stop` is cancelled.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut changes = self.view.node.status_changes();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // If the signal cannot be handled, a new size takes effect at the next tick.
        let mut resized = signal(SignalKind::window_change()).ok();
        let mut drawn = String::new();
        let screen = Arc::new(self);
        loop {
            let inspected = screen.clone();
            // The inspection runs on a blocking thread, because it visits every pod and this thread also starts pods.
            let Ok(frame) = tokio::task::spawn_blocking(move || inspected.frame()).await else { return };
            if frame != drawn {
                drawn.clone_from(&frame);
                let terminal = screen.terminal.clone();
                // Writing to a stopped terminal (Ctrl-S) blocks. It then blocks only the drawing.
                let _ = tokio::task::spawn_blocking(move || {
                    if terminal.entered.load(Ordering::Acquire) {
                        write(&frame);
                    }
                })
                .await;
            }
            let pause = tokio::time::sleep(PAUSE);
            if stop.run_until_cancelled(pause).await.is_none() {
                return;
            }
            tokio::select! {
                () = stop.cancelled() => return,
                _ = changes.changed() => {}
                () = screen.lines.changed() => {}
                _ = tick.tick() => {}
                Some(()) = async { resized.as_mut()?.recv().await } => drawn.clear(),
            }
        }
    }

    /// The current table, to be printed after the live table is closed.
    pub(crate) fn final_table(view: &NodeView) -> String {
        let inspection = view.inspect();
        let rows: Vec<_> = inspection.pods().iter().map(|pod| table::row(pod, &inspection)).collect();
        table::lines(&table::COLUMNS, &rows).join("\n")
    }

    fn frame(&self) -> String {
        let size = size();
        let inspection = self.view.inspect();
        let pods = inspection.pods();
        // Rows that do not fit are not computed.
        let rows = pods.iter().take(usize::from(size.rows)).map(|pod| table::row(pod, &inspection)).collect();
        let content = ScreenContent {
            title: self.title_with_pressures(),
            link: self.link.as_ref().and_then(|link| link.borrow().clone()),
            rows,
            pods: pods.len(),
            problems: self.view.problems().iter().map(ToString::to_string).collect(),
            logs: self.lines.last(usize::from(size.rows)),
        };
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        draw(&compose(&content, size, !plain))
    }

    /// The first line, with the conditions of the node if it lacks a resource.
    fn title_with_pressures(&self) -> String {
        let pressures = self.view.node.pressures();
        pressures.iter().fold(self.title.clone(), |title, pressure| format!("{title}, {}", pressure.condition.as_str()))
    }
}

/// Text that overwrites the screen line by line in one write, so that it does not flicker.
fn draw(lines: &[String]) -> String {
    let mut out = String::from("\x1b[?2026h\x1b[H");
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push_str("\r\n");
        }
        out.push_str(line);
        out.push_str("\x1b[K");
    }
    out.push_str("\x1b[J\x1b[?2026l");
    out
}

fn size() -> TerminalSize {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => TerminalSize { columns: size.ws_col, rows: size.ws_row },
        _ => TerminalSize { columns: 80, rows: 24 },
    }
}

fn write(text: &str) {
    let mut out = io::stdout().lock();
    // If the terminal has closed, nobody can see the error either.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
