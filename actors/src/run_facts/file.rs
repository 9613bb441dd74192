//! The file of facts: the facts of a run in one line, and the writer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::state::{RunFact, StartFact, State, StopFact};
use super::step::Changed;
use super::{Kept, RunFacts};
use crate::ids::{ContainerId, PodUid};
use crate::journal::{Journaled, NotStored, WRITE_TIMEOUT, Write};
use crate::ports::CheckpointError;
use crate::text::error_chain;
use crate::time::Time;

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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    for_resize: Option<StopLine>,
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

impl StopLine {
    fn of(StopFact { killed_at, limit }: StopFact) -> Self {
        StopLine { killed_at: killed_at.as_nanos(), limit: u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX) }
    }

    fn fact(&self) -> StopFact {
        StopFact { killed_at: Time::from_nanos(self.killed_at), limit: Duration::from_nanos(self.limit) }
    }
}

impl Line {
    fn of(pod: &PodUid, run: &ContainerId, fact: &RunFact) -> Self {
        let RunFact { start, stop, for_resize, started, ready, inherited: _, abandoned: _ } = *fact;
        let (starting, hook_failed) = (start.is_some(), start == Some(StartFact::HookFailed));
        let (stop, for_resize) = (stop.map(StopLine::of), for_resize.map(StopLine::of));
        Line { run: run.to_string(), pod: pod.to_string(), starting, hook_failed, stop, for_resize, started, ready }
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
        let Line { run, pod, starting, hook_failed, stop, for_resize, started, ready } =
            match serde_json::from_str(record) {
                Ok(line) => line,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
        let (stop, for_resize) = (stop.as_ref().map(StopLine::fact), for_resize.as_ref().map(StopLine::fact));
        let start = starting.then_some(if hook_failed { StartFact::HookFailed } else { StartFact::Requested });
        let fact = RunFact { start, stop, for_resize, started, ready, inherited: true, abandoned: None };
        state.load(PodUid::new(&pod), run.into(), fact);
    }
    (state, errors)
}

impl Kept {
    /// Queues the changed facts to be written.
    pub(super) fn queue(&mut self, changed: &Changed) {
        // Most reads of a pod change nothing, and the limit of the queue needs the number of all facts.
        if changed.is_empty() {
            return;
        }
        let runs = self.facts.len();
        for (pod, run) in changed {
            let none = RunFact::default();
            let line = Line::of(pod, run, self.facts.fact(pod, run).unwrap_or(&none));
            self.lines.push(line.to_record(), runs);
        }
    }

    /// Takes the next write. The store assumes that it succeeds.
    pub(super) fn take(&mut self) -> Write {
        let all = || {
            let facts = self.facts.pods.iter().flat_map(|(pod, runs)| runs.iter().map(move |run| (pod, run)));
            facts.filter_map(|(pod, (run, fact))| Line::of(pod, run, fact).to_record()).collect()
        };
        self.lines.take(self.facts.len(), all)
    }
}

impl RunFacts {
    /// Waits until the file has a version of the facts. Returns earlier if the file cannot be written, or if the disk takes too long. Nobody
    /// waits for such a disk again before it has answered. Returns whether the file has the version. Cancel safe.
    pub(super) async fn until_written(&self, version: u64) -> bool {
        let written = self.journal.written(version).await;
        if written == Err(NotStored::TooLate) {
            let seconds = WRITE_TIMEOUT.as_secs();
            tracing::error!(
                seconds,
                "the facts of containers were not written in time: check the disk; until it answers, containers start without them, and \
                 the next agent may know less of them; no container is stopped for a resize"
            );
        }
        written.is_ok()
    }

    /// Writes each change. Returns once `stop` is cancelled, or once another node has opened the file. No write begins after that.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        self.journal.run(self, stop).await;
    }
}

impl Journaled for RunFacts {
    const RECORDS: &'static str = "the facts of containers";
    const STORE: &'static str = "the store of the facts of containers";

    fn next_write(&self, stored: u64) -> Option<(u64, Write)> {
        let mut kept = self.kept.lock();
        let version = kept.lines.version();
        (version > stored).then(|| (version, kept.take()))
    }

    fn forget_file(&self) {
        self.kept.lock().lines.forget_file();
    }

    fn log_failure(&self, error: &CheckpointError) {
        tracing::error!(
            error = %error_chain(error),
            "cannot write the facts of containers, so the next agent starts without them: free or repair the disk; until \
             then an agent that restarts may take a start that it interrupted for a failed one, skip its post-start \
             hook, give containers that stop their whole grace periods again, and show ready pods as not ready; no \
             container is stopped for a resize"
        );
    }

    fn log_superseded(&self, path: &Path) {
        tracing::error!(
            path = %path.display(),
            "another node of this process has opened the file of the facts of containers, so this node writes no more of \
             them: stop one of the nodes, or give each node its own file"
        );
    }
}
