//! `idle_memory`: the memory of N idle pods without their `Pod` objects.
//!
//! Why: a pod is idle most of its life, and upstream keeps a goroutine stack for each pod. Target: 1,100 bytes per pod.

use crate::bed::{Bed, Scale};
use crate::pods::pods;
use crate::process::{resident, small_pages};
use crate::suites::Figures;

pub(crate) fn run(scale: Scale) -> Figures {
    small_pages();
    // The engine's threads and the allocator's first pages do not depend on the number of pods, so they exist before it is
    // measured.
    let mut bed = Bed::idle(1);
    let nothing = resident();
    bed.pods = pods(scale.n + 1).split_off(1);
    let objects = resident();
    bed.create(&bed.pods);
    bed.settled();
    let idle = resident();
    let per_pod = |more: u64, less: u64| (more as f64 - less as f64) / scale.n as f64;
    vec![("worker_bytes", per_pod(idle, objects)), ("object_bytes", per_pod(objects, nothing))]
}
