//! Messages, refusals and panics of the engine's actors.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::histogram::{HANDLER, Histogram};
use crate::register::podwright;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ActorLabel {
    actor: &'static str,
}

/// The metrics that all actors have.
#[derive(Clone, Debug)]
pub struct ActorsMetrics {
    messages: Family<ActorLabel, Counter>,
    refusals: Family<ActorLabel, Counter>,
    handling: Family<ActorLabel, Histogram>,
    hook_panics: Counter,
    workers_rebuilt: Counter,
}

/// The metrics of one kind of actor. A clone is one pointer, so that each actor can hold its own. Counting takes no
/// lock.
#[derive(Clone, Debug)]
pub struct ActorMetrics(Arc<ActorMetricsInner>);

#[derive(Debug)]
struct ActorMetricsInner {
    messages: Counter,
    refusals: Counter,
    handling: Histogram,
}

impl ActorsMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        ActorsMetrics {
            messages: podwright(
                registry,
                "podwright_actor_messages_total",
                "Messages that actors took from their mailbox",
                Family::default(),
            ),
            refusals: podwright(
                registry,
                "podwright_actor_refusals_total",
                "Messages that an actor's full or closed mailbox refused",
                Family::default(),
            ),
            handling: podwright(
                registry,
                "podwright_actor_handling_seconds",
                "Seconds that an actor's handler took for one message",
                Family::new_with_constructor(|| Histogram::new(HANDLER)),
            ),
            hook_panics: podwright(
                registry,
                "podwright_hook_panics_total",
                "Panics in hooks and handlers that were caught and became errors of their pod",
                Counter::default(),
            ),
            workers_rebuilt: podwright(
                registry,
                "podwright_workers_rebuilt_total",
                "Pod workers that were lost and replaced from their pod's record",
                Counter::default(),
            ),
        }
    }

    /// The metrics of one kind of actor, such as `pod_worker`. This looks the series up under a lock, so keep the
    /// result.
    pub fn of(&self, actor: &'static str) -> ActorMetrics {
        let label = ActorLabel { actor };
        ActorMetrics(Arc::new(ActorMetricsInner {
            messages: self.messages.get_or_create_owned(&label),
            refusals: self.refusals.get_or_create_owned(&label),
            handling: self.handling.get_or_create_owned(&label),
        }))
    }

    /// A panic in a hook or handler was caught.
    pub fn hook_panicked(&self) {
        self.hook_panics.inc();
    }

    /// A lost pod worker was rebuilt.
    pub fn worker_rebuilt(&self) {
        self.workers_rebuilt.inc();
    }
}

impl ActorMetrics {
    /// Counts a message that an actor took. It is separate from [`handled`](Self::handled), so that a handler that
    /// panicked is visible.
    pub fn received(&self) {
        self.0.messages.inc();
    }

    /// Counts a message that an actor refused.
    pub fn refused(&self) {
        self.0.refusals.inc();
    }

    /// Counts a handler that returned.
    pub fn handled(&self, took: Duration) {
        self.0.handling.observe(took);
    }
}
