//! Decides how an event is written: as a new object, as a higher count of an earlier object, or not at all. Pure.
//!
//! The numbers are those of client-go's recorder (`tools/record/events_cache.go`, 1.36), which a kubelet uses.

use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;
use lru::LruCache;
use podwright_model::time::Time;

/// From this number of different messages on, events of one object, type and reason are combined into one event.
const COMBINED_FROM: usize = 10;
/// Events with a longer gap between them are not combined.
const COMBINE_WITHIN: Duration = Duration::from_secs(600);
/// The prefix of the message of a combined event.
const COMBINED: &str = "(combined from similar events): ";
/// The number of writes that one object may cause at once.
const BURST: f64 = 25.0;
/// After the burst, one object may cause one write in this time, in seconds.
const SECONDS_PER_WRITE: f64 = 300.0;
/// The number of entries of each cache.
const CACHE: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
}

/// Events that differ only in their messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EventGroup {
    subject: Subject,
    kind: Option<String>,
    reason: Option<String>,
}

/// Events that are counted in one object of the API server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum EventKey {
    Same { group: Box<EventGroup>, field_path: Option<String>, message: Option<String> },
    Combined(Box<EventGroup>),
}

/// The different messages of a group.
struct GroupMessages {
    distinct: Vec<Option<String>>,
    last: Time,
}

/// The writes that one object may still cause.
struct WriteBucket {
    writes: f64,
    at: Time,
}

/// The event of a key as it was written last.
#[derive(Clone, Debug)]
struct CountedEvent {
    name: Option<String>,
    first: Option<ApiTime>,
    count: i32,
}

/// A write of an event.
#[derive(Clone, Debug)]
pub(super) struct EventWrite {
    pub(super) key: EventKey,
    /// The event with its name, its times and its count.
    pub(super) event: Event,
    /// Whether an object with this name was written before, so that only its count, its last time and its message change.
    pub(super) is_repetition: bool,
}

/// Remembers the last events.
pub(super) struct Correlator {
    groups: LruCache<EventGroup, GroupMessages>,
    counts: LruCache<EventKey, CountedEvent>,
    buckets: LruCache<Subject, WriteBucket>,
}

impl Correlator {
    pub(super) fn new() -> Self {
        Correlator { groups: LruCache::new(CACHE), counts: LruCache::new(CACHE), buckets: LruCache::new(CACHE) }
    }

    /// The write of an event that happened at `now`. `event` has the count 1. `None` if its object has too many events. A later write
    /// then counts the event.
    pub(super) fn correlate(&mut self, mut event: Event, now: Time) -> Option<EventWrite> {
        let object = &event.involved_object;
        let subject = Subject {
            kind: object.kind.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            uid: object.uid.clone(),
        };
        let group = EventGroup { subject: subject.clone(), kind: event.type_.clone(), reason: event.reason.clone() };
        let key = if self.is_one_of_many(&group, &event.message, now) {
            event.message = Some(format!("{COMBINED}{}", event.message.unwrap_or_default()));
            event.metadata.annotations = None;
            EventKey::Combined(Box::new(group))
        } else {
            let field_path = object.field_path.clone();
            EventKey::Same { group: Box::new(group), field_path, message: event.message.clone() }
        };
        let counted = self.counts.get(&key).cloned();
        let is_repetition = counted.is_some();
        if let Some(CountedEvent { name, first, count }) = counted {
            event.metadata.name = name;
            event.first_timestamp = first;
            event.count = Some(count.saturating_add(1));
        }
        self.remember(key.clone(), &event);
        self.may_write(subject, now).then_some(EventWrite { key, event, is_repetition })
    }

    /// Remembers an event as the API server stored it.
    pub(super) fn remember(&mut self, key: EventKey, event: &Event) {
        let (name, first) = (event.metadata.name.clone(), event.first_timestamp.clone());
        self.counts.put(key, CountedEvent { name, first, count: event.count.unwrap_or(1) });
    }

    fn is_one_of_many(&mut self, group: &EventGroup, message: &Option<String>, now: Time) -> bool {
        let messages =
            self.groups.get_or_insert_mut(group.clone(), || GroupMessages { distinct: Vec::new(), last: now });
        if now.since(messages.last) > COMBINE_WITHIN {
            messages.distinct.clear();
        }
        messages.last = now;
        if messages.distinct.contains(message) {
            return false;
        }
        if messages.distinct.len() + 1 >= COMBINED_FROM {
            return true;
        }
        messages.distinct.push(message.clone());
        false
    }

    /// Takes one write of an object, if it has one.
    fn may_write(&mut self, subject: Subject, now: Time) -> bool {
        let bucket = self.buckets.get_or_insert_mut(subject, || WriteBucket { writes: BURST, at: now });
        let earned = now.since(bucket.at).as_secs_f64() / SECONDS_PER_WRITE;
        bucket.writes = (bucket.writes + earned).min(BURST);
        bucket.at = now;
        let may_write = bucket.writes >= 1.0;
        if may_write {
            bucket.writes -= 1.0;
        }
        may_write
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// An event as the recorder makes it. `second` is also its name.
    fn event(pod: &str, reason: &str, message: &str, second: u64) -> Event {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": second.to_string(), "annotations": {"a": "b"}},
            "involvedObject": {"kind": "Pod", "name": pod, "uid": pod, "fieldPath": "spec.containers{main}"},
            "reason": reason, "message": message, "type": "Warning", "count": 1,
            "firstTimestamp": Time::from_secs(second).to_timestamp().to_string(),
        }))
        .unwrap()
    }

    fn at(seconds: u64) -> Time {
        Time::from_secs(seconds)
    }

    struct Written {
        name: String,
        message: String,
        count: i32,
        is_repetition: bool,
    }

    fn correlate(memory: &mut Correlator, reason: &str, message: &str, second: u64) -> Option<Written> {
        let EventWrite { event, is_repetition, .. } =
            memory.correlate(event("web", reason, message, second), at(second))?;
        let (name, message) = (event.metadata.name.unwrap(), event.message.unwrap());
        Some(Written { name, message, count: event.count.unwrap(), is_repetition })
    }

    #[test]
    fn a_repeated_event_raises_the_count_of_its_object() {
        let mut memory = Correlator::new();
        let first = correlate(&mut memory, "BackOff", "back-off", 1).unwrap();
        assert_eq!((&*first.name, first.count, first.is_repetition), ("1", 1, false));
        let second = correlate(&mut memory, "BackOff", "back-off", 9).unwrap();
        assert_eq!((&*second.name, second.count, second.is_repetition), ("1", 2, true));
        let other = correlate(&mut memory, "Failed", "back-off", 10).unwrap();
        assert_eq!((&*other.name, other.count, other.is_repetition), ("10", 1, false), "the reason differs");

        let mut init = event("web", "BackOff", "back-off", 11);
        init.involved_object.field_path = Some("spec.initContainers{main}".to_owned());
        assert!(!memory.correlate(init, at(11)).unwrap().is_repetition, "the container differs");
        let write = memory.correlate(event("web", "BackOff", "back-off", 12), at(12)).unwrap();
        assert_eq!(write.event.first_timestamp.unwrap().0, at(1).to_timestamp());
    }

    #[test]
    fn the_tenth_message_of_a_reason_and_all_further_ones_are_combined() {
        let mut memory = Correlator::new();
        for number in 1..10 {
            let written = correlate(&mut memory, "Unhealthy", &format!("message {number}"), number).unwrap();
            assert_eq!(written.message, format!("message {number}"));
        }
        let combined = correlate(&mut memory, "Unhealthy", "message 10", 10).unwrap();
        assert_eq!(combined.message, "(combined from similar events): message 10");
        assert_eq!((&*combined.name, combined.count, combined.is_repetition), ("10", 1, false));
        let next = correlate(&mut memory, "Unhealthy", "message 11", 11).unwrap();
        assert_eq!(next.message, "(combined from similar events): message 11");
        assert_eq!((&*next.name, next.count, next.is_repetition), ("10", 2, true));
        let other = correlate(&mut memory, "Killing", "message 12", 12).unwrap();
        assert_eq!(other.message, "message 12", "the reason differs");
        let later = correlate(&mut memory, "Unhealthy", "message 13", 12 + 601).unwrap();
        assert_eq!(later.message, "message 13", "there was none for more than 10 minutes");
    }

    #[test]
    fn a_combined_event_has_no_annotations_of_a_single_one() {
        let mut memory = Correlator::new();
        let mut annotations = (1..=10).map(|number| {
            let write = memory.correlate(event("web", "Evicted", &number.to_string(), number), at(number)).unwrap();
            write.event.metadata.annotations
        });
        assert!(annotations.next().unwrap().is_some());
        assert!(annotations.last().unwrap().is_none());
    }

    #[test]
    fn an_object_has_twenty_five_writes_and_one_more_in_five_minutes() {
        let mut memory = Correlator::new();
        let written = (0..100).filter(|_| correlate(&mut memory, "BackOff", "back-off", 1).is_some()).count();
        assert_eq!(written, 25);
        assert!(memory.correlate(event("other", "BackOff", "back-off", 1), at(1)).is_some());
        assert!(correlate(&mut memory, "Started", "started", 300).is_none());
        let after = correlate(&mut memory, "BackOff", "back-off", 301).unwrap();
        assert_eq!(after.count, 101, "the events that were not written count");
        assert!(correlate(&mut memory, "BackOff", "back-off", 302).is_none());
    }

    proptest! {
        #![proptest_config(podwright_random::cases(256))]

        #[test]
        fn writes_are_bounded_and_counts_are_complete(
            events in proptest::collection::vec((0..3u8, 0..3u8, 0..14u8, 0..400u64), 0..300),
        ) {
            let mut memory = Correlator::new();
            let mut now = 0;
            let mut writes: BTreeMap<u8, u32> = BTreeMap::new();
            let mut occurred: BTreeMap<String, i32> = BTreeMap::new();
            for (pod, reason, message, wait) in events {
                now += wait / 10;
                let pod_name = format!("pod-{pod}");
                let write = memory.correlate(event(&pod_name, &reason.to_string(), &message.to_string(), now), at(now));
                let combined = match &write {
                    Some(EventWrite { key, .. }) => matches!(key, EventKey::Combined(_)),
                    None => continue,
                };
                let Some(EventWrite { event, is_repetition, key }) = write else { continue };
                *writes.entry(pod).or_default() += 1;
                prop_assert!(f64::from(writes[&pod]) <= BURST + now as f64 / SECONDS_PER_WRITE);
                let count = event.count.unwrap();
                let last = occurred.insert(format!("{key:?}"), count).unwrap_or(0);
                prop_assert!(count > last, "{key:?} has {count} after {last}");
                prop_assert_eq!(is_repetition, count > 1);
                prop_assert_eq!(combined, event.message.unwrap().starts_with(COMBINED));
            }
        }
    }
}
