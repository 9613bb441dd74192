//! `retry_storm`: every sync fails.
//!
//! Why: a node whose runtime is down must not use its CPU for retries. Target: `no_backoff` takes a quarter of upstream's CPU
//! per retry, `backoff` (the real one) 1 ms of CPU per 1,000 retries.

use std::time::{Duration, Instant};

use podwright_model::time::Time;

use crate::bed::{self, Scale};
use crate::hooks::Failing;
use crate::measure::scan_until;
use crate::pods::pods;
use crate::process::cpu_time;
use crate::suites::Figures;

const RETRIES: usize = 1_000_000;

/// Without a backoff, as fast as possible.
pub(crate) fn at_once(scale: Scale) -> Figures {
    let hooks = Failing::new();
    let engine = bed::start(hooks.clone(), bed::config().error_backoff(Duration::ZERO));
    let pods = pods(scale.n);
    bed::create(&engine, &pods, Time::ZERO);
    hooks.syncs.wait_for(scale.n as u64);
    retries(&hooks, scale.of(RETRIES))
}

/// With the real backoff, until each pod was retried once. The longest backoff with its jitter, 1.5 times the base, ends
/// before the shortest one ends twice.
pub(crate) fn after_backoff(scale: Scale) -> Figures {
    let hooks = Failing::new();
    let backoff = scale.lasting(bed::ERROR_BACKOFF);
    let engine = bed::start(hooks.clone(), bed::config().error_backoff(backoff));
    let pods = pods(scale.n);
    bed::create(&engine, &pods, Time::ZERO);
    hooks.syncs.wait_for(scale.n as u64);
    scan_until(|| engine.is_quiescent());
    retries(&hooks, scale.n)
}

/// Measures until this many more syncs have failed.
fn retries(hooks: &Failing, count: usize) -> Figures {
    let before = hooks.syncs.count();
    let (start, cpu) = (Instant::now(), cpu_time());
    hooks.syncs.wait_for(before + count as u64);
    let (took, cpu) = (start.elapsed(), cpu_time() - cpu);
    let made = (hooks.syncs.count() - before) as f64;
    vec![("retries_per_s", made / took.as_secs_f64()), ("cpu_ms_per_1000", cpu.as_secs_f64() * 1e6 / made)]
}
