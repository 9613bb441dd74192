//! One round of image garbage collection: list, decide, remove.

use std::sync::Arc;

use parking_lot::Mutex;
use podwright_metrics::{ImageRemoval, Metrics};

use super::plan::{ImageGcPolicy, ImageLedger, Removal};
use crate::config::resource_amount::binary;
use crate::metered::guarded;
use crate::ports::{Clock, EventRecorder, ImageStore, PodEvent, RuntimeError};
use crate::text::error_chain;
use crate::texts::images;
use crate::time::Time;

/// Removes unused images.
pub(crate) struct ImageCollector {
    store: Arc<dyn ImageStore>,
    events: Arc<dyn EventRecorder>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    policy: ImageGcPolicy,
    started: Time,
    ledger: Mutex<ImageLedger>,
    /// The number of rounds in a row that failed.
    failures: Mutex<u32>,
    /// Held during a removal, so that a round and [`remove_unused`](Self::remove_unused) do not overlap.
    turn: tokio::sync::Mutex<()>,
}

/// A round failed, or could not free enough space.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum CollectError {
    /// The runtime did not list its images.
    #[error("cannot list images")]
    List(#[source] RuntimeError),
    /// The runtime did not report the use of the image disk.
    #[error("cannot read the use of the image disk")]
    Disk(#[source] RuntimeError),
    /// The disk has a capacity of zero.
    #[error("{}", images::NO_CAPACITY)]
    NoCapacity,
    /// Some images could not be removed.
    #[error("cannot remove {failed} images; the first error is")]
    Remove {
        /// The number of images.
        failed: usize,
        /// The error of the first one.
        #[source]
        first: RuntimeError,
    },
    /// The unused images do not take enough space.
    #[error("{}", images::not_enough_freed(*.used, *.capacity, *.freed))]
    NotEnough {
        /// The used part of the disk before the removals, in percent.
        used: u8,
        /// The size of the disk, in bytes.
        capacity: u64,
        /// The number of bytes that were freed.
        freed: u64,
    },
}

impl ImageCollector {
    /// A collector that knows no image yet.
    pub(crate) fn new(
        store: Arc<dyn ImageStore>,
        policy: ImageGcPolicy,
        events: Arc<dyn EventRecorder>,
        clock: Arc<dyn Clock>,
        metrics: Metrics,
    ) -> Self {
        let started = clock.now();
        ImageCollector {
            store,
            events,
            clock,
            metrics,
            policy,
            started,
            ledger: Mutex::default(),
            failures: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Removes every image that nothing uses and that is not new, whatever the policy (upstream `DeleteUnusedImages`, kubelet 1.36).
    /// Waits for a round that is under way.
    ///
    /// # Errors
    /// [`CollectError`]. An image that cannot be removed does not keep other images from being removed.
    pub(crate) async fn remove_unused(&self) -> Result<(), CollectError> {
        let _turn = self.turn.lock().await;
        let images = guarded(&self.metrics, || self.store.images()).await.map_err(CollectError::List)?;
        let now = self.clock.now();
        let unused = {
            let mut ledger = self.ledger.lock();
            ledger.note(images, now);
            ledger.spare(&self.policy, now)
        };
        let mut failed = Vec::new();
        self.remove(unused, u64::MAX, ImageRemoval::Space, &mut failed).await;
        match failed.first() {
            Some(first) => Err(CollectError::Remove { failed: failed.len(), first: first.clone() }),
            None => Ok(()),
        }
    }

    /// Runs one round. Waits for another removal that is under way.
    ///
    /// # Errors
    /// [`CollectError`]. An image that cannot be removed does not keep other images from being removed.
    pub(crate) async fn collect(&self) -> Result<(), CollectError> {
        if self.policy.is_off() {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        let result = self.round().await;
        let failures = {
            let mut failures = self.failures.lock();
            *failures = if result.is_err() { failures.saturating_add(1) } else { 0 };
            *failures
        };
        if let Err(error) = &result {
            let reason = match error {
                CollectError::NoCapacity => Some("InvalidDiskCapacity"),
                CollectError::NotEnough { .. } => Some("FreeDiskSpaceFailed"),
                CollectError::List(_) | CollectError::Disk(_) | CollectError::Remove { .. } => None,
            };
            if let Some(reason) = reason {
                self.events.record_of_node(PodEvent::warning(reason, error_chain(error).to_string()));
            }
            // The runtime may still be starting when the first round fails.
            if failures > 1 {
                self.events.record_of_node(PodEvent::warning("ImageGCFailed", error_chain(error).to_string()));
            }
        }
        result
    }

    async fn round(&self) -> Result<(), CollectError> {
        let images = guarded(&self.metrics, || self.store.images()).await.map_err(CollectError::List)?;
        let now = self.clock.now();
        let old = {
            let mut ledger = self.ledger.lock();
            ledger.note(images, now);
            ledger.too_old(&self.policy, self.started, now)
        };
        let mut failed = Vec::new();
        self.remove(old, u64::MAX, ImageRemoval::Age, &mut failed).await;

        let disk = guarded(&self.metrics, || self.store.disk()).await.map_err(CollectError::Disk)?;
        if disk.capacity == 0 {
            return Err(CollectError::NoCapacity);
        }
        let mut short = None;
        if let Some(excess) = self.policy.excess(disk) {
            let spare = self.ledger.lock().spare(&self.policy, now);
            let [capacity, available, needed] = [disk.capacity, disk.available, excess].map(binary);
            tracing::info!(capacity, available, needed, images = spare.len(), "disk is too full, removing images");
            let freed = self.remove(spare, excess, ImageRemoval::Space, &mut failed).await;
            let (used, capacity) = (disk.used_percent(), disk.capacity);
            short = (freed < excess).then_some(CollectError::NotEnough { used, capacity, freed });
        }
        match (failed.first(), short) {
            (Some(first), _) => Err(CollectError::Remove { failed: failed.len(), first: first.clone() }),
            (None, Some(short)) => Err(short),
            (None, None) => Ok(()),
        }
    }

    /// Removes images until `excess` bytes are freed. Returns the number of freed bytes. A failure does not end the round.
    async fn remove(
        &self,
        removals: Vec<Removal>,
        excess: u64,
        why: ImageRemoval,
        failed: &mut Vec<RuntimeError>,
    ) -> u64 {
        let mut freed = 0;
        for Removal { id, size } in removals {
            if freed >= excess {
                break;
            }
            match guarded(&self.metrics, || self.store.remove_image(&id)).await {
                Ok(()) => {
                    tracing::info!(image.id = %id, size = binary(size), why = why.as_str(), "image removed");
                    self.ledger.lock().forget(&id);
                    self.metrics.containers.image_removed(why);
                    freed = freed.saturating_add(size);
                }
                Err(error) => {
                    tracing::warn!(image.id = %id, error = %error_chain(&error), "image was not removed");
                    failed.push(error);
                }
            }
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;
    use crate::ids::ImageId;
    use crate::pod::PodObject;
    use crate::ports::{DiskUsage, ImageNeed, RuntimeFuture, StoredImage, TokioClock};

    /// Images of 10 bytes each, on a disk of 100.
    #[derive(Default)]
    struct World {
        images: Mutex<Vec<StoredImage>>,
        available: Mutex<u64>,
        stuck: Mutex<Vec<&'static str>>,
        down: Mutex<bool>,
        node_events: Mutex<Vec<String>>,
    }

    impl ImageStore for World {
        fn images(&self) -> RuntimeFuture<'_, Vec<StoredImage>> {
            let down = *self.down.lock();
            let images = self.images.lock().clone();
            async move { if down { Err(RuntimeError::unreachable("gone")) } else { Ok(images) } }.boxed()
        }

        fn disk(&self) -> RuntimeFuture<'_, DiskUsage> {
            let available = *self.available.lock();
            async move { Ok(DiskUsage { capacity: 100, available }) }.boxed()
        }

        fn remove_image<'a>(&'a self, id: &'a ImageId) -> RuntimeFuture<'a, ()> {
            async move {
                if self.stuck.lock().contains(&id.as_str()) {
                    return Err(RuntimeError::failed("it is stuck"));
                }
                self.images.lock().retain(|image| image.id != *id);
                *self.available.lock() += 10;
                Ok(())
            }
            .boxed()
        }
    }

    impl EventRecorder for World {
        fn record(&self, _: &Arc<PodObject>, _: PodEvent) {}

        fn record_of_node(&self, event: PodEvent) {
            self.node_events.lock().push(event.reason.into_owned());
        }
    }

    fn image(id: &str, need: ImageNeed) -> StoredImage {
        StoredImage { id: id.into(), size: 10, need }
    }

    fn collector(world: &Arc<World>, policy: ImageGcPolicy) -> ImageCollector {
        let clock = Arc::new(TokioClock::starting_at(Time::from_secs(1000)));
        ImageCollector::new(world.clone(), policy, world.clone(), clock, Metrics::new())
    }

    fn left(world: &World) -> Vec<String> {
        world.images.lock().iter().map(|image| image.id.to_string()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_image_that_cannot_be_removed_does_not_stop_the_collection() {
        let world = Arc::new(World::default());
        let images = ["a", "b", "c", "d"].map(|id| image(id, ImageNeed::Unused));
        *world.images.lock() = [&images[..], &[image("used", ImageNeed::Used)]].concat();
        *world.available.lock() = 5;
        world.stuck.lock().push("a");
        let collector = collector(&world, ImageGcPolicy::default());
        // All images are too new to be removed.
        assert_eq!(collector.collect().await, Err(CollectError::NotEnough { used: 95, capacity: 100, freed: 0 }));
        assert_eq!(std::mem::take(&mut *world.node_events.lock()), ["FreeDiskSpaceFailed"]);
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert!(matches!(collector.collect().await, Err(CollectError::Remove { failed: 1, .. })));
        assert_eq!(left(&world), ["a", "d", "used"], "no more images are removed than needed");
        assert_eq!(std::mem::take(&mut *world.node_events.lock()), ["ImageGCFailed"], "the second failure in a row");
        assert_eq!(collector.collect().await, Ok(()));
        let text = collector.metrics.encode(podwright_metrics::Format::Classic);
        assert!(text.contains("kubelet_image_garbage_collected_total{reason=\"space\"} 2"), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn only_repeated_image_gc_failures_are_events() {
        let world = Arc::new(World::default());
        *world.available.lock() = 90;
        let collector = collector(&world, ImageGcPolicy::default());
        for (down, events) in [(true, 0), (false, 0), (true, 0), (true, 1), (true, 2)] {
            *world.down.lock() = down;
            assert_eq!(collector.collect().await.is_err(), down);
            assert_eq!(world.node_events.lock().len(), events);
        }
        let off = ImageGcPolicy::new(100, 0, Duration::ZERO, None).unwrap();
        assert_eq!(super::tests::collector(&world, off).collect().await, Ok(()), "the runtime is not called");
    }
}
