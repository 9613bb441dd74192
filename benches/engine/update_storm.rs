//! `update_storm`: one or two producers send a million updates to N idle pods, round robin, without a pause.
//!
//! Why: this is the cost of `update_pod`. Upstream has one lock around all pods, so a second producer only waits
//! for, and allocates 9 to 14 times per update. Target: a quarter of upstream's CPU and time, no call over 10 ms, two
//! producers faster than one, at most two allocations per sync that runs.

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use podwright_core::pod_worker::Update;

use crate::bed::{Bed, Scale};
use crate::measure::{Samples, allocations};
use crate::process::cpu_time;
use crate::suites::Figures;

const UPDATES: usize = 1_000_000;

/// Throughput: no clock is read between calls.
pub(crate) fn throughput(scale: Scale, producers: usize) -> Figures {
    let bed = Bed::idle(scale.n);
    let each = scale.of(UPDATES) / producers;
    let updates = (each * producers) as f64;
    let before = bed.hooks.syncs.count();
    let cpu = cpu_time();
    let ((submitted, quiescent), allocated) = allocations(|| {
        let start = produce(&bed, producers, |bed, first| {
            for pod in bed.pods.iter().cycle().skip(first).take(each) {
                bed.engine.update_pod(Update::sync(pod.clone()));
            }
        });
        let submitted = start.elapsed();
        bed.settled();
        (submitted, start.elapsed())
    });
    let cpu = cpu_time() - cpu;
    let syncs = (bed.hooks.syncs.count() - before) as f64;
    // Allocations that happen once, such as for a producer's thread, change only the fourth digit.
    let per_sync = (allocated as f64 / syncs * 100.0).round() / 100.0;
    vec![
        ("calls_per_s", updates / submitted.as_secs_f64()),
        ("quiescent_ms", quiescent.as_secs_f64() * 1e3),
        ("syncs", syncs),
        ("cpu_ns_per_update", cpu.as_secs_f64() * 1e9 / updates),
        ("allocations_per_update", allocated as f64 / updates),
        ("allocations_per_sync", per_sync),
    ]
}

/// One producer that reads the clock around each call.
pub(crate) fn single_calls(scale: Scale) -> Figures {
    let bed = Bed::idle(scale.n);
    let updates = scale.of(UPDATES);
    let mut samples = Samples::with_room(updates);
    for pod in bed.pods.iter().cycle().take(updates) {
        let start = Instant::now();
        bed.engine.update_pod(Update::sync(pod.clone()));
        samples.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    bed.settled();
    let sorted = samples.sorted();
    vec![
        ("p50_us", sorted.micros_at(0.5)),
        ("p99_us", sorted.micros_at(0.99)),
        ("p999_us", sorted.micros_at(0.999)),
        ("max_us", sorted.max_micros()),
    ]
}

/// Runs the producers to their end. Each gets the index of its first pod. Returns when they were released.
fn produce(bed: &Bed, producers: usize, work: impl Fn(&Bed, usize) + Sync) -> Instant {
    let ready = Barrier::new(producers + 1);
    thread::scope(|scope| {
        for k in 0..producers {
            let (ready, work) = (&ready, &work);
            scope.spawn(move || {
                ready.wait();
                work(bed, k * bed.pods.len() / producers);
            });
        }
        let start = Instant::now();
        ready.wait();
        start
    })
}
