//! The agent as people run it: the real binary, real manifests, real processes, asked by its admin endpoints.

mod bad_input;
mod harness;
mod life;
mod recording;
mod restart;
mod terminal;
mod until_finished;
