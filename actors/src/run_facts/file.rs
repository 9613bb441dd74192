//! The file of facts: the facts of a run in one line, and the writer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::state::{RunFact, StartFact, State, StopFact};
use super::step::Changed;
use super::{Kept, RunFacts};
use crate::ids::{ContainerId, PodUid};
use crate::ports::CheckpointError;
use crate::text::error_chain;
use crate::time::Time;

/// How long a start waits for the disk. Until the disk has answered, later starts do not wait for it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between a failed write and the next one.
const RETRY: Duration = Duration::from_secs(5);
/// How many outdated lines the file may have, besides one for each run.
const OUTDATED_LINES: usize = 256;

/// A line of the file: the facts of one run. A line without a fact forgets the run.
#[derive(Serialize, Deserialize)]
struct Line {
    run: String,
    pod: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    starting: bool,
    /// The post-start hook of the run that starts has failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    hook_failed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stop: Option<StopLine>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    started: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ready: Option<bool>,
}

/// The stop of a run, in nanoseconds.
#[derive(Serialize, Deserialize)]
struct StopLine {
    /// Since the Unix epoch.
    killed_at: u64,
    limit: u64,
}

impl Line {
    fn of(pod: &PodUid, run: &ContainerId, fact: &RunFact) -> Self {
        let RunFact { start, stop, started, ready, inherited: _, abandoned: _ } = *fact;
        let (starting, hook_failed) = (start.is_some(), start == Some(StartFact::HookFailed));
        let stop = stop.map(|StopFact { killed_at, limit }| StopLine {
            killed_at: killed_at.as_nanos(),
            limit: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX),
        });
        Line { run: run.to_string(), pod: pod.to_string(), starting, hook_failed, stop, started, ready }
    }

    fn to_record(&self) -> Option<Arc<str>> {
        match serde_json::to_string(self) {
            Ok(text) => Some(text.into()),
            Err(error) => {
                tracing::error!(container.id = self.run, %error, "cannot encode the facts of a container");
                None
            }
        }
    }
}

/// The facts that the lines of a file say, and the errors of the lines that cannot be parsed.
pub(super) fn parse(records: &[String]) -> (State, Vec<serde_json::Error>) {
    let (mut state, mut errors) = (State::default(), Vec::new());
    for record in records {
        let Line { run, pod, starting, hook_failed, stop, started, ready } = match serde_json::from_str(record) {
            Ok(line) => line,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let stop = stop.map(|StopLine { killed_at, limit }| StopFact {
            killed_at: Time::from_nanos(killed_at),
            limit: Duration::from_nanos(limit),
        });
        let start = starting.then_some(if hook_failed { StartFact::HookFailed } else { StartFact::Requested });
        let fact = RunFact { start, stop, started, ready, inherited: true, abandoned: None };
        state.load(PodUid::new(&pod), run.into(), fact);
    }
    (state, errors)
}

/// The changes that are not in the file.
#[derive(Default)]
pub(super) enum Unwritten {
    /// The content of the file is not known, so all facts have to be saved.
    #[default]
    All,
    /// These lines have to be appended.
    Lines(Vec<Arc<str>>),
}

/// The next write.
pub(super) enum Write {
    Append(Vec<Arc<str>>),
    Save(Vec<Arc<str>>),
}

impl Kept {
    /// The largest number of lines in the file before all facts are saved again.
    fn limit(&self) -> usize {
        2 * self.facts.len() + OUTDATED_LINES
    }

    /// Queues the changed facts to be written.
    pub(super) fn queue(&mut self, changed: &Changed) {
        // Most reads of a pod change nothing, and the limit needs the number of all facts.
        if changed.is_empty() {
            return;
        }
        let limit = self.limit();
        for (pod, run) in changed {
            self.version += 1;
            let none = RunFact::default();
            let line = Line::of(pod, run, self.facts.fact(pod, run).unwrap_or(&none));
            match (&mut self.unwritten, line.to_record()) {
                (Unwritten::Lines(lines), Some(record)) if lines.len() < limit => lines.push(record),
                // If the disk cannot be written for hours, the queue must not fill the memory.
                (unwritten, _) => *unwritten = Unwritten::All,
            }
        }
    }

    /// Takes the next write. The store assumes that it succeeds.
    pub(super) fn take(&mut self) -> Write {
        match std::mem::replace(&mut self.unwritten, Unwritten::Lines(Vec::new())) {
            Unwritten::Lines(lines) if self.lines + lines.len() <= self.limit() => {
                self.lines += lines.len();
                Write::Append(lines)
            }
            Unwritten::Lines(_) | Unwritten::All => {
                let facts = self.facts.pods.iter().flat_map(|(pod, runs)| runs.iter().map(move |run| (pod, run)));
                let records: Vec<_> =
                    facts.filter_map(|(pod, (run, fact))| Line::of(pod, run, fact).to_record()).collect();
                self.lines = records.len();
                Write::Save(records)
            }
        }
    }
}

impl RunFacts {
    /// Waits until the file has a version of the facts. Returns earlier if the file cannot be written, or if the disk takes too long. Nobody
    /// waits for such a disk again before it has answered. Cancel safe.
    pub(super) async fn until_written(&self, version: u64) {
        let written = async {
            loop {
                let write_ended = self.write_ended.notified();
                if self.written.load(Ordering::Acquire) >= version || self.is_broken.load(Ordering::Acquire) {
                    return;
                }
                write_ended.await;
            }
        };
        if timeout(WRITE_TIMEOUT, written).await.is_err() && !self.breaks() {
            let seconds = WRITE_TIMEOUT.as_secs();
            tracing::error!(
                seconds,
                "the facts of containers were not written in time: check the disk; until it answers, containers start without them, and \
                 the next agent may know less of them"
            );
        }
    }

    /// Writes each change. Returns once `stop` is cancelled, or once another node has opened the file. No write begins after that.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        stop.run_until_cancelled(self.write_changes(stop)).await;
    }

    async fn write_changes(&self, stop: &CancellationToken) {
        // `run_until_cancelled` polls this future once more after the cancellation.
        while !stop.is_cancelled() {
            let Some((version, write)) = self.take() else {
                self.changed.notified().await;
                continue;
            };
            let appended = matches!(write, Write::Append(_));
            match self.write(write).await {
                Ok(()) => {
                    self.written.store(version, Ordering::Release);
                    if self.is_broken.swap(false, Ordering::AcqRel) {
                        tracing::info!("the facts of containers are written again");
                    }
                    self.write_ended.notify_waiters();
                }
                Err(CheckpointError::Superseded { path }) => {
                    if !stop.is_cancelled() {
                        tracing::error!(
                            path = %path.display(),
                            "another node of this process has opened the file of the facts of containers, so this node writes no more of \
                             them: stop one of the nodes, or give each node its own file"
                        );
                    }
                    self.breaks();
                    return;
                }
                Err(error) => {
                    // Part of the write may be in the file.
                    self.kept.lock().unwritten = Unwritten::All;
                    if appended {
                        tracing::debug!(error = %error_chain(&error), "cannot append to the facts of containers, saving all of them");
                        continue;
                    }
                    if !self.breaks() {
                        tracing::error!(
                            error = %error_chain(&error),
                            "cannot write the facts of containers, so the next agent starts without them: free or repair the disk; until \
                             then an agent that restarts may take a start that it interrupted for a failed one, skip its post-start \
                             hook, give containers that stop their whole grace periods again, and show ready pods as not ready"
                        );
                    }
                    sleep(RETRY).await;
                }
            }
        }
    }

    /// Lets nobody wait for the file. Returns whether that was so before.
    fn breaks(&self) -> bool {
        let was_broken = self.is_broken.swap(true, Ordering::AcqRel);
        self.write_ended.notify_waiters();
        was_broken
    }

    /// Performs one write. A panic of the store is an error.
    async fn write(&self, write: Write) -> Result<(), CheckpointError> {
        let done = async {
            match write {
                Write::Append(records) => self.writer.append(records).await,
                Write::Save(records) => self.writer.save(records).await,
            }
        };
        AssertUnwindSafe(done)
            .catch_unwind()
            .await
            .unwrap_or_else(|_| Err(CheckpointError::new("the store of the facts of containers", "it panicked")))
    }

    /// The write of the changes since the last one, and the version that it leads to.
    fn take(&self) -> Option<(u64, Write)> {
        let mut kept = self.kept.lock();
        (kept.version > self.written.load(Ordering::Acquire)).then(|| (kept.version, kept.take()))
    }
}
