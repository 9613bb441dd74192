//! The events of a controller.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{EventSource, ObjectReference};
use kube::Client;
use parking_lot::Mutex;
use podwright_metrics::EventMetrics;
use podwright_ports::{Clock, PodEvent};

use podwright_kube::EventLanes;

/// The events of a controller. Each term as the leader has a recorder of its own, which ends with the term.
pub(super) struct TermEvents {
    client: Client,
    source: EventSource,
    clock: Arc<dyn Clock>,
    metrics: EventMetrics,
    /// The last one is the recorder of this term, since its first event. The others close: their terms have ended.
    recorders: Mutex<Vec<Arc<EventLanes>>>,
}

impl TermEvents {
    /// The events of a component, before its first term.
    pub(super) fn new(client: Client, component: &str, clock: Arc<dyn Clock>, metrics: EventMetrics) -> Self {
        let source = EventSource { component: Some(component.to_owned()), host: None };
        TermEvents { client, source, clock, metrics, recorders: Mutex::default() }
    }

    /// Records an event of an object. Never waits. Called in a tokio runtime.
    pub(super) fn record(&self, object: ObjectReference, event: PodEvent) {
        self.recorder().record(object, event);
    }

    /// The recorder of this term. A recorder that closes is that of an earlier term.
    fn recorder(&self) -> Arc<EventLanes> {
        let mut recorders = self.recorders.lock();
        if let Some(last) = recorders.last().filter(|last| !last.is_closing()) {
            return last.clone();
        }
        let started = EventLanes::start(self.client.clone(), &self.source, self.clock.clone(), self.metrics.clone());
        let started = Arc::new(started);
        recorders.push(started.clone());
        started
    }

    /// Writes the events of this term, and ends the tasks that write them. Returns how many events were not written within `limit`.
    ///
    /// Cancel safe: the tasks go on, another call waits for them, and a later event has a new recorder.
    pub(super) async fn close(&self, limit: Duration) -> usize {
        let closed = self.recorders.lock().clone();
        let unwritten: usize = join_all(closed.iter().map(|recorder| recorder.close(limit))).await.into_iter().sum();
        self.recorders.lock().retain(|recorder| !closed.iter().any(|closed| Arc::ptr_eq(closed, recorder)));
        unwritten
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use http_body_util::BodyExt as _;
    use kube::client::Body;
    use podwright_metrics::ControllersMetrics;
    use podwright_ports::TokioClock;
    use tokio::sync::watch;
    use tokio::time::timeout;

    use super::*;

    /// An API server that answers no create before `is_back`, and the reasons of the events that it has stored.
    fn server(is_back: watch::Receiver<bool>) -> (Client, Arc<Mutex<Vec<String>>>) {
        let stored: Arc<Mutex<Vec<String>>> = Arc::default();
        let events = stored.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (mut is_back, events) = (is_back.clone(), events.clone());
            async move {
                let body = request.into_body().collect().await?.to_bytes();
                let _is_back = is_back.wait_for(|is_back| *is_back).await.is_ok();
                let event: serde_json::Value = serde_json::from_slice(&body)?;
                events.lock().push(event["reason"].as_str().unwrap().to_owned());
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Response::new(Body::from(body)))
            }
        });
        (Client::new(service, "default"), stored)
    }

    #[tokio::test(start_paused = true)]
    async fn event_after_a_close_that_was_dropped_is_written() {
        let (comes_back, is_back) = watch::channel(false);
        let (client, stored) = server(is_back);
        let metrics = ControllersMetrics::new().events;
        let events = TermEvents::new(client, "test", Arc::new(TokioClock::new()), metrics);
        let pod = ObjectReference { namespace: Some("test".to_owned()), ..ObjectReference::default() };
        events.record(pod.clone(), PodEvent::normal("First", "message"));
        let dropped = timeout(Duration::from_secs(1), events.close(Duration::from_secs(8))).await;
        assert!(dropped.is_err(), "{dropped:?}");
        events.record(pod, PodEvent::normal("Second", "message"));
        comes_back.send_replace(true);
        assert_eq!(events.close(Duration::from_secs(8)).await, 0);
        stored.lock().sort();
        assert_eq!(*stored.lock(), ["First", "Second"]);
    }
}
