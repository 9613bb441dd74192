//! What the sources deliver, and their faults.

use podwright_model::time::Time;
use podwright_ports::{Severity, SourceProblem, SourceSet};

use super::{SimSources, SourceFeed, uid};
use crate::scenario::{PodIndex, Source};

impl SimSources {
    /// Ends all faults of sources. From now on each source delivers every change at once.
    pub(crate) fn end_faults(&mut self) {
        for line in &mut self.lines {
            *line = SourceFeed { changed: true, ..SourceFeed::default() };
        }
        if let Some(cluster) = &self.cluster {
            cluster.end_faults();
        }
        self.away_until = Time::ZERO;
        self.pods.iter_mut().for_each(|pod| pod.changes_lost_until = Time::ZERO);
    }

    /// The watch loses the changes of a pod. The watch of an API server loses nothing: its events are late instead.
    pub(crate) fn lose_changes(&mut self, which: PodIndex, until: Time) {
        if let Some(cluster) = self.scenario.pods.get(which).and_then(|plan| self.cluster_of(plan.source)) {
            cluster.delay_events(until);
            return;
        }
        if let Some(entry) = self.pods.get_mut(which) {
            entry.changes_lost_until = until;
        }
    }

    /// Delivers each pod anew, and with what its watch has lost.
    pub(crate) fn relist(&mut self, source: Source) {
        if let Some(cluster) = self.cluster_of(source) {
            cluster.list_again();
            return;
        }
        for (entry, _) in self.pods.iter_mut().zip(&self.scenario.pods).filter(|(_, plan)| plan.source == source) {
            entry.object = None;
            entry.changes_lost_until = Time::ZERO;
        }
        self.lines[source as usize].changed = true;
    }

    pub(crate) fn mute(&mut self, source: Source, until: Time) {
        if let Some(cluster) = self.cluster_of(source) {
            cluster.hold_events(until);
            return;
        }
        self.lines[source as usize].mute_until = until;
    }

    pub(crate) fn api_is_away(&mut self, until: Time) {
        if let Some(cluster) = &self.cluster {
            cluster.goes_away(until);
            return;
        }
        self.away_until = self.away_until.max(until);
        let line = &mut self.lines[Source::Api as usize];
        line.mute_until = line.mute_until.max(until);
    }

    /// The source delivers empty sets. An adapter never does that. Instead, its next list does not end.
    pub(crate) fn empty(&mut self, source: Source, until: Time) {
        if let Some(cluster) = self.cluster_of(source) {
            cluster.keep_lists_open(until);
            return;
        }
        let line = &mut self.lines[source as usize];
        line.empty_until = until;
        line.changed = true;
    }

    /// The source delivers its set again. The watch of an API server breaks and continues.
    pub(crate) fn repeat(&mut self, source: Source) {
        if let Some(cluster) = self.cluster_of(source) {
            cluster.drop_watches();
            return;
        }
        self.lines[source as usize].changed = true;
    }

    pub(crate) fn problem(&mut self, source: Source) {
        let line = &mut self.lines[source as usize];
        line.problems += 1;
        line.changed = true;
    }

    /// The next time at which a source delivers although no step changes it.
    pub(crate) fn next_change(&self, now: Time) -> Option<Time> {
        let of_cluster = self.cluster.as_ref().and_then(|cluster| cluster.next_change(now));
        let ends = self.lines.iter().flat_map(|line| [line.mute_until, line.empty_until]).chain(of_cluster);
        ends.chain(self.pods.iter().map(|pod| pod.changes_lost_until)).filter(|at| *at > now).min()
    }

    /// Ends the faults of the API server whose time is over.
    pub(crate) fn end_due_faults(&self, now: Time) {
        if let Some(cluster) = &self.cluster {
            cluster.end_due_faults(now);
        }
    }

    /// The set that a source delivers now, if it has changed. Not for the API server of the adapters.
    pub(crate) fn next_set(&mut self, source: Source, now: Time) -> Option<SourceSet> {
        let line = &mut self.lines[source as usize];
        if line.empty_until != Time::ZERO && now >= line.empty_until {
            line.empty_until = Time::ZERO;
            line.changed = true;
        }
        for (entry, _) in self.pods.iter_mut().zip(&self.scenario.pods).filter(|(_, plan)| plan.source == source) {
            if entry.changes_lost_until != Time::ZERO && now >= entry.changes_lost_until {
                entry.changes_lost_until = Time::ZERO;
                line.changed = true;
            }
        }
        if !line.changed || now < line.mute_until {
            return None;
        }
        line.changed = false;
        let says_nothing = now < line.empty_until;
        let problems = (line.problems > 0).then(|| SourceProblem {
            what: "a manifest".into(),
            message: format!("broken for the {}. time", line.problems),
            pods: Vec::new(),
            severity: Severity::Fault,
        });
        let mut pods = Vec::new();
        for (entry, plan) in self.pods.iter_mut().zip(&self.scenario.pods).filter(|(_, plan)| plan.source == source) {
            let newest = entry.present.then(|| entry.object(plan, &self.scenario.claims).clone());
            let delivered = if now < entry.changes_lost_until { entry.last_delivered.take() } else { newest };
            let delivered = delivered.filter(|_| !says_nothing);
            if let Some(pod) = &delivered {
                if pod.is_deleting() {
                    self.may_be_stopped.insert(pod.uid().clone());
                }
                pods.push(pod.clone());
                entry.delivered = true;
            }
            // The other pods of this name are not desired, as far as the agent knows.
            for uid in (0..=entry.incarnation).map(|number| self::uid(plan, number)) {
                if delivered.as_ref().is_none_or(|pod| *pod.uid() != uid) {
                    entry.was_stopped |= entry.delivered && uid == entry.uid(plan);
                    self.may_be_stopped.insert(uid);
                }
            }
            entry.last_delivered = delivered;
        }
        if source == Source::Api && !says_nothing {
            pods.extend(self.mirrors.values().cloned());
        }
        Some(SourceSet { source: source.kind(), pods, problems: problems.into_iter().collect() })
    }

    pub(crate) fn is_away(&self, now: Time) -> bool {
        now < self.away_until
    }
}
