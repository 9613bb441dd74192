//! Pods as containers of a real containerd, which the tests start themselves.

mod config;
mod containerd;
mod garbage;
mod image;
mod life;
mod names;
mod outages;
mod stops;
