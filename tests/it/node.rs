//! Whole nodes over a runtime in memory, in paused time.

mod admission;
mod adoption;
mod crashes;
mod explain;
mod housekeeping;
mod journal;
mod observation;
mod orphans;
mod shutdown;
mod start_metrics;
mod static_pods;
mod stops;
