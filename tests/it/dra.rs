//! Dynamic resource allocation over real sockets and the stand-in API server.

#[cfg(all(feature = "agent", feature = "dra", feature = "dra-driver", feature = "kube", feature = "process"))]
pub(crate) mod claim_cluster;
#[cfg(feature = "dra")]
mod claims_file;
#[cfg(all(feature = "agent", feature = "dra", feature = "dra-driver", feature = "kube", feature = "process"))]
mod crashes;
#[cfg(feature = "dra-driver")]
mod driver;
#[cfg(all(feature = "agent", feature = "dra", feature = "dra-driver", feature = "kube", feature = "process"))]
pub(crate) mod end_to_end;
#[cfg(all(feature = "agent", feature = "dra", feature = "process"))]
mod health;
#[cfg(all(feature = "agent", feature = "dra", feature = "dra-driver", feature = "kube", feature = "process"))]
mod node_authorizer;
#[cfg(all(feature = "agent", feature = "dra", feature = "dra-driver", feature = "kube", feature = "process"))]
mod node_slices;
#[cfg(feature = "dra")]
mod plugins;
#[cfg(all(feature = "agent", feature = "dra", feature = "dra-driver", feature = "kube", feature = "process"))]
mod pod_resources;
#[cfg(feature = "dra-driver")]
mod slices;
#[cfg(feature = "dra-driver")]
mod support;
#[cfg(all(feature = "agent", feature = "dra", feature = "dra-driver", feature = "kube"))]
mod versions;
