//! The ports of the controllers: the calls to the API server. `podwright-ports` has those that a node needs too.

pub mod device_taints;
pub mod resource_claims;
