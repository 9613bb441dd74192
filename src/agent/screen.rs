//! The live table: what runs, drawn anew when something changed.

mod frame;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::logs::Lines;
use super::table;
use super::view::View;
use frame::{Content, Size, compose};

/// The shortest time between two drawings.
const PAUSE: Duration = Duration::from_millis(100);
/// How often ages are drawn anew.
const TICK: Duration = Duration::from_secs(1);

/// The alternate screen, without a cursor.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The terminal, taken over until [`Terminal::leave`] or the end.
#[derive(Debug)]
pub(crate) struct Terminal {
    taken: AtomicBool,
}

impl Terminal {
    /// Takes it over, if standard output is one that can be drawn on.
    pub(crate) fn enter() -> Option<Self> {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
        if dumb || !io::stdout().is_terminal() {
            return None;
        }
        write(ENTER);
        Some(Terminal { taken: AtomicBool::new(true) })
    }

    /// Gives it back as it was. Idempotent.
    pub(crate) fn leave(&self) {
        if self.taken.swap(false, Ordering::AcqRel) {
            write(LEAVE);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What is drawn.
pub(crate) struct Screen {
    pub(crate) terminal: Arc<Terminal>,
    pub(crate) view: View,
    pub(crate) lines: Arc<Lines>,
    /// The first line.
    pub(crate) title: String,
}

impl Screen {
    /// Draws until told to stop.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut changes = self.view.node.statuses.subscribe();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Without it a new size is seen at the next tick.
        let mut resized = signal(SignalKind::window_change()).ok();
        let mut drawn = String::new();
        let screen = Arc::new(self);
        loop {
            let looks = screen.clone();
            // Looks at all pods, and pods are started on this thread.
            let Ok(frame) = tokio::task::spawn_blocking(move || looks.frame()).await else { return };
            if frame != drawn {
                drawn.clone_from(&frame);
                let terminal = screen.terminal.clone();
                // A terminal may take its time (Ctrl-S); only the drawing waits for it.
                let _ = tokio::task::spawn_blocking(move || {
                    if terminal.taken.load(Ordering::Acquire) {
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

    /// The table as it is now, for the record after the end.
    pub(crate) fn last_words(view: &View) -> String {
        let look = view.look();
        let rows: Vec<_> = look.pods().iter().map(|pod| table::row(pod, &look)).collect();
        table::lines(&table::COLUMNS, &rows).join("\n")
    }

    fn frame(&self) -> String {
        let size = size();
        let look = self.view.look();
        let pods = look.pods();
        // What does not fit need not be worked out.
        let rows = pods.iter().take(usize::from(size.rows)).map(|pod| table::row(pod, &look)).collect();
        let content = Content {
            title: self.title.clone(),
            rows,
            pods: pods.len(),
            problems: self.view.problems().iter().map(ToString::to_string).collect(),
            logs: self.lines.last(usize::from(size.rows)),
        };
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        draw(&compose(&content, size, !plain))
    }
}

/// One write that replaces what is there line by line, so that nothing flickers.
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

fn size() -> Size {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Size { columns: size.ws_col, rows: size.ws_row },
        _ => Size { columns: 80, rows: 24 },
    }
}

fn write(text: &str) {
    let mut out = io::stdout().lock();
    // A terminal that has gone cannot be told anything.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
