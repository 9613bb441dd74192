//! Crash backoff: how long a container waits between its exit and its next start. Pure.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use crate::ids::{ContainerName, PodUid};
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus};
use crate::time::Time;

use super::definition::Definition;

/// The delay after the second exit; it doubles with each further exit (the kubelet's `backOffPeriod`, 1.36).
const FIRST: Duration = Duration::from_secs(10);
/// A container that ran for longer than this has recovered: its next exit counts as the first one.
const RECOVERED: Duration = Duration::from_secs(600);
/// How often expired loops are removed.
const SWEEP: Duration = Duration::from_secs(60);

/// Whether a container may start now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum BackoffDecision {
    /// The container may start. The next delay is longer.
    Start,
    /// The container must wait.
    Wait {
        /// When the container may start.
        until: Time,
        /// The whole delay from the last exit on.
        delay: Duration,
    },
}

/// The crash backoffs of all containers. The first restart has no delay; the following delays are 10, 20, 40, 80, 160,
/// 300, 300... s, counted from the exit of the last run. An exit with code 0 counts too.
///
/// After a restart of the agent, the table derives a container's delay from the runs that the runtime still lists, so
/// that the crash loop continues at its delay (POD-W34). A container that a reboot of the machine ended starts without
/// a delay.
#[derive(Debug)]
pub struct CrashBackoff {
    first: Duration,
    max: Duration,
    created_at: Time,
    booted: Time,
    swept_at: Time,
    loops: HashMap<(PodUid, ContainerName), CrashLoop>,
}

#[derive(Clone, Copy, Debug)]
struct CrashLoop {
    /// [`Definition::backoff_hash`]. Another image or other resources reset the backoff.
    definition: u64,
    /// The delay between the exit and the next start.
    delay: Duration,
    /// When the delay last became longer.
    advanced_at: Time,
    /// The exit of a run that was removed from the runtime.
    removed_exit: Option<Time>,
    /// The restart count of the run that had ended at `advanced_at`.
    last_run: Option<u32>,
}

impl CrashLoop {
    fn new(container: &Definition<'_>, delay: Duration, advanced_at: Time) -> Self {
        CrashLoop { definition: container.backoff_hash(), delay, advanced_at, removed_exit: None, last_run: None }
    }
}

impl CrashBackoff {
    /// An empty table. `max` is the longest delay, clamped to 1..=300 s. Runs that started before `now` are derived
    /// from the runtime's list. For runs that started before `booted`, the start time of the machine, the cause of
    /// their end is unknown.
    pub fn new(max: Duration, now: Time, booted: Time) -> Self {
        let max = max.clamp(Duration::from_secs(1), Duration::from_secs(300));
        CrashBackoff { first: FIRST.min(max), max, created_at: now, booted, swept_at: now, loops: HashMap::new() }
    }

    /// Decides whether a container may start. [`BackoffDecision::Start`] counts as a start.
    pub fn check(
        &mut self,
        uid: &PodUid,
        container: &Definition<'_>,
        status: &PodRuntimeStatus,
        now: Time,
    ) -> BackoffDecision {
        self.sweep(now);
        let crash_loop = self.crash_loop(uid, container, status);
        let ended = newest_exited(container, status);
        let exit = ended.map(exit_of).or(crash_loop.and_then(|crash_loop| crash_loop.removed_exit));
        let Some(mut exit) = exit else { return BackoffDecision::Start };
        // The runtime's clock may have been set, and the agent's clock follows with a delay. So the exit may seem too early
        // or too late. A run that started after the delay last became longer ended after that time, too. Any other exit that
        // seems to be in the future happened before this table was made.
        let started = ended
            .zip(crash_loop)
            .filter(|(ended, crash_loop)| crash_loop.last_run.is_some_and(|last| ended.restart_count > last));
        match started {
            Some((_, crash_loop)) => exit = exit.max(crash_loop.advanced_at),
            None if exit > now => exit = self.created_at,
            None => {}
        }
        // The recovery time counts from the restart, which is when the delay was advanced.
        let crash_loop = crash_loop.filter(|crash_loop| exit.since(crash_loop.advanced_at) <= RECOVERED);
        let delay = crash_loop.map_or(Duration::ZERO, |crash_loop| crash_loop.delay);
        if now < exit + delay {
            return BackoffDecision::Wait { until: exit + delay, delay };
        }
        let delay = (delay * 2).clamp(self.first, self.max);
        self.put(
            uid,
            container,
            CrashLoop { last_run: ended.map(|run| run.restart_count), ..CrashLoop::new(container, delay, now) },
        );
        BackoffDecision::Start
    }

    /// Keeps the exit of a container whose runs are about to be removed. It makes a pod that restarts all its
    /// containers again and again wait for the backoff of the container that triggers the restarts.
    pub fn keep_exit(&mut self, uid: &PodUid, container: &Definition<'_>, status: &PodRuntimeStatus, now: Time) {
        // A later check cannot know that the run ended after the delay was advanced, so the exit is at most `now`.
        let Some(exit) = newest_exited(container, status).map(|run| exit_of(run).min(now)) else { return };
        let crash_loop = self
            .crash_loop(uid, container, status)
            .filter(|crash_loop| exit.since(crash_loop.advanced_at) <= RECOVERED);
        let (delay, advanced_at) =
            crash_loop.map_or((Duration::ZERO, now), |crash_loop| (crash_loop.delay, crash_loop.advanced_at));
        self.put(
            uid,
            container,
            CrashLoop { removed_exit: Some(exit), ..CrashLoop::new(container, delay, advanced_at) },
        );
    }

    /// Removes the pods that `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(&PodUid) -> bool) {
        self.loops.retain(|(uid, _), _| keep(uid));
    }

    fn put(&mut self, uid: &PodUid, container: &Definition<'_>, crash_loop: CrashLoop) {
        self.loops.insert((uid.clone(), container.container_name()), crash_loop);
    }

    fn crash_loop(&self, uid: &PodUid, container: &Definition<'_>, status: &PodRuntimeStatus) -> Option<CrashLoop> {
        match self.loops.get(&(uid.clone(), container.container_name())) {
            Some(crash_loop) => (crash_loop.definition == container.backoff_hash()).then_some(*crash_loop),
            None => self.derive(container, status),
        }
    }

    /// Derives the state of a crash loop from runs that an earlier agent process started.
    fn derive(&self, container: &Definition<'_>, status: &PodRuntimeStatus) -> Option<CrashLoop> {
        let mut exited = status
            .runs(container.name())
            .filter(|run| run.state == ContainerState::Exited && container.is_hash(run.spec_hash));
        let newest = exited.next()?;
        let started = started(newest);
        if newest.restart_count == 0 || started >= self.created_at || started < self.booted {
            return None;
        }
        // If every run was short, the restart count determines the delay.
        let mut delay = self.after(newest.restart_count);
        let before = exited.next().filter(|run| run.restart_count + 1 == newest.restart_count);
        if let Some((before, ended)) = before.and_then(|run| Some((run, run.finished_at?))) {
            delay = if ended.since(self::started(before)) > RECOVERED {
                self.first
            } else {
                // The delay before the last run cannot have been longer than the pause between the runs.
                let waited = started.since(ended);
                let steps = (1..=newest.restart_count).take_while(|n| self.after(*n) <= waited * 2).last().unwrap_or(1);
                delay.min(self.after(steps))
            };
        }
        Some(CrashLoop::new(container, delay, started))
    }

    /// The delay after `times` advances.
    fn after(&self, times: u32) -> Duration {
        let doublings = times.saturating_sub(1).min(10);
        (self.first * 2u32.pow(doublings)).min(self.max)
    }

    fn sweep(&mut self, now: Time) {
        if now.since(self.swept_at) >= SWEEP {
            self.swept_at = now;
            // A long delay may still be running.
            self.loops.retain(|_, crash_loop| now.since(crash_loop.advanced_at) <= RECOVERED + crash_loop.delay);
        }
    }
}

fn newest_exited<'a>(container: &Definition<'_>, status: &'a PodRuntimeStatus) -> Option<&'a ContainerStatus> {
    status.runs(container.name()).find(|run| run.state == ContainerState::Exited)
}

fn exit_of(run: &ContainerStatus) -> Time {
    run.finished_at.unwrap_or(run.created_at)
}

fn started(run: &ContainerStatus) -> Time {
    run.started_at.unwrap_or(run.created_at)
}
