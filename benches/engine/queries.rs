//! `query_under_load`: one reader makes four queries in turn over scattered pods, while one thread updates as in
//! `update_storm`, and without updates.
//!
//! Why: configuration, volumes and status writer query all the time, and upstream's queries wait for one lock, up to
//! 213 ms behind a pass. Target: four times upstream's queries per second under storm, a quarter of its p99.9, none over
//! 10 ms.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use podwright_core::pod_worker::Update;
use podwright_model::pod::PodObject;

use crate::bed::{Bed, Scale, scattered};
use crate::measure::Samples;
use crate::suites::Figures;

const COUNTED: Duration = Duration::from_secs(2);
const TIMED: usize = 200_000;
/// The number of queries between two readings of the clock.
const BATCH: usize = 256;

pub(crate) fn under_storm(scale: Scale) -> Figures {
    let bed = Bed::idle(scale.n);
    let over = AtomicBool::new(false);
    let figures = thread::scope(|scope| {
        scope.spawn(|| {
            for pod in bed.pods.iter().cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                bed.engine.update_pod(Update::sync(pod.clone()));
            }
        });
        let figures = read(&bed, scale);
        over.store(true, Ordering::Relaxed);
        figures
    });
    bed.settled();
    figures
}

pub(crate) fn without_storm(scale: Scale) -> Figures {
    read(&Bed::idle(scale.n), scale)
}

fn read(bed: &Bed, scale: Scale) -> Figures {
    let mut pods = scattered(&bed.pods).enumerate();
    let mut queries = 0;
    let start = Instant::now();
    let end = start + scale.lasting(COUNTED);
    while Instant::now() < end {
        for (i, pod) in pods.by_ref().take(BATCH) {
            black_box(query(bed, i, pod));
        }
        queries += BATCH;
    }
    let took = start.elapsed();

    let timed = scale.of(TIMED);
    let mut samples = Samples::with_room(timed);
    for (i, pod) in pods.take(timed) {
        let start = Instant::now();
        black_box(query(bed, i, pod));
        samples.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
    let sorted = samples.sorted();
    vec![
        ("queries_per_s", queries as f64 / took.as_secs_f64()),
        ("p50_us", sorted.micros_at(0.5)),
        ("p99_us", sorted.micros_at(0.99)),
        ("p999_us", sorted.micros_at(0.999)),
        ("max_us", sorted.max_micros()),
    ]
}

/// The four queries that other components make most.
pub(crate) fn query(bed: &Bed, turn: usize, pod: &Arc<PodObject>) -> bool {
    let (engine, uid) = (&bed.engine, pod.uid());
    match turn % 4 {
        0 => engine.is_pod_known_terminated(uid),
        1 => engine.could_have_running_containers(uid),
        2 => engine.should_pod_be_finished(uid),
        _ => engine.is_pod_termination_requested(uid),
    }
}
