//! Messages and refusals of the engine's actors, and panics of hooks, handlers and background parts.

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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PartLabel {
    part: &'static str,
}

/// The panics that were caught.
#[derive(Clone, Debug)]
pub struct PanicMetrics {
    hook_panics: Counter,
    parts: Family<PartLabel, Counter>,
}

impl PanicMetrics {
    /// Registers the family.
    pub fn register(registry: &mut Registry) -> Self {
        PanicMetrics {
            hook_panics: podwright(
                registry,
                "podwright_hook_panics_total",
                "Panics in hooks and handlers that were caught",
                Counter::default(),
            ),
            parts: podwright(
                registry,
                "podwright_part_panics_total",
                "Panics that ended a background part, which starts again after a delay",
                Family::default(),
            ),
        }
    }

    /// A panic in a hook or handler was caught.
    pub fn caught(&self) {
        self.hook_panics.inc();
    }

    /// A background part begins. Its panics count from zero, so that the first one is an increase.
    pub fn part_begins(&self, part: &'static str) {
        let _zero = self.parts.get_or_create_owned(&PartLabel { part });
    }

    /// A panic has ended a background part. It also counts as a panic in a hook or handler.
    pub fn part_panicked(&self, part: &'static str) {
        self.caught();
        self.parts.get_or_create_owned(&PartLabel { part }).inc();
    }
}

/// The metrics that all actors have.
#[derive(Clone, Debug)]
pub struct ActorsMetrics {
    messages: Family<ActorLabel, Counter>,
    refusals: Family<ActorLabel, Counter>,
    handling: Family<ActorLabel, Histogram>,
    panics: PanicMetrics,
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
            panics: PanicMetrics::register(registry),
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
        self.panics.caught();
    }

    /// The counter of [`hook_panicked`](Self::hook_panicked).
    pub fn panics(&self) -> &PanicMetrics {
        &self.panics
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
