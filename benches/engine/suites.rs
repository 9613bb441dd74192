//! The workloads by name. A parameter is part of the name, so that a line of the report says all of it.

use crate::bed::Scale;
use crate::latency::Submitter;
use crate::{housekeeping, latency, lifecycle, memory, queries, retry, update_storm};

/// What one run found, by name.
pub(crate) type Figures = Vec<(&'static str, f64)>;

/// A workload.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Scale) -> Figures,
}

/// All of them, in the order of the specification.
pub(crate) const SUITES: &[Suite] = &[
    Suite { name: "w1-update_storm-p1", run: |scale| update_storm::throughput(scale, 1) },
    Suite { name: "w1-update_storm-p2", run: |scale| update_storm::throughput(scale, 2) },
    Suite { name: "w1-update_storm-calls", run: update_storm::single_calls },
    Suite { name: "w2-lifecycle", run: lifecycle::run },
    Suite { name: "w2-lifecycle-memory", run: lifecycle::memory },
    Suite { name: "w3-update_to_sync_latency-a", run: |scale| latency::run(scale, Submitter::Blocks) },
    Suite { name: "w3-update_to_sync_latency-b", run: |scale| latency::run(scale, Submitter::BlocksAndPauses) },
    Suite { name: "w3-update_to_sync_latency-c", run: |scale| latency::run(scale, Submitter::Polls) },
    Suite { name: "w4-housekeeping-all", run: housekeeping::all_desired },
    Suite { name: "w4-housekeeping-none", run: housekeeping::none_desired },
    Suite { name: "w4-housekeeping-all-waits", run: housekeeping::waits_all },
    Suite { name: "w4-housekeeping-none-waits", run: housekeeping::waits_none },
    Suite { name: "w5-query_under_load-storm", run: queries::under_storm },
    Suite { name: "w5-query_under_load-quiet", run: queries::without_storm },
    Suite { name: "w6-idle_memory", run: memory::run },
    Suite { name: "w7-retry_storm-a", run: retry::at_once },
    Suite { name: "w7-retry_storm-b", run: retry::after_backoff },
];

/// The workload of that name.
pub(crate) fn suite(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}
