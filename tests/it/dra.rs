//! Dynamic resource allocation over real sockets and the stand-in API server.

pub(crate) mod claim_cluster;
mod claims_file;
mod crashes;
mod driver;
pub(crate) mod end_to_end;
mod health;
mod node_authorizer;
mod node_slices;
mod plugins;
mod pod_resources;
mod slices;
mod support;
mod versions;
