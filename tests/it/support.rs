//! Fakes and fixtures of the tests.

pub(crate) mod api_node;
#[cfg(all(feature = "agent", feature = "process"))]
pub(crate) mod browser;
#[cfg(feature = "process")]
pub(crate) mod disks;
pub(crate) mod fake_cgroups;
pub(crate) mod fake_claims;
pub(crate) mod fake_disks;
#[cfg(feature = "dra")]
pub(crate) mod fake_driver;
pub(crate) mod fake_node_api;
pub(crate) mod fake_objects;
pub(crate) mod fake_pod_api;
pub(crate) mod fake_ports;
pub(crate) mod fake_runtime;
#[cfg(all(feature = "agent", feature = "process"))]
pub(crate) mod logind;
pub(crate) mod pods;
#[cfg(any(feature = "dra", feature = "dra-driver", feature = "process"))]
pub(crate) mod polling;
#[cfg(feature = "process")]
pub(crate) mod processes;
#[cfg(all(feature = "agent", feature = "process"))]
pub(crate) mod required;
pub(crate) mod test_node;
#[cfg(all(feature = "agent", feature = "process"))]
pub(crate) mod tls_files;
