//! Logs the events of pods, and keeps the last events of each pod for `explain`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use podwright_actors::explain::CountedEvent;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{Clock, EventRecorder, EventType, PodEvent};

/// How many different events of one pod are kept.
const EVENTS_PER_POD: usize = 20;
/// A probe may fail each second. The log has the same failure once in this time.
const PROBE_LOG_PERIOD: Duration = Duration::from_secs(60);
/// The reasons of events of probes (`actors/src/probe_manager/attempt.rs`).
const PROBE_REASONS: [&str; 2] = ["Unhealthy", "ProbeWarning"];
/// For how many pods events are kept.
const MAX_PODS: usize = 20_000;

/// An event recorder that logs events and keeps the last ones of each pod.
pub struct EventLog {
    clock: Arc<dyn Clock>,
    /// Gets each event too.
    next: Option<Arc<dyn EventRecorder>>,
    kept: Mutex<KeptEvents>,
}

/// Events by pod, and the pods in the order of their newest events.
#[derive(Debug)]
struct KeptEvents {
    pods: HashMap<PodUid, PodEvents>,
    /// Pods by the sequence number of their newest event.
    order: BTreeMap<u64, PodUid>,
    /// The sequence number of the newest event.
    sequence: u64,
    capacity: usize,
}

#[derive(Debug, Default)]
struct PodEvents {
    /// The sequence number of the pod's newest event.
    newest: u64,
    /// The newest event is last.
    events: VecDeque<KeptEvent>,
}

#[derive(Debug)]
struct KeptEvent {
    counted: CountedEvent,
    /// When the log last had the event.
    logged: Time,
}

impl EventLog {
    /// An empty log. Each event also goes to `next`.
    pub fn new(clock: Arc<dyn Clock>, next: Option<Arc<dyn EventRecorder>>) -> Self {
        EventLog { clock, next, kept: Mutex::new(KeptEvents::new(MAX_PODS)) }
    }

    /// The last events of a pod. The newest is last.
    pub(crate) fn of(&self, uid: &PodUid) -> Vec<CountedEvent> {
        let kept = self.kept.lock();
        let events = kept.pods.get(uid).into_iter().flat_map(|pod| &pod.events);
        events.map(|kept| kept.counted.clone()).collect()
    }
}

impl EventRecorder for EventLog {
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        let repeated = self.kept.lock().keep(pod.uid(), event.clone(), self.clock.now());
        // The output of a probe is at the end of its message, and may be empty.
        let (reason, message, of) = (&*event.reason, event.message.trim_end(), event.field_path.as_deref());
        let (name, uid) = (pod.full_name(), pod.uid());
        // The log line has no parent span, because the worker's span has the same fields.
        match (repeated, event.kind) {
            (Repetition::Quiet, _) => {
                tracing::debug!(parent: None, pod = %name, field.path = of, pod.uid = %uid, reason, "{message}");
            }
            (Repetition::Logged { count }, EventType::Normal) => {
                tracing::info!(parent: None, pod = %name, field.path = of, pod.uid = %uid, reason, count, "{message}");
            }
            (Repetition::Logged { count }, EventType::Warning) => {
                tracing::warn!(parent: None, pod = %name, field.path = of, pod.uid = %uid, reason, count, "{message}");
            }
        }
        if let Some(next) = &self.next {
            next.record(pod, event);
        }
    }

    fn record_of_node(&self, event: PodEvent) {
        let (reason, message) = (&*event.reason, &event.message);
        match event.kind {
            EventType::Normal => tracing::info!(parent: None, reason, "{message}"),
            EventType::Warning => tracing::warn!(parent: None, reason, "{message}"),
        }
        if let Some(next) = &self.next {
            next.record_of_node(event);
        }
    }

    fn close(&self, limit: Duration) -> BoxFuture<'_, usize> {
        match &self.next {
            Some(next) => next.close(limit),
            None => async { 0 }.boxed(),
        }
    }
}

impl KeptEvents {
    fn new(capacity: usize) -> Self {
        KeptEvents { pods: HashMap::new(), order: BTreeMap::new(), sequence: 0, capacity }
    }

    fn keep(&mut self, uid: &PodUid, event: PodEvent, now: Time) -> Repetition {
        self.sequence += 1;
        let pod = self.pods.entry(uid.clone()).or_default();
        self.order.remove(&pod.newest);
        self.order.insert(self.sequence, uid.clone());
        pod.newest = self.sequence;
        let repetition = pod.keep(event, now);
        if self.pods.len() > self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.pods.remove(&oldest);
        }
        repetition
    }
}

/// Whether the log has an occurrence of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repetition {
    /// It has one. `count` is the number of all occurrences, if there was an earlier one.
    Logged { count: Option<u32> },
    /// It had one a moment ago.
    Quiet,
}

impl PodEvents {
    fn keep(&mut self, event: PodEvent, now: Time) -> Repetition {
        let known = self.events.iter().position(|kept| kept.counted.event == event);
        let (counted, logged) = match known.and_then(|index| self.events.remove(index)) {
            Some(KeptEvent { counted, logged }) => {
                let counted = CountedEvent { count: counted.count.saturating_add(1), last: now, ..counted };
                (counted, Some(logged))
            }
            None => (CountedEvent { event, count: 1, first: now, last: now }, None),
        };
        let is_of_probe = PROBE_REASONS.contains(&&*counted.event.reason);
        let recently = logged.filter(|logged| is_of_probe && now.since(*logged) < PROBE_LOG_PERIOD);
        let repetition = match recently {
            Some(_) => Repetition::Quiet,
            None => Repetition::Logged { count: Some(counted.count).filter(|count| *count > 1) },
        };
        self.events.push_back(KeptEvent { counted, logged: recently.unwrap_or(now) });
        if self.events.len() > EVENTS_PER_POD {
            self.events.pop_front();
        }
        repetition
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    #[test]
    fn a_repeated_event_is_counted_and_becomes_the_newest() {
        let mut kept = KeptEvents::new(10);
        let uid = PodUid::new("a");
        let back_off = PodEvent::normal("BackOff", "waits");
        kept.keep(&uid, back_off.clone(), at(1));
        kept.keep(&uid, PodEvent::warning("Unhealthy", "no"), at(2));
        kept.keep(&uid, back_off.clone(), at(3));
        let events = &kept.pods[&uid].events;
        assert_eq!(events.len(), 2);
        assert_eq!(events[1].counted, CountedEvent { event: back_off, count: 2, first: at(1), last: at(3) });
    }

    #[test]
    fn failing_probe_is_logged_once_a_minute() {
        let mut kept = KeptEvents::new(10);
        let mut keep = |event: &PodEvent, seconds| kept.keep(&PodUid::new("a"), event.clone(), at(seconds));
        let logged = |count| Repetition::Logged { count };
        let (fails, back_off) = (PodEvent::warning("Unhealthy", "no"), PodEvent::normal("BackOff", "waits"));
        let found = [1, 2, 60, 61, 62].map(|time| keep(&fails, time));
        assert_eq!(found, [logged(None), Repetition::Quiet, Repetition::Quiet, logged(Some(4)), Repetition::Quiet]);
        assert_eq!(keep(&PodEvent::warning("Unhealthy", "other"), 62), logged(None));
        assert_eq!(
            [1, 2].map(|time| keep(&back_off, time)),
            [logged(None), logged(Some(2))],
            "other events are all logged"
        );
    }

    #[test]
    fn a_pod_keeps_its_last_twenty_events() {
        let mut kept = KeptEvents::new(10);
        let uid = PodUid::new("a");
        for n in 0..25 {
            kept.keep(&uid, PodEvent::normal("Started", n.to_string()), at(n));
        }
        let events = &kept.pods[&uid].events;
        assert_eq!((events.len(), events[0].counted.event.message.as_str()), (20, "5"));
    }

    #[test]
    fn the_events_of_the_longest_quiet_pod_are_dropped_first() {
        let mut kept = KeptEvents::new(2);
        for uid in ["a", "b", "a", "c"] {
            kept.keep(&PodUid::new(uid), PodEvent::normal("Started", "x"), at(1));
        }
        let mut left: Vec<String> = kept.pods.keys().map(ToString::to_string).collect();
        left.sort();
        assert_eq!(left, ["a", "c"]);
        assert_eq!(kept.order.len(), 2);
    }
}
