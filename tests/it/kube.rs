//! The adapters of the API server, over requests in memory.

mod node_authorizer;
mod objects;
mod pod_api;
