//! `housekeeping`: `sync_known_pods` over N idle pods, with all of them desired and with none.
//!
//! Why: the pass runs every two seconds, and a call that waits for it waits every two seconds. Target: a thirtieth of
//! upstream's time at 100,000 pods, and no update or query that waits more than 500 µs for a pass.

use std::collections::HashSet;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use podwright_core::pod_worker::Update;
use podwright_model::ids::PodUid;

use crate::bed::{Bed, Scale, scattered};
use crate::measure::{RunDelay, Samples, median, pause};
use crate::queries::query;
use crate::suites::Figures;

/// The pause between two calls of the prober. Without it the prober would slow the passes that it measures.
const PROBE_PAUSE: Duration = Duration::from_micros(50);
/// The shortest time for which passes run beside the prober.
const PROBED: Duration = Duration::from_secs(1);

/// The UIDs of all pods, with the hasher that the agent uses.
fn all(bed: &Bed) -> HashSet<PodUid, foldhash::fast::RandomState> {
    bed.pods.iter().map(|pod| pod.uid().clone()).collect()
}

fn passes(scale: Scale) -> usize {
    scale.of((1_000_000 / scale.n).clamp(21, 501))
}

/// Passes with all pods desired, which change nothing.
pub(crate) fn all_desired(scale: Scale) -> Figures {
    let bed = Bed::idle(scale.n);
    let desired = all(&bed);
    let calls = (0..passes(scale)).map(|_| {
        let start = Instant::now();
        let known = bed.engine.sync_known_pods(&desired);
        let took = start.elapsed();
        assert_eq!(known.len(), scale.n, "every idle pod has a record");
        took.as_secs_f64()
    });
    let call = median(calls.collect());
    vec![("call_us", call * 1e6), ("ns_per_pod", call * 1e9 / scale.n as f64)]
}

/// A pass with no pod desired, which stops all pods.
pub(crate) fn none_desired(scale: Scale) -> Figures {
    let bed = Bed::idle(scale.n);
    let start = Instant::now();
    black_box(bed.engine.sync_known_pods(&HashSet::<PodUid>::new()));
    let call = start.elapsed();
    bed.hooks.clean_ups.wait_for(scale.n as u64);
    bed.settled();
    let finished = start.elapsed();
    vec![("call_us", call.as_secs_f64() * 1e6), ("finished_us", finished.as_secs_f64() * 1e6)]
}

/// How long updates and queries of another thread take during passes that change nothing.
pub(crate) fn waits_all(scale: Scale) -> Figures {
    let bed = Bed::idle(scale.n);
    let desired = all(&bed);
    let mut waits = Waits::none_yet();
    waits.during(&bed, || {
        let end = Instant::now() + scale.lasting(PROBED);
        let mut made = 0;
        while made < passes(scale) || Instant::now() < end {
            black_box(bed.engine.sync_known_pods(&desired));
            made += 1;
        }
    });
    waits.figures()
}

/// How long updates and queries of another thread take while a pass stops all pods. Each pass needs idle pods, so it gets
/// its own engine.
pub(crate) fn waits_none(scale: Scale) -> Figures {
    let mut waits = Waits::none_yet();
    for _ in 0..scale.of((100_000 / scale.n).clamp(3, 50)) {
        let bed = Bed::idle(scale.n);
        waits.during(&bed, || {
            black_box(bed.engine.sync_known_pods(&HashSet::<PodUid>::new()));
            bed.hooks.clean_ups.wait_for(scale.n as u64);
        });
    }
    waits.figures()
}

/// How long the calls of the prober took.
struct Waits {
    updates: Samples,
    queries: Samples,
}

impl Waits {
    fn none_yet() -> Self {
        Waits { updates: Samples::with_room(0), queries: Samples::with_room(0) }
    }

    /// Probes from the start of `passes` to its end, at least once.
    fn during(&mut self, bed: &Bed, passes: impl FnOnce()) {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| self.probe(bed, &over));
            passes();
            over.store(true, Ordering::Release);
        });
    }

    fn probe(&mut self, bed: &Bed, over: &AtomicBool) {
        let delay = RunDelay::of_this_thread();
        for (turn, pod) in scattered(&bed.pods).enumerate() {
            let before = delay.nanos();
            let start = Instant::now();
            bed.engine.update_pod(Update::sync(pod.clone()));
            let updated = start.elapsed();
            let between = delay.nanos();
            let start = Instant::now();
            black_box(query(bed, turn, pod));
            let queried = start.elapsed();
            self.updates.push(waited(updated, between - before));
            self.queries.push(waited(queried, delay.nanos() - between));
            if over.load(Ordering::Acquire) {
                break;
            }
            pause(PROBE_PAUSE);
        }
    }

    fn figures(self) -> Figures {
        let (updates, queries) = (self.updates.sorted(), self.queries.sorted());
        vec![
            ("update_p999_us", updates.micros_at(0.999)),
            ("update_max_us", updates.max_micros()),
            ("query_p999_us", queries.micros_at(0.999)),
            ("query_max_us", queries.max_micros()),
        ]
    }
}

/// The duration of a call without the time in which its thread had no core.
fn waited(took: Duration, delayed: u64) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).saturating_sub(delayed)
}
