//! The events of a controller.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{EventSource, ObjectReference};
use kube::Client;
use parking_lot::Mutex;
use podwright_actors::ports::{Clock, PodEvent};
use podwright_metrics::EventMetrics;

use crate::adapters::kube::events::EventLanes;

/// The events of a controller. Each term as the leader has a recorder of its own, which ends with the term.
pub(super) struct TermEvents {
    client: Client,
    source: EventSource,
    clock: Arc<dyn Clock>,
    metrics: EventMetrics,
    /// The recorder of this term, since its first event.
    recorder: Mutex<Option<Arc<EventLanes>>>,
}

impl TermEvents {
    /// The events of a component, before its first term.
    pub(super) fn new(client: Client, component: &str, clock: Arc<dyn Clock>, metrics: EventMetrics) -> Self {
        let source = EventSource { component: Some(component.to_owned()), host: None };
        TermEvents { client, source, clock, metrics, recorder: Mutex::default() }
    }

    /// Records an event of an object. Never waits. Called in a tokio runtime.
    pub(super) fn record(&self, object: ObjectReference, event: PodEvent) {
        let start = || EventLanes::start(self.client.clone(), &self.source, self.clock.clone(), self.metrics.clone());
        let recorder = self.recorder.lock().get_or_insert_with(|| Arc::new(start())).clone();
        recorder.record(object, event);
    }

    /// Writes the events of this term, and ends the tasks that write them. Returns how many events were not written within `limit`.
    ///
    /// Cancel safe: the tasks go on, and another call waits for them.
    pub(super) async fn close(&self, limit: Duration) -> usize {
        let recorder = self.recorder.lock().clone();
        let Some(recorder) = recorder else { return 0 };
        let unwritten = recorder.close(limit).await;
        *self.recorder.lock() = None;
        unwritten
    }
}
