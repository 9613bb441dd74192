//! What pods become, by tables of what a kubelet 1.36 asks for.

mod dns;
mod limits;
mod mounts;
mod names;
mod resources;
mod sandbox;
mod security;
