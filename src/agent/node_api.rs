//! The node API: what the API server and metrics collectors request from a node, over HTTPS.

#[expect(dead_code, unused_imports, reason = "the routes of the node API follow")]
mod streams;
