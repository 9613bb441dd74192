//! The lines of the table: which figure, what upstream has, what is asked of ours.

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

/// What is asked of a figure.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Target {
    /// Nothing: it explains the others.
    None,
    /// At most this.
    AtMost(f64),
    /// At most upstream's times this.
    Share(f64),
    /// At most upstream's times this, at the largest size.
    ShareAtMost(f64),
    /// At least upstream's times this.
    Times(f64),
}

impl Target {
    /// `None` where it asks nothing, or nothing of this size.
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

const W1: &str = "w1-update_storm-p1";
const W1_P2: &str = "w1-update_storm-p2";
const W1_CALLS: &str = "w1-update_storm-calls";
const W2: &str = "w2-lifecycle";
const W2_MEMORY: &str = "w2-lifecycle-memory";
const W3_A: &str = "w3-update_to_sync_latency-a";
const W3_B: &str = "w3-update_to_sync_latency-b";
const W3_C: &str = "w3-update_to_sync_latency-c";
const W4_ALL: &str = "w4-housekeeping-all";
const W4_NONE: &str = "w4-housekeeping-none";
const W4_ALL_WAITS: &str = "w4-housekeeping-all-waits";
const W4_NONE_WAITS: &str = "w4-housekeeping-none-waits";
const W5: &str = "w5-query_under_load-storm";
const W5_QUIET: &str = "w5-query_under_load-quiet";
const W6: &str = "w6-idle_memory";
const W7_A: &str = "w7-retry_storm-a";
const W7_B: &str = "w7-retry_storm-b";

/// All lines. Upstream has no figure for what only we report.
#[rustfmt::skip]
pub(crate) const LINES: &[Line] = &[
    line("W1 P=1 submit", "calls/s", W1, "calls_per_s", Some([1_660e3, 988e3, 413e3, 296e3]), Target::None),
    line("W1 P=1 start to quiescent", "ms", W1, "quiescent_ms", Some([605.0, 1_010.0, 2_440.0, 3_480.0]), Target::Share(0.25)),
    line("W1 P=1 syncs", "", W1, "syncs", Some([331e3, 711e3, 936e3, 1e6]), Target::None),
    line("W1 P=1 CPU per update", "ns", W1, "cpu_ns_per_update", Some([966.0, 1_830.0, 3_770.0, 5_060.0]), Target::Share(0.25)),
    line("W1 P=1 allocations per update", "", W1, "allocations_per_update", None, Target::None),
    line("W1 P=1 allocations per sync", "", W1, "allocations_per_sync", None, Target::AtMost(2.0)),
    line("W1 P=1 one call p50", "µs", W1_CALLS, "p50_us", Some([0.39, 0.59, 0.82, 1.17]), Target::None),
    line("W1 P=1 one call p99", "µs", W1_CALLS, "p99_us", None, Target::None),
    line("W1 P=1 one call p99.9", "µs", W1_CALLS, "p999_us", Some([50.0, 119.0, 183.0, 181.0]), Target::None),
    line("W1 P=1 one call max", "µs", W1_CALLS, "max_us", Some([3_410.0, 5_540.0, 31_800.0, 147_000.0]), Target::AtMost(10_000.0)),
    line("W1 P=2 submit", "calls/s", W1_P2, "calls_per_s", Some([1_460e3, 1_070e3, 443e3, 299e3]), Target::None),
    line("W1 P=2 start to quiescent", "ms", W1_P2, "quiescent_ms", None, Target::None),
    line("W1 P=2 syncs", "", W1_P2, "syncs", None, Target::None),
    line("W1 P=2 CPU per update", "ns", W1_P2, "cpu_ns_per_update", None, Target::None),
    line("W2 lifecycles", "pods/s", W2, "lifecycles_per_s", Some([166e3, 140e3, 101e3, 84.4e3]), Target::Times(5.0)),
    line("W2 create", "ns/pod", W2, "create_ns_per_pod", None, Target::None),
    line("W2 kill", "ns/pod", W2, "kill_ns_per_pod", None, Target::None),
    line("W2 forget", "ns/pod", W2, "forget_ns_per_pod", None, Target::None),
    line("W2 CPU per pod", "ns", W2, "cpu_ns_per_pod", Some([7_450.0, 9_910.0, 14_500.0, 17_100.0]), Target::None),
    line("W2 allocations per pod", "", W2, "allocations_per_pod", None, Target::None),
    line("W2 peak RSS over pods and recorder", "MiB", W2_MEMORY, "peak_mib", Some([0.85, 6.6, 70.5, 711.0]), Target::Share(0.25)),
    line("W2 RSS kept over both at the end", "bytes/pod", W2_MEMORY, "kept_bytes_per_pod", None, Target::AtMost(100.0)),
    line("W3 a p50", "µs", W3_A, "p50_us", Some([0.68, 0.89, 2.67, 4.02]), Target::AtMost(5.0)),
    line("W3 a p99", "µs", W3_A, "p99_us", Some([10.6, 10.2, 13.5, 17.2]), Target::None),
    line("W3 a p99.9", "µs", W3_A, "p999_us", None, Target::None),
    line("W3 b p50", "µs", W3_B, "p50_us", Some([9.5, 12.4, 14.5, 13.4]), Target::None),
    line("W3 b p99", "µs", W3_B, "p99_us", Some([36.6, 43.5, 49.2, 37.0]), Target::Share(0.75)),
    line("W3 b p99.9", "µs", W3_B, "p999_us", None, Target::None),
    line("W3 c p50", "µs", W3_C, "p50_us", Some([76.0, 89.0, 93.0, 93.0]), Target::None),
    line("W3 c p99", "µs", W3_C, "p99_us", Some([127.0, 150.0, 156.0, 144.0]), Target::Share(0.25)),
    line("W3 c p99.9", "µs", W3_C, "p999_us", None, Target::None),
    line("W4 all desired", "µs", W4_ALL, "call_us", Some([19.6, 209.0, 5_020.0, 142_000.0]), Target::ShareAtMost(1.0 / 30.0)),
    line("W4 all desired", "ns/pod", W4_ALL, "ns_per_pod", None, Target::None),
    line("W4 none desired, the call", "µs", W4_NONE, "call_us", Some([50.0, 606.0, 16_300.0, 273_000.0]), Target::None),
    line("W4 none desired, all finished", "µs", W4_NONE, "finished_us", None, Target::None),
    line("W4 all desired, longest update", "µs", W4_ALL_WAITS, "update_max_us", None, Target::AtMost(500.0)),
    line("W4 all desired, longest query", "µs", W4_ALL_WAITS, "query_max_us", None, Target::AtMost(500.0)),
    line("W4 all desired, p99.9 update", "µs", W4_ALL_WAITS, "update_p999_us", None, Target::None),
    line("W4 all desired, p99.9 query", "µs", W4_ALL_WAITS, "query_p999_us", None, Target::None),
    line("W4 none desired, longest update", "µs", W4_NONE_WAITS, "update_max_us", None, Target::AtMost(500.0)),
    line("W4 none desired, longest query", "µs", W4_NONE_WAITS, "query_max_us", None, Target::AtMost(500.0)),
    line("W4 none desired, p99.9 update", "µs", W4_NONE_WAITS, "update_p999_us", None, Target::None),
    line("W4 none desired, p99.9 query", "µs", W4_NONE_WAITS, "query_p999_us", None, Target::None),
    line("W5 under storm", "queries/s", W5, "queries_per_s", Some([7_400e3, 4_690e3, 2_520e3, 1_140e3]), Target::Times(4.0)),
    line("W5 under storm p50", "µs", W5, "p50_us", None, Target::None),
    line("W5 under storm p99", "µs", W5, "p99_us", None, Target::None),
    line("W5 under storm p99.9", "µs", W5, "p999_us", Some([114.0, 159.0, 138.0, 196.0]), Target::Share(0.25)),
    line("W5 under storm max", "µs", W5, "max_us", Some([3_120.0, 4_440.0, 22_100.0, 213_000.0]), Target::AtMost(10_000.0)),
    line("W5 no storm", "queries/s", W5_QUIET, "queries_per_s", Some([56_700e3, 43_300e3, 22_800e3, 4_970e3]), Target::None),
    line("W5 no storm p99", "µs", W5_QUIET, "p99_us", None, Target::None),
    line("W5 no storm max", "µs", W5_QUIET, "max_us", None, Target::None),
    line("W6 worker RSS", "bytes", W6, "worker_bytes", Some([6_480.0, 5_890.0, 5_740.0, 5_600.0]), Target::AtMost(1_100.0)),
    line("W6 Pod object", "bytes", W6, "object_bytes", None, Target::None),
    line("W7 a retries", "1/s", W7_A, "retries_per_s", Some([620e3, 647e3, 271e3, 163e3]), Target::None),
    line("W7 a CPU per 1,000", "ms", W7_A, "cpu_ms_per_1000", Some([2.85, 2.85, 6.22, 9.00]), Target::Share(0.25)),
    line("W7 b CPU per 1,000", "ms", W7_B, "cpu_ms_per_1000", Some([26.9, 8.0, 7.0, 7.9]), Target::AtMost(1.0)),
];
