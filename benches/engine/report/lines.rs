//! The lines of the table: the figure, upstream's value and the target.

use std::fmt;

use super::SIZES;

/// One line: a figure at each size.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) suite: &'static str,
    pub(crate) figure: &'static str,
    /// Medians of kubelet 1.36.2's pod workers (Go 1.27, 2 vCPU AMD EPYC, Linux 6.18, no logging, no metrics), at each of
    /// [`SIZES`].
    pub(crate) upstream: Option<[f64; SIZES.len()]>,
    pub(crate) target: Target,
}

/// The target of a figure.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Target {
    /// No target: the figure explains the others.
    None,
    /// At most this value.
    AtMost(f64),
    /// At most this share of upstream's value.
    Share(f64),
    /// At most this share of upstream's value at the largest size.
    ShareAtMost(f64),
    /// At least upstream's value times this.
    Times(f64),
}

impl Target {
    /// `None` if there is no target, or none for this size.
    pub(crate) fn is_met(self, n: usize, ours: f64, upstream: Option<f64>) -> Option<bool> {
        match self {
            Target::None => None,
            Target::AtMost(limit) => Some(ours <= limit),
            Target::Share(share) => Some(ours <= upstream? * share),
            Target::ShareAtMost(share) => (Some(&n) == SIZES.last()).then_some(ours <= upstream? * share),
            Target::Times(times) => Some(ours >= upstream? * times),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::None => Ok(()),
            Target::AtMost(limit) => write!(f, "at most {limit}"),
            Target::Share(share) | Target::ShareAtMost(share) => write!(f, "at most {share:.3} of it"),
            Target::Times(times) => write!(f, "at least {times} of it"),
        }
    }
}

const fn line(
    name: &'static str,
    unit: &'static str,
    suite: &'static str,
    figure: &'static str,
    upstream: Option<[f64; SIZES.len()]>,
    target: Target,
) -> Line {
    Line { name, unit, suite, figure, upstream, target }
}

const UPDATE_STORM: &str = "update_storm-1_producer";
const UPDATE_STORM_2: &str = "update_storm-2_producers";
const UPDATE_STORM_CALLS: &str = "update_storm-calls";
const LIFECYCLE: &str = "lifecycle";
const LIFECYCLE_MEMORY: &str = "lifecycle-memory";
const SYNC_BLOCKING: &str = "update_to_sync_latency-blocking";
const SYNC_WITH_PAUSES: &str = "update_to_sync_latency-blocking_with_pauses";
const SYNC_POLLING: &str = "update_to_sync_latency-polling";
const HOUSEKEEPING_ALL: &str = "housekeeping-all";
const HOUSEKEEPING_NONE: &str = "housekeeping-none";
const HOUSEKEEPING_ALL_WAITS: &str = "housekeeping-all-waits";
const HOUSEKEEPING_NONE_WAITS: &str = "housekeeping-none-waits";
const QUERY_STORM: &str = "query_under_load-storm";
const QUERY_QUIET: &str = "query_under_load-quiet";
const IDLE_MEMORY: &str = "idle_memory";
const RETRY_NO_BACKOFF: &str = "retry_storm-no_backoff";
const RETRY_BACKOFF: &str = "retry_storm-backoff";

/// All lines. Upstream has no value for figures that only this bench has.
#[rustfmt::skip]
pub(crate) const LINES: &[Line] = &[
    line("update storm, 1 producer: submit", "calls/s", UPDATE_STORM, "calls_per_s", Some([1_660e3, 988e3, 413e3, 296e3]), Target::None),
    line("update storm, 1 producer: start to quiescent", "ms", UPDATE_STORM, "quiescent_ms", Some([605.0, 1_010.0, 2_440.0, 3_480.0]), Target::Share(0.25)),
    line("update storm, 1 producer: syncs", "", UPDATE_STORM, "syncs", Some([331e3, 711e3, 936e3, 1e6]), Target::None),
    line("update storm, 1 producer: CPU per update", "ns", UPDATE_STORM, "cpu_ns_per_update", Some([966.0, 1_830.0, 3_770.0, 5_060.0]), Target::Share(0.25)),
    line("update storm, 1 producer: allocations per update", "", UPDATE_STORM, "allocations_per_update", None, Target::None),
    line("update storm, 1 producer: allocations per sync", "", UPDATE_STORM, "allocations_per_sync", None, Target::AtMost(2.0)),
    line("update storm, 1 producer: one call p50", "µs", UPDATE_STORM_CALLS, "p50_us", Some([0.39, 0.59, 0.82, 1.17]), Target::None),
    line("update storm, 1 producer: one call p99", "µs", UPDATE_STORM_CALLS, "p99_us", None, Target::None),
    line("update storm, 1 producer: one call p99.9", "µs", UPDATE_STORM_CALLS, "p999_us", Some([50.0, 119.0, 183.0, 181.0]), Target::None),
    line("update storm, 1 producer: one call max", "µs", UPDATE_STORM_CALLS, "max_us", Some([3_410.0, 5_540.0, 31_800.0, 147_000.0]), Target::AtMost(10_000.0)),
    line("update storm, 2 producers: submit", "calls/s", UPDATE_STORM_2, "calls_per_s", Some([1_460e3, 1_070e3, 443e3, 299e3]), Target::None),
    line("update storm, 2 producers: start to quiescent", "ms", UPDATE_STORM_2, "quiescent_ms", None, Target::None),
    line("update storm, 2 producers: syncs", "", UPDATE_STORM_2, "syncs", None, Target::None),
    line("update storm, 2 producers: CPU per update", "ns", UPDATE_STORM_2, "cpu_ns_per_update", None, Target::None),
    line("lifecycle: rate", "pods/s", LIFECYCLE, "lifecycles_per_s", Some([166e3, 140e3, 101e3, 84.4e3]), Target::Times(5.0)),
    line("lifecycle: create", "ns/pod", LIFECYCLE, "create_ns_per_pod", None, Target::None),
    line("lifecycle: kill", "ns/pod", LIFECYCLE, "kill_ns_per_pod", None, Target::None),
    line("lifecycle: forget", "ns/pod", LIFECYCLE, "forget_ns_per_pod", None, Target::None),
    line("lifecycle: CPU per pod", "ns", LIFECYCLE, "cpu_ns_per_pod", Some([7_450.0, 9_910.0, 14_500.0, 17_100.0]), Target::None),
    line("lifecycle: allocations per pod", "", LIFECYCLE, "allocations_per_pod", None, Target::None),
    line("lifecycle: peak RSS over pods and recorder", "MiB", LIFECYCLE_MEMORY, "peak_mib", Some([0.85, 6.6, 70.5, 711.0]), Target::Share(0.25)),
    line("lifecycle: RSS kept over both at the end", "bytes/pod", LIFECYCLE_MEMORY, "kept_bytes_per_pod", None, Target::AtMost(100.0)),
    line("update to sync, blocking: p50", "µs", SYNC_BLOCKING, "p50_us", Some([0.68, 0.89, 2.67, 4.02]), Target::AtMost(5.0)),
    line("update to sync, blocking: p99", "µs", SYNC_BLOCKING, "p99_us", Some([10.6, 10.2, 13.5, 17.2]), Target::None),
    line("update to sync, blocking: p99.9", "µs", SYNC_BLOCKING, "p999_us", None, Target::None),
    line("update to sync, with pauses: p50", "µs", SYNC_WITH_PAUSES, "p50_us", Some([9.5, 12.4, 14.5, 13.4]), Target::None),
    line("update to sync, with pauses: p99", "µs", SYNC_WITH_PAUSES, "p99_us", Some([36.6, 43.5, 49.2, 37.0]), Target::Share(0.75)),
    line("update to sync, with pauses: p99.9", "µs", SYNC_WITH_PAUSES, "p999_us", None, Target::None),
    line("update to sync, polling: p50", "µs", SYNC_POLLING, "p50_us", Some([76.0, 89.0, 93.0, 93.0]), Target::None),
    line("update to sync, polling: p99", "µs", SYNC_POLLING, "p99_us", Some([127.0, 150.0, 156.0, 144.0]), Target::Share(0.25)),
    line("update to sync, polling: p99.9", "µs", SYNC_POLLING, "p999_us", None, Target::None),
    line("housekeeping, all desired: call", "µs", HOUSEKEEPING_ALL, "call_us", Some([19.6, 209.0, 5_020.0, 142_000.0]), Target::ShareAtMost(1.0 / 30.0)),
    line("housekeeping, all desired: call", "ns/pod", HOUSEKEEPING_ALL, "ns_per_pod", None, Target::None),
    line("housekeeping, none desired: call", "µs", HOUSEKEEPING_NONE, "call_us", Some([50.0, 606.0, 16_300.0, 273_000.0]), Target::None),
    line("housekeeping, none desired: all finished", "µs", HOUSEKEEPING_NONE, "finished_us", None, Target::None),
    line("housekeeping, all desired: longest update", "µs", HOUSEKEEPING_ALL_WAITS, "update_max_us", None, Target::AtMost(500.0)),
    line("housekeeping, all desired: longest query", "µs", HOUSEKEEPING_ALL_WAITS, "query_max_us", None, Target::AtMost(500.0)),
    line("housekeeping, all desired: p99.9 update", "µs", HOUSEKEEPING_ALL_WAITS, "update_p999_us", None, Target::None),
    line("housekeeping, all desired: p99.9 query", "µs", HOUSEKEEPING_ALL_WAITS, "query_p999_us", None, Target::None),
    line("housekeeping, none desired: longest update", "µs", HOUSEKEEPING_NONE_WAITS, "update_max_us", None, Target::AtMost(500.0)),
    line("housekeeping, none desired: longest query", "µs", HOUSEKEEPING_NONE_WAITS, "query_max_us", None, Target::AtMost(500.0)),
    line("housekeeping, none desired: p99.9 update", "µs", HOUSEKEEPING_NONE_WAITS, "update_p999_us", None, Target::None),
    line("housekeeping, none desired: p99.9 query", "µs", HOUSEKEEPING_NONE_WAITS, "query_p999_us", None, Target::None),
    line("queries under storm: rate", "queries/s", QUERY_STORM, "queries_per_s", Some([7_400e3, 4_690e3, 2_520e3, 1_140e3]), Target::Times(4.0)),
    line("queries under storm: p50", "µs", QUERY_STORM, "p50_us", None, Target::None),
    line("queries under storm: p99", "µs", QUERY_STORM, "p99_us", None, Target::None),
    line("queries under storm: p99.9", "µs", QUERY_STORM, "p999_us", Some([114.0, 159.0, 138.0, 196.0]), Target::Share(0.25)),
    line("queries under storm: max", "µs", QUERY_STORM, "max_us", Some([3_120.0, 4_440.0, 22_100.0, 213_000.0]), Target::AtMost(10_000.0)),
    line("queries, no storm: rate", "queries/s", QUERY_QUIET, "queries_per_s", Some([56_700e3, 43_300e3, 22_800e3, 4_970e3]), Target::None),
    line("queries, no storm: p99", "µs", QUERY_QUIET, "p99_us", None, Target::None),
    line("queries, no storm: max", "µs", QUERY_QUIET, "max_us", None, Target::None),
    line("idle memory: worker RSS", "bytes", IDLE_MEMORY, "worker_bytes", Some([6_480.0, 5_890.0, 5_740.0, 5_600.0]), Target::AtMost(1_100.0)),
    line("idle memory: Pod object", "bytes", IDLE_MEMORY, "object_bytes", None, Target::None),
    line("retry storm, no backoff: retries", "1/s", RETRY_NO_BACKOFF, "retries_per_s", Some([620e3, 647e3, 271e3, 163e3]), Target::None),
    line("retry storm, no backoff: CPU per 1,000", "ms", RETRY_NO_BACKOFF, "cpu_ms_per_1000", Some([2.85, 2.85, 6.22, 9.00]), Target::Share(0.25)),
    line("retry storm, backoff: CPU per 1,000", "ms", RETRY_BACKOFF, "cpu_ms_per_1000", Some([26.9, 8.0, 7.0, 7.9]), Target::AtMost(1.0)),
];
