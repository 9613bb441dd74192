//! The stream of one watch.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::{self, Stream};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ServerState;
use crate::raw;
use crate::store::{Line, WatchStart};
use crate::table::Form;

/// How often a watch with a lag checks for events that are due.
const LAG_STEP: Duration = Duration::from_millis(5);

struct Watch {
    shared: Arc<ServerState>,
    start: WatchStart,
    form: Form,
    /// Cuts the connection of this watch.
    cut: CancellationToken,
    /// Cancelled when all watches are dropped.
    dropped: CancellationToken,
    deadline: Option<Instant>,
    next_bookmark: Instant,
    sends_initial: bool,
    /// Whether the end of the streaming list is held.
    owes_list_end: bool,
    has_ended: bool,
}

/// The lines of a watch, each chunk with all events that are due.
pub(super) fn stream(
    shared: Arc<ServerState>,
    start: WatchStart,
    form: Form,
    cut: CancellationToken,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let now = Instant::now();
    let dropped = shared.watches.lock().clone();
    let watch = Watch {
        dropped,
        deadline: start.timeout_seconds.map(|seconds| now + Duration::from_secs(seconds)),
        next_bookmark: now + shared.bookmark_period,
        sends_initial: true,
        owes_list_end: false,
        has_ended: false,
        shared,
        start,
        form,
        cut,
    };
    stream::unfold(watch, |mut watch| async move {
        let lines = watch.next_lines().await?;
        Some((Ok(Bytes::from(watch.text(lines))), watch))
    })
}

impl Watch {
    /// The lines in the form that the client requested.
    fn text(&self, lines: Vec<Line>) -> String {
        let now = (self.shared.clock)();
        let object = |line: Line| self.form.render(self.start.resource, line.object, now);
        let line = |line: Line| raw::text(&json!({"type": line.event, "object": object(line)})) + "\n";
        lines.into_iter().map(line).collect()
    }

    /// The next lines; none once the watch has ended.
    async fn next_lines(&mut self) -> Option<Vec<Line>> {
        if self.has_ended {
            return None;
        }
        if std::mem::take(&mut self.sends_initial) {
            let mut lines = std::mem::take(&mut self.start.initial);
            if self.shared.faults.holds_list_end(self.start.resource.plural) {
                self.owes_list_end = lines.pop_if(|line| line.event == "BOOKMARK").is_some();
            }
            if !lines.is_empty() {
                return Some(lines);
            }
        }
        let shared = self.shared.clone();
        loop {
            // Changes from here on end the wait below.
            let changed = shared.changes.notified();
            let lag = self.shared.faults.lag(self.start.resource.plural);
            let found = {
                let now = (self.shared.clock)();
                let lag = jiff::SignedDuration::try_from(lag).unwrap_or(jiff::SignedDuration::MAX);
                self.shared.store.lock().events(&self.start, lag, now)
            };
            match found {
                Err(refusal) => {
                    self.has_ended = true;
                    return Some(vec![Line { event: "ERROR", object: refusal.body() }]);
                }
                Ok((lines, cursor)) => {
                    self.start.cursor = cursor;
                    if !lines.is_empty() {
                        return Some(lines);
                    }
                }
            }
            if self.owes_list_end && !self.shared.faults.holds_list_end(self.start.resource.plural) {
                self.owes_list_end = false;
                return Some(vec![self.start.bookmark(true)]);
            }
            let far = Instant::now() + Duration::from_secs(86_400);
            let deadline = self.deadline.unwrap_or(far);
            let bookmark = if self.start.bookmarks { self.next_bookmark } else { far };
            tokio::select! {
                // A fixed order lets a simulation repeat its run.
                biased;
                () = self.dropped.cancelled() => {
                    self.cut.cancel();
                    std::future::pending::<()>().await;
                }
                () = changed => {}
                () = tokio::time::sleep_until(deadline) => {
                    self.has_ended = true;
                    return self.start.bookmarks.then(|| vec![self.start.bookmark(false)]);
                }
                () = tokio::time::sleep_until(bookmark) => {
                    self.next_bookmark = Instant::now() + self.shared.bookmark_period;
                    return Some(vec![self.start.bookmark(false)]);
                }
                () = tokio::time::sleep(LAG_STEP), if !lag.is_zero() => {}
            }
        }
    }
}
