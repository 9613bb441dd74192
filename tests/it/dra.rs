//! Dynamic resource allocation over real sockets and the stand-in API server.

mod driver;
mod support;
