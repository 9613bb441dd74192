//! Writes events to the API server, as a kubelet or a controller does.
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
//! - The requests of all lanes together have a rate, if the writer has one (`rate.rs`).
//! - While the API server cannot be reached, a lane tries its first event again, up to 12 times, and its queue fills up. While
//!   the recorder closes, the lane tries again each second.
//!
//! `kube::runtime::events::Recorder` is not used. It writes events of the group `events.k8s.io` with a `series`. Their `count`,
//! `firstTimestamp`, `lastTimestamp` and `source` are empty in `core/v1`, which `kubectl describe` and the programs around a kubelet
//! read. It also has no queue, no limit and no combination of similar events, and its caller waits for each write.

mod correlate;
mod lane;
mod object;
mod rate;

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use podwright_metrics::{EventMetrics, EventOutcome};
use podwright_model::pod::PodObject;
use podwright_parts::Parts;
use podwright_ports::{ApiFuture, Clock, EventRecorder, PodEvent};
use serde_json::json;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::lane::{EventApi, Lane, SharedRate};
use self::object::{COMPONENT, RecordedEvent, node_reference, pod_reference};
pub use self::rate::EventRate;
use super::call::limited;

/// The number of lanes. With a server latency of 20 ms and no rate, they write 200 events in a second.
const LANES: usize = 4;
/// The number of events that wait in one lane. All lanes together hold as many events as client-go (`maxQueuedEvents`, 1.36).
const QUEUE: usize = 250;

/// An event recorder of a node that writes to an API server.
pub struct KubeEvents {
    node: String,
    lanes: EventLanes,
}

impl KubeEvents {
    /// Starts the tasks that write, with no more requests than `rate` if there is one. They end when the recorder is closed or dropped.
    /// Called in a tokio runtime.
    pub fn start(
        client: Client,
        node: &str,
        clock: Arc<dyn Clock>,
        metrics: EventMetrics,
        rate: Option<EventRate>,
    ) -> Self {
        Self::over(|| KubeEventApi { client: client.clone() }, node, clock, metrics, rate)
    }

    fn over<A: EventApi>(
        api: impl Fn() -> A,
        node: &str,
        clock: Arc<dyn Clock>,
        metrics: EventMetrics,
        rate: Option<EventRate>,
    ) -> Self {
        let source = EventSource { component: Some(COMPONENT.to_owned()), host: Some(node.to_owned()) };
        KubeEvents { node: node.to_owned(), lanes: EventLanes::over(api, &source, clock, metrics, rate) }
    }
}

impl EventRecorder for KubeEvents {
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        self.lanes.record(pod_reference(pod), event);
    }

    fn record_of_node(&self, event: PodEvent) {
        self.lanes.record(node_reference(&self.node), event);
    }

    fn close(&self, limit: Duration) -> BoxFuture<'_, usize> {
        self.lanes.close(limit).boxed()
    }
}

/// The queues of the events of one component, and the tasks that write them to the API server.
pub struct EventLanes {
    lanes: Vec<mpsc::Sender<RecordedEvent>>,
    /// Each lane as a part. Their stop token is cancelled when the queues are given up.
    parts: Parts,
    /// Cancelled when no event is recorded any more: the lanes end when their queues are empty.
    closing: CancellationToken,
    clock: Arc<dyn Clock>,
    metrics: EventMetrics,
}

impl EventLanes {
    /// Starts the tasks that write. They end when this value is dropped. Called in a tokio runtime.
    pub fn start(client: Client, source: &EventSource, clock: Arc<dyn Clock>, metrics: EventMetrics) -> Self {
        Self::over(|| KubeEventApi { client: client.clone() }, source, clock, metrics, None)
    }

    fn over<A: EventApi>(
        api: impl Fn() -> A,
        source: &EventSource,
        clock: Arc<dyn Clock>,
        metrics: EventMetrics,
        rate: Option<EventRate>,
    ) -> Self {
        let (parts, closing) =
            (Parts::new(metrics.panics().clone(), CancellationToken::new()), CancellationToken::new());
        let rate = Arc::new(SharedRate::new(rate));
        let start = |_| {
            let (sender, events) = mpsc::channel(QUEUE);
            let lane = Arc::new(Mutex::new(Lane::new(api(), source.clone(), events, metrics.clone(), rate.clone())));
            let closing = closing.clone();
            let work = move || {
                let (lane, closing) = (lane.clone(), closing.clone());
                async move { lane.lock().await.run(&closing).await }
            };
            let counted = metrics.clone();
            parts.spawn_reporting("event_writer", work, move |_| counted.ended(EventOutcome::Failed));
            sender
        };
        let lanes = (0..LANES).map(start).collect();
        EventLanes { lanes, parts, closing, clock, metrics: metrics.clone() }
    }

    /// Writes the events that were recorded, and ends the tasks. Later events, and those that are not written within `limit`, are dropped
    /// and counted. Returns the number of the latter.
    ///
    /// Cancel safe: the tasks go on.
    pub async fn close(&self, limit: Duration) -> usize {
        self.closing.cancel();
        if timeout(limit, self.parts.ended()).await.is_ok() {
            return 0;
        }
        // Each lane that still runs also holds the event that it writes.
        let queued: usize = self.lanes.iter().map(|lane| lane.max_capacity() - lane.capacity()).sum();
        let unwritten = queued + self.parts.running();
        (0..unwritten).for_each(|_| self.metrics.ended(EventOutcome::Dropped));
        self.parts.stop().cancel();
        self.parts.ended().await;
        unwritten
    }

    /// Whether later events are dropped.
    pub fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }

    /// Queues an event of an object. Never waits. An event for a full queue is dropped and counted.
    pub fn record(&self, object: ObjectReference, event: PodEvent) {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let lane = hasher.hash_one(&object.uid) as usize % self.lanes.len();
        let recorded = RecordedEvent { object, event, at: self.clock.now() };
        if self.lanes[lane].try_send(recorded).is_err() {
            self.metrics.ended(EventOutcome::Dropped);
        }
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
