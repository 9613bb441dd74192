//! The workloads by name. A parameter is part of the name.

use crate::bed::Scale;
use crate::latency::Submitter;
use crate::{housekeeping, latency, lifecycle, memory, queries, retry, update_storm};

/// The figures of one run, by name.
pub(crate) type Figures = Vec<(&'static str, f64)>;

/// A workload.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) run: fn(Scale) -> Figures,
}

/// All workloads.
pub(crate) const SUITES: &[Suite] = &[
    Suite { name: "update_storm-1_producer", run: |scale| update_storm::throughput(scale, 1) },
    Suite { name: "update_storm-2_producers", run: |scale| update_storm::throughput(scale, 2) },
    Suite { name: "update_storm-calls", run: update_storm::single_calls },
    Suite { name: "lifecycle", run: lifecycle::run },
    Suite { name: "lifecycle-memory", run: lifecycle::memory },
    Suite { name: "update_to_sync_latency-blocking", run: |scale| latency::run(scale, Submitter::Blocks) },
    Suite {
        name: "update_to_sync_latency-blocking_with_pauses",
        run: |scale| latency::run(scale, Submitter::BlocksAndPauses),
    },
    Suite { name: "update_to_sync_latency-polling", run: |scale| latency::run(scale, Submitter::Polls) },
    Suite { name: "housekeeping-all", run: housekeeping::all_desired },
    Suite { name: "housekeeping-none", run: housekeeping::none_desired },
    Suite { name: "housekeeping-all-waits", run: housekeeping::waits_all },
    Suite { name: "housekeeping-none-waits", run: housekeeping::waits_none },
    Suite { name: "query_under_load-storm", run: queries::under_storm },
    Suite { name: "query_under_load-quiet", run: queries::without_storm },
    Suite { name: "idle_memory", run: memory::run },
    Suite { name: "retry_storm-no_backoff", run: retry::at_once },
    Suite { name: "retry_storm-backoff", run: retry::after_backoff },
];

/// The workload of that name.
pub(crate) fn suite(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}
