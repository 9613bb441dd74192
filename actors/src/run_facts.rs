//! The facts of container runs that the next agent has to know, and their file.
//!
//! ```text
//!  container manager: a start begins, ends --+
//!                     a stop begins, ends ---+
//!                     a resize stops runs ---+
//!  hooks: the pod is expected to run --------+--> step --> one writer: CheckpointWriter::append, sometimes CheckpointWriter::save
//!         the pod was read ------------------+
//!  probes: a new result ---------------------+
//!  housekeeping: retain ---------------------+
//! ```
//!
//! The runtime knows which containers run. It does not know what the agent was doing with them. A fact is kept for as long as that
//! matters: until the start has ended, until the next run of the container has started, or until the runtime no longer has the run.
//!
//! | fact | written | the next agent |
//! |---|---|---|
//! | starting | before the start is requested | removes a run that never started, before its container starts again with the same number; runs the post-start hook of a run that started, or stops the run if its hook has failed |
//! | stop | when a stop begins | gives the container the rest of its grace period |
//! | stopped for a resize | before the stop, which otherwise does not begin | starts the container again, whatever the exit code of the run says of its work, if the run ends before the stop is over |
//! | started, ready | when a startup or readiness probe has a new result | shows the result until the probe answers again |
//!
//! A change appends the whole fact of a run as one line, and the last line of a run counts. Once the file has more than twice as many
//! lines as runs, plus `OUTDATED_LINES`, all facts are saved again (see `actors/src/journal.rs`).
//!
//! A file that cannot be written does not keep containers from starting, nor from being stopped, except for a resize: that has no hurry.
//! The failure is logged, and the writer tries again. Until it succeeds, the store has no facts, because outdated ones are worse than none.
//! A disk that hangs delays the starts that wait for it by 10 seconds, and no later ones.

mod file;
mod state;
mod step;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::containers::definition::Definition;
use crate::containers::restart::STOPPED_FOR_RESIZE;
use crate::ids::{ContainerId, PodUid};
use crate::journal::{Journal, Lines, Patience};
use crate::pod::PodObject;
use crate::ports::{
    Checkpoint, CheckpointError, ContainerState, ContainerStatus, OpenCheckpoint, PodRuntimeStatus, RuntimePod,
};
use crate::probes::{ProbeKind, ProbeSnapshot};
use crate::time::{Grace, Time};

use state::{RunFact, State, StopFact};
use step::{Event, step};

pub(crate) use state::StartFact;

/// The facts of all runs. Every method except `starts`, `stops_for_resize`, `written` and `run` returns at once.
pub(crate) struct RunFacts {
    kept: Mutex<Kept>,
    journal: Journal,
}

#[derive(Default)]
struct Kept {
    facts: State,
    lines: Lines,
}

impl RunFacts {
    /// Reads the facts that an earlier agent wrote. Blocks. Earlier stores of the same file are superseded.
    ///
    /// # Errors
    /// [`CheckpointError`] if the file exists and cannot be read.
    pub(crate) fn open(checkpoint: &dyn Checkpoint) -> Result<Self, CheckpointError> {
        let OpenCheckpoint { records, writer } = checkpoint.open()?;
        let (facts, errors) = file::parse(&records);
        if let Some(error) = errors.first() {
            let lines = errors.len();
            tracing::error!(
                lines,
                %error,
                "cannot read some lines of the facts of containers: the agent does not know what the last agent was doing with these \
                 containers"
            );
        }
        let kept = Kept { facts, ..Kept::default() };
        Ok(RunFacts { kept: Mutex::new(kept), journal: Journal::new(writer, Patience::WhileWritable) })
    }

    /// A store for tests, without a file.
    #[cfg(test)]
    pub(crate) fn in_memory() -> Self {
        let facts = RunFacts::open(&crate::ports::NoCheckpoint).expect("a checkpoint that keeps nothing opens");
        RunFacts { journal: facts.journal.without_waits(), ..facts }
    }

    /// What the next agent reads, for tests. May be called once.
    #[cfg(test)]
    pub(crate) fn of_next_agent(&self) -> Self {
        let crate::journal::Write::Save(records) = self.kept.lock().take() else {
            panic!("the first write saves all facts")
        };
        let records: Vec<String> = records.iter().map(|record| record.to_string()).collect();
        let mut next = RunFacts::in_memory();
        next.kept.get_mut().facts = file::parse(&records).0;
        next
    }

    /// Records that the start of a run is about to be requested, and waits until the file has it. Cancel safe.
    pub(crate) async fn starts(&self, pod: &PodUid, run: &ContainerId) {
        let version = self.change(Event::Starts { pod, run });
        self.until_written(version).await;
    }

    /// Records that the post-start hook of a run has failed, so that the run has to be stopped.
    pub(crate) fn hook_failed(&self, pod: &PodUid, run: &ContainerId) {
        self.change(Event::HookFailed { pod, run });
    }

    /// Records that the start of a run has ended with its post-start hook, or that the runtime has refused it.
    pub(crate) fn start_ended(&self, pod: &PodUid, run: &ContainerId) {
        self.change(Event::StartEnded { pod, run });
    }

    /// Waits until the file has all changes so far. Cancel safe.
    pub(crate) async fn written(&self) {
        let version = self.kept.lock().lines.version();
        self.until_written(version).await;
    }

    /// How far the start of a run has come; `None` if it was not requested, or has ended.
    pub(crate) fn start_of(&self, pod: &PodUid, run: &ContainerId) -> Option<StartFact> {
        self.kept.lock().facts.start_of(pod, run)
    }

    /// The status for everyone who only observes the pod. In it, no container runs before its post-start hook has ended.
    pub(crate) fn observable<'a>(&self, pod: &PodObject, status: &'a PodRuntimeStatus) -> Cow<'a, PodRuntimeStatus> {
        let has_hook = |name: &str| {
            let lifecycle = Definition::find(pod, name).and_then(Definition::lifecycle);
            lifecycle.is_some_and(|lifecycle| lifecycle.post_start.is_some())
        };
        let kept = self.kept.lock();
        let is_starting = |run: &ContainerStatus| {
            run.state == ContainerState::Running
                && kept.facts.start_of(pod.uid(), &run.id).is_some()
                && has_hook(run.name.as_str())
        };
        if !status.containers.iter().any(is_starting) {
            return Cow::Borrowed(status);
        }
        let mut status = status.clone();
        for run in status.containers.iter_mut().filter(|run| is_starting(run)) {
            (run.state, run.started_at) = (ContainerState::Created, None);
        }
        Cow::Owned(status)
    }

    /// Records when a run that stops is killed, and how long the stop may take at most.
    pub(crate) fn stops(&self, pod: &PodUid, run: &ContainerId, killed_at: Time, limit: Duration) {
        self.change(Event::Stops { pod, run, stop: StopFact { killed_at, limit } });
    }

    /// Records that runs of a pod are about to be stopped to start their containers again with other resources, each with how long its
    /// stop may take at most from `now` on. Waits until the file has it. Returns whether the file has it: otherwise the record is undone,
    /// and the runs must not be stopped.
    ///
    /// Cancel safe: a call that is dropped while it waits undoes the record too, because its caller stops no run. The next agent may find the
    /// record if this one dies before the file has the undo; then the record counts until the limit of its stop.
    pub(crate) async fn stops_for_resize(&self, pod: &PodUid, now: Time, runs: &[(&ContainerId, Duration)]) -> bool {
        let stop_of = |run: &ContainerId| self.kept.lock().facts.fact(pod, run).and_then(|fact| fact.for_resize);
        let before = runs.iter().map(|&(run, _)| (run, stop_of(run))).collect();
        let unwritten = UnwrittenStops { facts: self, pod, before };
        for &(run, limit) in runs {
            let stop = StopFact { killed_at: now + limit, limit };
            self.change(Event::StopsForResize { pod, run, stop: Some(stop) });
        }
        let version = self.kept.lock().lines.version();
        let is_written = self.until_written(version).await;
        if is_written {
            unwritten.keep();
        }
        is_written
    }

    /// Records that the stop of a run has succeeded or failed.
    pub(crate) fn stop_ended(&self, pod: &PodUid, run: &ContainerId) {
        self.change(Event::StopEnded { pod, run });
    }

    /// Records that the pod is expected to run.
    pub(crate) fn runs(&self, pod: &PodUid) {
        self.change(Event::Runs { pod });
    }

    /// Records the new result of a probe.
    pub(crate) fn probed(&self, pod: &PodUid, run: &ContainerId, kind: ProbeKind, passed: bool) {
        self.change(Event::Probed { pod, run, kind, passed });
    }

    /// Whether the startup probe of a run has passed.
    pub(crate) fn has_started(&self, pod: &PodUid, run: &ContainerId) -> bool {
        self.kept.lock().facts.fact(pod, run).is_some_and(|fact| fact.started)
    }

    /// Whether an earlier agent had results of the probes of a run.
    pub(crate) fn has_inherited_results(&self, pod: &PodUid, run: &ContainerId) -> bool {
        let has_results = |fact: &RunFact| fact.inherited && (fact.started || fact.ready.is_some());
        self.kept.lock().facts.fact(pod, run).is_some_and(has_results)
    }

    /// Adds the results that the probes of the running containers had under an earlier agent, where there is no later result.
    pub(crate) fn complete(&self, pod: &PodUid, status: &PodRuntimeStatus, probes: &mut ProbeSnapshot) {
        self.kept.lock().facts.complete(pod, status, probes);
    }

    /// How long a run that stops may still take. `None` if it does not stop.
    pub(crate) fn rest_of_stop(&self, pod: &PodUid, run: &ContainerId, now: Time) -> Option<Duration> {
        self.kept.lock().facts.rest(pod, run, now)
    }

    /// The grace period of a pod without a spec (POD-K12).
    pub(crate) fn grace_of(&self, pod: &RuntimePod, now: Time) -> Grace {
        self.kept.lock().facts.grace(pod, now)
    }

    /// Forgets the facts that no longer matter, after a hook of the pod has read the pod. Returns the status without the runs that never
    /// started, because the agent that started them died: they are no runs of their containers. A run that was stopped for a resize has
    /// the reason [`STOPPED_FOR_RESIZE`] in it.
    pub(crate) fn observe(&self, pod: &PodUid, status: Arc<PodRuntimeStatus>, now: Time) -> Arc<PodRuntimeStatus> {
        self.change(Event::Observed { pod, status: &status, now });
        let kept = self.kept.lock();
        let is_abandoned = |run: &ContainerStatus| kept.facts.abandoned(pod).any(|(id, _)| *id == run.id);
        let is_for_resize = |run: &ContainerStatus| {
            run.state == ContainerState::Exited
                && kept.facts.fact(pod, &run.id).is_some_and(|fact| fact.for_resize.is_some())
        };
        if !status.containers.iter().any(|run| is_abandoned(run) || is_for_resize(run)) {
            return status;
        }
        let mut status = PodRuntimeStatus::clone(&status);
        status.containers.retain(|run| !is_abandoned(run));
        for run in status.containers.iter_mut().filter(|run| is_for_resize(run)) {
            STOPPED_FOR_RESIZE.clone_into(&mut run.reason);
        }
        Arc::new(status)
    }

    /// Drops the facts of the pods for which `keep` returns false.
    pub(crate) fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.change(Event::Retained { keep: &keep });
    }

    /// The run of a container that never started, because the agent that started it died. The runtime still has it.
    pub(crate) fn abandoned(&self, pod: &PodUid, container: &str) -> Option<ContainerId> {
        let kept = self.kept.lock();
        kept.facts.abandoned(pod).find(|(_, name)| name.as_str() == container).map(|(run, _)| run.clone())
    }

    /// Applies an event. Returns the version of the facts after it.
    fn change(&self, event: Event<'_>) -> u64 {
        let mut kept = self.kept.lock();
        let changed = step(&mut kept.facts, event);
        kept.queue(&changed);
        let version = kept.lines.version();
        drop(kept);
        if !changed.is_empty() {
            self.journal.wake();
        }
        version
    }
}

/// The recorded stops of runs for a resize, until the file has them. Undoes them when it is dropped.
struct UnwrittenStops<'a> {
    facts: &'a RunFacts,
    pod: &'a PodUid,
    /// Each run with its earlier stop for a resize, which may still take effect.
    before: Vec<(&'a ContainerId, Option<StopFact>)>,
}

impl UnwrittenStops<'_> {
    /// Keeps the recorded stops, because the file has them.
    fn keep(mut self) {
        self.before.clear();
    }
}

impl Drop for UnwrittenStops<'_> {
    fn drop(&mut self) {
        for (run, stop) in self.before.drain(..) {
            self.facts.change(Event::StopsForResize { pod: self.pod, run, stop });
        }
    }
}
