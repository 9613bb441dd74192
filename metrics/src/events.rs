//! Metrics of the events that go to the API server.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::actors::PanicMetrics;
use crate::labels::label_values;
use crate::register::podwright;

label_values! {
    /// How the write of an event ended.
    pub enum EventOutcome {
        /// The API server has the event.
        Written = "written",
        /// The queue was full.
        Dropped = "dropped",
        /// The object had too many events.
        Limited = "limited",
        /// The API server refused the event, or could not be reached for a long time.
        Failed = "failed",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: EventOutcome,
}

/// Metrics of the events that go to the API server.
#[derive(Clone, Debug)]
pub struct EventMetrics {
    events: Family<OutcomeLabel, Counter>,
    panics: PanicMetrics,
}

impl EventMetrics {
    /// Registers the families. `panics` counts the panics of the parts that write the events.
    pub fn register(registry: &mut Registry, panics: &PanicMetrics) -> Self {
        EventMetrics {
            panics: panics.clone(),
            events: podwright(
                registry,
                "podwright_events_total",
                "Events for the API server, by outcome",
                Family::default(),
            ),
        }
    }

    /// Counts the panics of the parts that write the events.
    pub fn panics(&self) -> &PanicMetrics {
        &self.panics
    }

    /// Counts an event.
    pub fn ended(&self, outcome: EventOutcome) {
        self.events.get_or_create(&OutcomeLabel { outcome }).inc();
    }
}
