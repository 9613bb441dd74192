//! Dynamic resource allocation with the real agent, over real sockets and the stand-in API server.

pub(crate) mod claim_cluster;
mod crashes;
pub(crate) mod end_to_end;
mod node_authorizer;
mod pod_resources;
