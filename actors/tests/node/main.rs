//! Whole nodes over a runtime in memory, in paused time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod admission;
mod adoption;
mod api_faults;
mod api_objects;
mod cgroups;
mod claims;
mod claims_devices;
mod claims_failures;
mod claims_health;
mod crashes;
mod eviction_storm;
mod evictions;
mod explain;
mod final_statuses;
mod handle;
mod housekeeping;
mod known_failures;
mod kubelet_texts;
mod lost_exits;
mod mirrors;
mod network;
mod observation;
mod orphans;
mod probes;
mod registration;
mod resize;
mod restarts;
mod shutdown;
mod simulated;
mod start_metrics;
mod static_pods;
mod status_writes;
mod stops;
mod support;
