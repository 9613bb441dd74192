//! Validates, completes and compares the pods of the sources. Pure.

pub mod defaults;
pub mod fields;
pub mod linux_id;
pub mod mux;
pub mod oom_score;
pub mod pod_resources;
pub mod resource_amount;
pub mod sysctl;
pub mod validate;
