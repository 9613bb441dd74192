//! How long a container that keeps ending waits before it is started again.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use crate::ids::{ContainerName, PodUid};
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus};
use crate::time::Time;

use super::definition::Definition;

/// The wait after the second exit; it doubles with each further one (upstream `backOffPeriod`, kubelet 1.36).
const FIRST: Duration = Duration::from_secs(10);
/// A container that ran for longer than this has recovered: its next exit counts as the first again.
const RECOVERED: Duration = Duration::from_secs(600);
/// How often entries that no longer matter are looked for.
const SWEEP: Duration = Duration::from_secs(60);

/// Whether a container may be started now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// It may; the next exit will wait longer.
    Start,
    /// It may not.
    Wait {
        /// When it may.
        until: Time,
        /// The whole wait, from the last exit on.
        delay: Duration,
    },
}

/// The crash backoffs of all containers. The first restart is at once, then come 10, 20, 40, 80, 160, 300, 300 s, from
/// the exit of the last run on. An exit with code zero counts too.
///
/// What lies before this table was made is read from the runs that the runtime still shows, so that a crash loop goes on
/// where it was when the agent restarts (W34). What the machine's going down ended starts at once.
#[derive(Debug)]
pub struct CrashBackoff {
    first: Duration,
    max: Duration,
    born: Time,
    booted: Time,
    swept: Time,
    entries: HashMap<(PodUid, ContainerName), Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// [`Definition::backoff_hash`]: another image or other resources start anew.
    definition: u64,
    /// How long the next restart waits from the exit on.
    delay: Duration,
    /// When it last became longer.
    advanced: Time,
    /// An exit whose run was removed from the runtime.
    removed_exit: Option<Time>,
    /// The number of the run that had ended by then.
    last_run: Option<u32>,
}

impl Entry {
    fn new(container: &Definition<'_>, delay: Duration, advanced: Time) -> Self {
        Entry { definition: container.backoff_hash(), delay, advanced, removed_exit: None, last_run: None }
    }
}

impl CrashBackoff {
    /// An empty table. `max` is the longest wait, held to 1..=300 s; `now` divides what this table sees from what it
    /// has to read from the runtime. What ended a run that was started before the machine `booted` is not known.
    pub fn new(max: Duration, now: Time, booted: Time) -> Self {
        let max = max.clamp(Duration::from_secs(1), Duration::from_secs(300));
        CrashBackoff { first: FIRST.min(max), max, born: now, booted, swept: now, entries: HashMap::new() }
    }

    /// Asks to start a container; [`Verdict::Start`] counts as done.
    pub fn check(&mut self, uid: &PodUid, container: &Definition<'_>, status: &PodRuntimeStatus, now: Time) -> Verdict {
        self.sweep(now);
        let entry = self.entry(uid, container, status);
        let ended = newest_exited(container, status);
        let exit = ended.map(exit_of).or(entry.and_then(|entry| entry.removed_exit));
        let Some(mut exit) = exit else { return Verdict::Start };
        // The runtime's clock may have been set meanwhile, and ours follows it with a delay. What was started since the last
        // delay ended after it; of all else, what ended in the future ended before this table was made.
        let started =
            ended.zip(entry).filter(|(ended, entry)| entry.last_run.is_some_and(|last| ended.restart_count > last));
        match started {
            Some((_, entry)) => exit = exit.max(entry.advanced),
            None if exit > now => exit = self.born,
            None => {}
        }
        // The longest run counts from the restart, which is when the delay was advanced.
        let entry = entry.filter(|entry| exit.since(entry.advanced) <= RECOVERED);
        let delay = entry.map_or(Duration::ZERO, |entry| entry.delay);
        if now < exit + delay {
            return Verdict::Wait { until: exit + delay, delay };
        }
        let delay = (delay * 2).clamp(self.first, self.max);
        self.put(
            uid,
            container,
            Entry { last_run: ended.map(|run| run.restart_count), ..Entry::new(container, delay, now) },
        );
        Verdict::Start
    }

    /// Keeps the exit of a container whose runs are about to be removed: a pod that restarts all its containers over and
    /// over is held back by the container that asks for it.
    pub fn keep_exit(&mut self, uid: &PodUid, container: &Definition<'_>, status: &PodRuntimeStatus, now: Time) {
        // Nothing tells later that it ended after the last delay, so it ended now at the latest.
        let Some(exit) = newest_exited(container, status).map(|run| exit_of(run).min(now)) else { return };
        let entry = self.entry(uid, container, status).filter(|entry| exit.since(entry.advanced) <= RECOVERED);
        let (delay, advanced) = entry.map_or((Duration::ZERO, now), |entry| (entry.delay, entry.advanced));
        self.put(uid, container, Entry { removed_exit: Some(exit), ..Entry::new(container, delay, advanced) });
    }

    /// Forgets the pods of which `keep` says no.
    pub fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.entries.retain(|(uid, _), _| keep(uid));
    }

    fn put(&mut self, uid: &PodUid, container: &Definition<'_>, entry: Entry) {
        self.entries.insert((uid.clone(), container.container_name()), entry);
    }

    fn entry(&self, uid: &PodUid, container: &Definition<'_>, status: &PodRuntimeStatus) -> Option<Entry> {
        match self.entries.get(&(uid.clone(), container.container_name())) {
            Some(entry) => (entry.definition == container.backoff_hash()).then_some(*entry),
            None => self.derive(container, status),
        }
    }

    /// Where a crash loop was that an earlier life of the agent drove.
    fn derive(&self, container: &Definition<'_>, status: &PodRuntimeStatus) -> Option<Entry> {
        let mut exited = status
            .runs(container.name)
            .filter(|run| run.state == ContainerState::Exited && run.spec_hash == container.spec_hash());
        let newest = exited.next()?;
        let started = started(newest);
        if newest.restart_count == 0 || started >= self.born || started < self.booted {
            return None;
        }
        // Had every run been short, the count alone would tell.
        let mut delay = self.after(newest.restart_count);
        let before = exited.next().filter(|run| run.restart_count + 1 == newest.restart_count);
        if let Some((before, ended)) = before.and_then(|run| Some((run, run.finished_at?))) {
            delay = if ended.since(self::started(before)) > RECOVERED {
                self.first
            } else {
                // The last wait cannot have been longer than the pause that the runs show.
                let waited = started.since(ended);
                let steps = (1..=newest.restart_count).take_while(|n| self.after(*n) <= waited * 2).last().unwrap_or(1);
                delay.min(self.after(steps))
            };
        }
        Some(Entry::new(container, delay, started))
    }

    /// The delay once it was advanced `times` times.
    fn after(&self, times: u32) -> Duration {
        let doublings = times.saturating_sub(1).min(10);
        (self.first * 2u32.pow(doublings)).min(self.max)
    }

    fn sweep(&mut self, now: Time) {
        if now.since(self.swept) >= SWEEP {
            self.swept = now;
            // A late exit may still be waiting out its delay.
            self.entries.retain(|_, entry| now.since(entry.advanced) <= RECOVERED + entry.delay);
        }
    }
}

fn newest_exited<'a>(container: &Definition<'_>, status: &'a PodRuntimeStatus) -> Option<&'a ContainerStatus> {
    status.runs(container.name).find(|run| run.state == ContainerState::Exited)
}

fn exit_of(run: &ContainerStatus) -> Time {
    run.finished_at.unwrap_or(run.created_at)
}

fn started(run: &ContainerStatus) -> Time {
    run.started_at.unwrap_or(run.created_at)
}
