//! The agent as people run it: the real binary, real manifests, real processes, asked by its admin endpoints.

mod bad_input;
mod final_statuses;
pub(crate) mod harness;
mod life;
pub(crate) mod logs;
mod page;
mod recording;
mod requests;
mod restart;
#[cfg(feature = "simulated")]
mod simulated;
mod terminal;
mod until_finished;
