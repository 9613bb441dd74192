//! The events of pods: logged, and the last ones of each pod kept for `explain`.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use crate::actors::explain::SeenEvent;
use crate::actors::ids::PodUid;
use crate::actors::pod::PodObject;
use crate::actors::ports::{Clock, EventRecorder, EventType, PodEvent};
use crate::actors::time::Time;
use parking_lot::Mutex;

/// How many different events are kept of a pod.
const PER_POD: usize = 20;
/// Of how many pods events are kept.
const PODS: usize = 20_000;

/// Takes the events.
pub struct EventLog {
    clock: Arc<dyn Clock>,
    kept: Mutex<Kept>,
}

/// The events by pod, and the pods in the order in which they were last touched.
#[derive(Debug)]
struct Kept {
    pods: HashMap<PodUid, OfPod>,
    order: BTreeMap<u64, PodUid>,
    touches: u64,
    capacity: usize,
}

#[derive(Debug, Default)]
struct OfPod {
    touched: u64,
    /// The one that came last is last.
    events: VecDeque<SeenEvent>,
}

impl EventLog {
    /// Nothing recorded yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        EventLog { clock, kept: Mutex::new(Kept::new(PODS)) }
    }

    /// The last events of a pod, the newest last.
    pub(crate) fn of(&self, uid: &PodUid) -> Vec<SeenEvent> {
        self.kept.lock().pods.get(uid).map(|pod| pod.events.iter().cloned().collect()).unwrap_or_default()
    }
}

impl EventRecorder for EventLog {
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        let (kind, reason, message) = (event.kind, &*event.reason, &event.message);
        // Without the span it came from, which says no more than these fields.
        match kind {
            EventType::Normal => {
                tracing::info!(parent: None, pod = %pod.full_name(), pod.uid = %pod.uid(), reason, "{message}");
            }
            EventType::Warning => {
                tracing::warn!(parent: None, pod = %pod.full_name(), pod.uid = %pod.uid(), reason, "{message}");
            }
        }
        self.kept.lock().keep(pod.uid(), event, self.clock.now());
    }

    fn record_of_node(&self, event: PodEvent) {
        let (reason, message) = (&*event.reason, &event.message);
        match event.kind {
            EventType::Normal => tracing::info!(parent: None, reason, "{message}"),
            EventType::Warning => tracing::warn!(parent: None, reason, "{message}"),
        }
    }
}

impl Kept {
    fn new(capacity: usize) -> Self {
        Kept { pods: HashMap::new(), order: BTreeMap::new(), touches: 0, capacity }
    }

    fn keep(&mut self, uid: &PodUid, event: PodEvent, now: Time) {
        self.touches += 1;
        let pod = self.pods.entry(uid.clone()).or_default();
        self.order.remove(&pod.touched);
        self.order.insert(self.touches, uid.clone());
        pod.touched = self.touches;
        pod.keep(event, now);
        if self.pods.len() > self.capacity
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.pods.remove(&oldest);
        }
    }
}

impl OfPod {
    fn keep(&mut self, event: PodEvent, now: Time) {
        let known = self.events.iter().position(|seen| seen.event == event);
        let seen = match known.and_then(|index| self.events.remove(index)) {
            Some(seen) => SeenEvent { count: seen.count.saturating_add(1), last: now, ..seen },
            None => SeenEvent { event, count: 1, first: now, last: now },
        };
        self.events.push_back(seen);
        if self.events.len() > PER_POD {
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
    fn an_event_that_repeats_is_counted_and_moves_to_the_end() {
        let mut kept = Kept::new(10);
        let uid = PodUid::new("a");
        let back_off = PodEvent::normal("BackOff", "waits");
        kept.keep(&uid, back_off.clone(), at(1));
        kept.keep(&uid, PodEvent::warning("Unhealthy", "no"), at(2));
        kept.keep(&uid, back_off.clone(), at(3));
        let events = &kept.pods[&uid].events;
        assert_eq!(events.len(), 2);
        assert_eq!(events[1], SeenEvent { event: back_off, count: 2, first: at(1), last: at(3) });
    }

    #[test]
    fn a_pod_keeps_its_last_twenty_events() {
        let mut kept = Kept::new(10);
        let uid = PodUid::new("a");
        for n in 0..25 {
            kept.keep(&uid, PodEvent::normal("Started", n.to_string()), at(n));
        }
        let events = &kept.pods[&uid].events;
        assert_eq!((events.len(), events[0].event.message.as_str()), (20, "5"));
    }

    #[test]
    fn of_too_many_pods_the_one_that_was_quiet_longest_is_forgotten() {
        let mut kept = Kept::new(2);
        for uid in ["a", "b", "a", "c"] {
            kept.keep(&PodUid::new(uid), PodEvent::normal("Started", "x"), at(1));
        }
        let mut left: Vec<String> = kept.pods.keys().map(ToString::to_string).collect();
        left.sort();
        assert_eq!(left, ["a", "c"]);
        assert_eq!(kept.order.len(), 2);
    }
}
