//! Pods as containers of a real containerd, which the tests start themselves.

mod containerd;
mod image;
mod life;
mod names;
mod outages;
mod stops;
