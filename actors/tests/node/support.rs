//! A node over fakes, and the fakes that only its tests use. `podwright-fixtures` has the others.

pub(crate) mod api_node;
pub(crate) mod fake_cgroups;
pub(crate) mod fake_disks;
pub(crate) mod fake_node_api;
pub(crate) mod fake_objects;
pub(crate) mod fake_pod_api;
pub(crate) mod manager_opener;
pub(crate) mod test_node;
