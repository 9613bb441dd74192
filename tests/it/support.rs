//! Fakes and fixtures of the tests.

pub(crate) mod api_node;
pub(crate) mod browser;
pub(crate) mod disks;
pub(crate) mod fake_cgroups;
pub(crate) mod fake_disks;
pub(crate) mod fake_driver;
pub(crate) mod fake_node_api;
pub(crate) mod fake_objects;
pub(crate) mod fake_pod_api;
pub(crate) mod fake_runtime;
pub(crate) mod logind;
pub(crate) mod manager_opener;
pub(crate) mod polling;
pub(crate) mod processes;
pub(crate) mod required;
pub(crate) mod test_node;
pub(crate) mod tls_files;
