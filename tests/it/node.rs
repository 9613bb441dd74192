//! Whole nodes over a runtime in memory, in paused time.

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
#[cfg(feature = "agent")]
mod final_status_file;
mod final_statuses;
mod handle;
mod housekeeping;
mod known_failures;
#[cfg(feature = "kube")]
mod kube_objects;
#[cfg(feature = "kube")]
mod kube_pod_api;
mod kubelet_texts;
mod lost_exits;
mod mirrors;
mod network;
#[cfg(feature = "kube")]
mod node_authorizer;
mod observation;
mod orphans;
mod probes;
mod registration;
mod resize;
mod restarts;
mod shutdown;
mod start_metrics;
mod static_pods;
mod status_writes;
mod stops;
