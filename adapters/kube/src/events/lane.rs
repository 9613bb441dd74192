//! Writes the events of some objects, one after the other.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Event, EventSource};
use parking_lot::Mutex;
use podwright_metrics::{EventMetrics, EventOutcome};
use podwright_model::text::error_chain;
use podwright_ports::{ApiError, ApiFuture};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::correlate::{Correlator, EventWrite};
use super::object::{RecordedEvent, object, qualified_name};
use super::rate::{EventRate, TokenBucket};

/// The number of tries for an event while the API server cannot be reached (client-go `maxTriesPerEvent`, 1.36).
const TRIES: u32 = 12;
/// The delay between two tries (client-go `defaultSleepDuration`, 1.36). The first delay is a random part of it, so that the nodes
/// do not all come back at once.
const BETWEEN_TRIES: Duration = Duration::from_secs(10);
/// The delay after a try while the recorder closes. A server that is back then gets the events in time.
const BETWEEN_LAST_TRIES: Duration = Duration::from_secs(1);

/// Stores events in the API server. Each call has a timeout of its own.
pub(super) trait EventApi: Send + Sync + 'static {
    /// Creates an event, and returns it as the server stored it.
    fn create<'a>(&'a self, event: &'a Event) -> ApiFuture<'a, Event>;

    /// Changes the count, the last time and the message of the event that has the name of `event`.
    fn repeat<'a>(&'a self, event: &'a Event) -> ApiFuture<'a, Event>;
}

/// The rate of the requests of all lanes together.
pub(super) struct SharedRate {
    /// `None` if there is no limit.
    tokens: Option<Mutex<TokenBucket>>,
    start: Instant,
}

impl SharedRate {
    pub(super) fn new(rate: Option<EventRate>) -> Self {
        let tokens = rate.map(|rate| Mutex::new(TokenBucket::new(rate)));
        SharedRate { tokens, start: Instant::now() }
    }

    /// Waits until the next request may be sent.
    async fn wait(&self) {
        let Some(tokens) = &self.tokens else { return };
        let now = Instant::now();
        let delay = tokens.lock().take(now - self.start);
        if !delay.is_zero() {
            sleep_until(now + delay).await;
        }
    }
}

/// A queue of events, and the task that empties it.
pub(super) struct Lane<A> {
    api: A,
    /// Who reports the events.
    source: EventSource,
    events: mpsc::Receiver<RecordedEvent>,
    metrics: EventMetrics,
    correlator: Correlator,
    rate: Arc<SharedRate>,
    /// The number of the last event. Two events of one object never have the same number.
    number: u64,
}

impl<A: EventApi> Lane<A> {
    pub(super) fn new(
        api: A,
        source: EventSource,
        events: mpsc::Receiver<RecordedEvent>,
        metrics: EventMetrics,
        rate: Arc<SharedRate>,
    ) -> Self {
        Lane { api, source, events, metrics, correlator: Correlator::new(), rate, number: 0 }
    }

    /// Writes until the recorder is gone, or until the queue is empty after `closing` was cancelled. May be called again after a panic,
    /// with which one event is lost.
    pub(super) async fn run(&mut self, closing: &CancellationToken) {
        while let Some(recorded) = self.next(closing).await {
            let at = recorded.at;
            self.number = at.as_nanos().max(self.number + 1);
            let Some(write) = self.correlator.correlate(object(recorded, &self.source, self.number), at) else {
                self.metrics.ended(EventOutcome::Limited);
                continue;
            };
            let outcome = match self.write(&write, closing).await {
                Some(stored) => {
                    self.correlator.remember(write.key, &stored);
                    EventOutcome::Written
                }
                None => EventOutcome::Failed,
            };
            self.metrics.ended(outcome);
        }
    }

    /// The next event of the queue.
    async fn next(&mut self, closing: &CancellationToken) -> Option<RecordedEvent> {
        if let Some(event) = closing.run_until_cancelled(self.events.recv()).await {
            return event;
        }
        self.events.close();
        self.events.recv().await
    }

    /// Writes an event. Returns it as the server stored it, or `None` if the server refuses it or cannot be reached.
    async fn write(&self, write: &EventWrite, closing: &CancellationToken) -> Option<Event> {
        for tries in 1..=TRIES {
            let error = match self.try_write(write).await {
                Ok(stored) => return Some(stored),
                Err(error) => error,
            };
            let Event { involved_object, reason, .. } = &write.event;
            let (component, kind) = (self.source.component.as_deref(), involved_object.kind.as_deref());
            let (object, reason) = (qualified_name(involved_object), reason.as_deref());
            if !matches!(error, ApiError::Unavailable { .. }) {
                let error = error_chain(&error);
                tracing::debug!(component, kind, object, reason, %error, "the API server refused an event");
                return None;
            }
            if tries == TRIES {
                let error = error_chain(&error);
                tracing::warn!(component, kind, object, reason, tries, %error, "cannot write an event");
                return None;
            }
            let (failed, at_least) = (Instant::now(), error.retry_after());
            let part = if tries == 1 { fastrand::f64() } else { 1.0 };
            let delay = sleep(BETWEEN_TRIES.mul_f64(part).max(at_least));
            if closing.run_until_cancelled(delay).await.is_none() {
                sleep_until(failed + BETWEEN_LAST_TRIES.max(at_least)).await;
            }
        }
        None
    }

    fn try_write<'a>(&'a self, write: &'a EventWrite) -> BoxFuture<'a, Result<Event, ApiError>> {
        async move {
            self.rate.wait().await;
            if write.is_repetition {
                match self.api.repeat(&write.event).await {
                    // The API server keeps events for an hour by default.
                    Err(ApiError::NotFound) => self.rate.wait().await,
                    repeated => return repeated,
                }
            }
            self.api.create(&write.event).await
        }
        .boxed()
    }
}
