//! `lifecycle`: creates N pods and waits for N syncs, kills them and waits until all are finished, and forgets them in one
//! pass. Each round has the same UIDs.
//!
//! Why: pods are created and deleted in waves, and memory that a wave keeps adds up. Target: five times upstream's
//! lifecycles per second, a quarter of its peak memory, under 100 bytes per pod kept at the end.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::bed::{Bed, Scale};
use crate::measure::{allocations, pause};
use crate::process::{cpu_time, peak_resident, reset_peak, resident, small_pages};
use crate::suites::Figures;

/// Time and CPU time.
pub(crate) fn run(scale: Scale) -> Figures {
    let bed = Bed::new(scale.n);
    live_once(&bed, scale.n);
    let rounds = rounds(scale);
    let lives = (rounds * scale.n) as f64;
    let mut phases = [Duration::ZERO; 3];
    let cpu = cpu_time();
    let ((), allocated) = allocations(|| {
        for _ in 0..rounds {
            for (sum, took) in phases.iter_mut().zip(live_once(&bed, scale.n)) {
                *sum += took;
            }
        }
    });
    let cpu = cpu_time() - cpu;
    let per_pod = |phase: Duration| phase.as_secs_f64() * 1e9 / lives;
    let [create, kill, forget] = phases;
    vec![
        ("lifecycles_per_s", lives / phases.iter().sum::<Duration>().as_secs_f64()),
        ("create_ns_per_pod", per_pod(create)),
        ("kill_ns_per_pod", per_pod(kill)),
        ("forget_ns_per_pod", per_pod(forget)),
        ("cpu_ns_per_pod", cpu.as_secs_f64() * 1e9 / lives),
        ("allocations_per_pod", allocated as f64 / lives),
    ]
}

/// Peak memory, and memory that is kept.
pub(crate) fn memory(scale: Scale) -> Figures {
    small_pages();
    let bed = Bed::new(scale.n);
    live_once(&bed, 1);
    // The recorder's memory is bounded and independent of the number of pods. It is filled before memory is measured.
    for _ in 0..scale.of(FILLING / FEW) {
        live_once(&bed, FEW.min(scale.n));
    }
    let pods_and_recorder = resident();
    reset_peak();
    for _ in 0..=rounds(scale) {
        live_once(&bed, scale.n);
    }
    let peak = peak_resident();
    // The allocator returns freed pages some time later, during the next work of their thread. So the node continues with
    // a few pods.
    for _ in 0..scale.of(30) {
        live_once(&bed, FEW.min(scale.n));
        pause(scale.lasting(Duration::from_millis(100)));
    }
    let kept = resident();
    let more = |bytes: u64| bytes as f64 - pods_and_recorder as f64;
    vec![("peak_mib", more(peak) / f64::from(1 << 20)), ("kept_bytes_per_pod", more(kept) / scale.n as f64)]
}

/// A few pods, as a node has them between waves.
const FEW: usize = 10;
/// This many lifecycles fill the recorder's 12 MiB for pod events: each takes about 300 bytes.
const FILLING: usize = 60_000;

fn rounds(scale: Scale) -> usize {
    scale.of(100_000 / scale.n).max(if scale.shrink == 1 { 3 } else { 1 })
}

/// One round with the first `count` pods. Returns the durations of its three phases.
fn live_once(bed: &Bed, count: usize) -> [Duration; 3] {
    let pods = &bed.pods[..count];
    let start = Instant::now();
    bed.create(pods);
    let created = Instant::now();
    bed.kill(pods);
    let killed = Instant::now();
    let left = bed.engine.sync_known_pods(&HashSet::new());
    let forgotten = Instant::now();
    assert!(left.is_empty() && bed.engine.known_pods() == 0, "one pass forgets all that is finished");
    [created - start, killed - created, forgotten - killed]
}
