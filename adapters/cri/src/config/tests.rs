//! Tests of the conversion. The expected values are what a kubelet 1.36 sends to the runtime.

mod cdi;
mod dns;
mod driver;
mod limits;
mod mounts;
mod names;
mod resources;
mod sandbox;
mod security;
