//! Writes events to the API server, as a kubelet does.
//!
//! ```text
//!  hooks, dispatcher, ... -- record --> lane of the object: queue --> Correlator --> POST, or PATCH of the count
//!                              `-- queue full: dropped and counted
//! ```
//!
//! - Recording an event never waits. Each queue is bounded.
//! - The events of one object are written one after the other, so that a repetition follows its first event. The objects are spread
//!   over a few lanes.
//! - Similar events are combined, repeated events are counted in one object, and the number of writes for one object is limited, with
//!   the numbers of client-go (`correlate.rs`).
//! - While the API server cannot be reached, a lane tries its first event again, up to 12 times, and its queue fills up.
//!
//! `kube::runtime::events::Recorder` is not used. It writes events of the group `events.k8s.io` with a `series`. Their `count`,
//! `firstTimestamp`, `lastTimestamp` and `source` are empty in `core/v1`, which `kubectl describe` and the programs around a kubelet
//! read. It also has no queue, no limit and no combination of similar events, and its caller waits for each write.

mod correlate;
mod lane;
mod object;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{ApiFuture, Clock, EventRecorder, PodEvent};
use podwright_metrics::{EventMetrics, EventOutcome};
use serde_json::json;
use tokio::sync::mpsc;

use self::lane::{EventApi, Lane};
use self::object::RecordedEvent;
use super::call::limited;

/// The number of lanes. With a server latency of 20 ms, they write 200 events in a second.
const LANES: usize = 4;
/// The number of events that wait in one lane. All lanes together hold as many events as client-go (`maxQueuedEvents`, 1.36).
const QUEUE: usize = 250;

/// An event recorder that writes to an API server.
pub struct KubeEvents {
    lanes: Vec<mpsc::Sender<RecordedEvent>>,
    clock: Arc<dyn Clock>,
    metrics: EventMetrics,
}

impl KubeEvents {
    /// Starts the tasks that write, on the current arbiter. They end when the recorder is dropped.
    pub fn start(client: Client, node: &str, clock: Arc<dyn Clock>, metrics: EventMetrics) -> Self {
        Self::over(|| KubeEventApi { client: client.clone() }, node, clock, metrics)
    }

    fn over<A: EventApi>(api: impl Fn() -> A, node: &str, clock: Arc<dyn Clock>, metrics: EventMetrics) -> Self {
        let start = |_| {
            let (sender, events) = mpsc::channel(QUEUE);
            actix::spawn(Lane { api: api(), node: node.to_owned(), events, metrics: metrics.clone() }.run());
            sender
        };
        KubeEvents { lanes: (0..LANES).map(start).collect(), clock, metrics: metrics.clone() }
    }

    fn push(&self, lane: usize, pod: Option<&Arc<PodObject>>, event: PodEvent) {
        let recorded = RecordedEvent { pod: pod.cloned(), event, at: self.clock.now() };
        if self.lanes[lane].try_send(recorded).is_err() {
            self.metrics.ended(EventOutcome::Dropped);
        }
    }
}

impl EventRecorder for KubeEvents {
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        let lane = BuildHasherDefault::<DefaultHasher>::default().hash_one(pod.uid()) % self.lanes.len() as u64;
        self.push(lane as usize, Some(pod), event);
    }

    fn record_of_node(&self, event: PodEvent) {
        self.push(0, None, event);
    }
}

/// The events of an API server.
struct KubeEventApi {
    client: Client,
}

impl KubeEventApi {
    fn of(&self, event: &Event) -> Api<Event> {
        Api::namespaced(self.client.clone(), event.metadata.namespace.as_deref().unwrap_or("default"))
    }
}

impl EventApi for KubeEventApi {
    fn create<'a>(&'a self, event: &'a Event) -> ApiFuture<'a, Event> {
        async move { limited(self.of(event).create(&PostParams::default(), event)).await }.boxed()
    }

    fn repeat<'a>(&'a self, event: &'a Event) -> ApiFuture<'a, Event> {
        async move {
            let name = event.metadata.name.as_deref().unwrap_or_default();
            let patch = json!({
                "count": event.count, "lastTimestamp": event.last_timestamp, "message": event.message});
            limited(self.of(event).patch(name, &PatchParams::default(), &Patch::Strategic(patch))).await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests;
