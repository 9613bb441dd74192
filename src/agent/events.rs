//! Logs the events of pods, and keeps the last events of each pod for `explain`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::actors::explain::CountedEvent;
use crate::actors::ids::PodUid;
use crate::actors::pod::PodObject;
use crate::actors::ports::{Clock, EventRecorder, EventType, PodEvent};
use crate::actors::time::Time;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

/// How many different events of one pod are kept.
const EVENTS_PER_POD: usize = 20;
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
    events: VecDeque<CountedEvent>,
}

impl EventLog {
    /// An empty log. Each event also goes to `next`.
    pub fn new(clock: Arc<dyn Clock>, next: Option<Arc<dyn EventRecorder>>) -> Self {
        EventLog { clock, next, kept: Mutex::new(KeptEvents::new(MAX_PODS)) }
    }

    /// The last events of a pod. The newest is last.
    pub(crate) fn of(&self, uid: &PodUid) -> Vec<CountedEvent> {
        self.kept.lock().pods.get(uid).map(|pod| pod.events.iter().cloned().collect()).unwrap_or_default()
    }
}

impl EventRecorder for EventLog {
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        let (kind, reason, message, of) = (event.kind, &*event.reason, &event.message, event.field_path.as_deref());
        // The log line has no parent span, because the worker's span has the same fields.
        match kind {
            EventType::Normal => {
                let (pod, uid) = (pod.full_name(), pod.uid());
                tracing::info!(parent: None, %pod, field.path = of, pod.uid = %uid, reason, "{message}");
            }
            EventType::Warning => {
                let (pod, uid) = (pod.full_name(), pod.uid());
                tracing::warn!(parent: None, %pod, field.path = of, pod.uid = %uid, reason, "{message}");
            }
        }
        if let Some(next) = &self.next {
            next.record(pod, event.clone());
        }
        self.kept.lock().keep(pod.uid(), event, self.clock.now());
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

    fn keep(&mut self, uid: &PodUid, event: PodEvent, now: Time) {
        self.sequence += 1;
        let pod = self.pods.entry(uid.clone()).or_default();
        self.order.remove(&pod.newest);
        self.order.insert(self.sequence, uid.clone());
        pod.newest = self.sequence;
        pod.keep(event, now);
        if self.pods.len() > self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.pods.remove(&oldest);
        }
    }
}

impl PodEvents {
    fn keep(&mut self, event: PodEvent, now: Time) {
        let known = self.events.iter().position(|seen| seen.event == event);
        let seen = match known.and_then(|index| self.events.remove(index)) {
            Some(seen) => CountedEvent { count: seen.count.saturating_add(1), last: now, ..seen },
            None => CountedEvent { event, count: 1, first: now, last: now },
        };
        self.events.push_back(seen);
        if self.events.len() > EVENTS_PER_POD {
            self.events.pop_front();
        }
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
        assert_eq!(events[1], CountedEvent { event: back_off, count: 2, first: at(1), last: at(3) });
    }

    #[test]
    fn a_pod_keeps_its_last_twenty_events() {
        let mut kept = KeptEvents::new(10);
        let uid = PodUid::new("a");
        for n in 0..25 {
            kept.keep(&uid, PodEvent::normal("Started", n.to_string()), at(n));
        }
        let events = &kept.pods[&uid].events;
        assert_eq!((events.len(), events[0].event.message.as_str()), (20, "5"));
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
