//! Dynamic resource allocation over real sockets and the stand-in API server.

#[cfg(feature = "dra-driver")]
mod driver;
#[cfg(feature = "dra")]
mod plugins;
#[cfg(feature = "dra-driver")]
mod slices;
#[cfg(feature = "dra-driver")]
mod support;
