//! Pods as containers of a real containerd, which the tests start themselves.

mod adoption;
mod claims;
mod comparison;
mod config;
mod containerd;
mod crowd;
mod garbage;
mod life;
mod names;
mod outages;
mod pull_secrets;
mod resize;
mod stops;
mod storage_limits;
mod streams;
mod volumes;

use podwright_containerd::{calls, image};
