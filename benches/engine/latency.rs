//! `update_to_sync_latency`: the time from before `update_pod` to the first statement of `sync_pod`, for one of N idle pods
//! at a time.
//!
//! Why: this is how long a change waits on an idle node. Targets: `blocking` (the submitter blocks until the sync ran, and makes
//! the next update at once) has a p50 of 5 µs. Upstream is faster because it gives the caller's core to the worker. `blocking_with_pauses` (with pauses of 200 µs) has
//! three quarters of upstream's p99, and `polling` (the submitter polls) a quarter. The values at all N differ by at most 30 %.

use std::hint;
use std::thread;
use std::time::Duration;

use podwright_core::pod_worker::Update;
use podwright_model::time::Time;

use crate::bed::{self, Scale, scattered};
use crate::hooks::Timing;
use crate::measure::{Samples, pause, scan_until};
use crate::pods::pods;
use crate::suites::Figures;

const WARM_UP: usize = 2_000;
const SAMPLES: usize = 20_000;
const PAUSE: Duration = Duration::from_micros(200);

/// How the submitter waits for the sync.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Submitter {
    /// It blocks, and makes the next update at once.
    Blocks,
    /// It blocks, and pauses before the next update.
    BlocksAndPauses,
    /// It polls without yielding.
    Polls,
}

pub(crate) fn run(scale: Scale, submitter: Submitter) -> Figures {
    let hooks = Timing::new(submitter != Submitter::Polls);
    let engine = bed::start(hooks.clone(), bed::config());
    let pods = pods(scale.n);
    bed::create(&engine, &pods, Time::ZERO);
    scan_until(|| engine.is_quiescent());

    let (warm_up, count) = (scale.of(WARM_UP), scale.of(SAMPLES));
    let mut samples = Samples::with_room(count);
    for (i, pod) in scattered(&pods).take(warm_up + count).enumerate() {
        if submitter == Submitter::BlocksAndPauses {
            pause(PAUSE);
        }
        hooks.reset();
        let start = hooks.now();
        engine.update_pod(Update::sync(pod.clone()));
        let ran = loop {
            match (hooks.ran_at(), submitter) {
                (0, Submitter::Blocks | Submitter::BlocksAndPauses) => thread::park(),
                (0, Submitter::Polls) => hint::spin_loop(),
                (ran, _) => break ran,
            }
        };
        if i >= warm_up {
            samples.push(ran.saturating_sub(start));
        }
    }
    let sorted = samples.sorted();
    vec![("p50_us", sorted.micros_at(0.5)), ("p99_us", sorted.micros_at(0.99)), ("p999_us", sorted.micros_at(0.999))]
}
