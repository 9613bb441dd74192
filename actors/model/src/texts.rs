//! The texts of events, container states and conditions, byte for byte as the kubelet of Kubernetes 1.36 writes them. Dashboards,
//! alerts and scripts match these texts.
//!
//! One file for each subject. Each text names its source: a file in `pkg/kubelet` of Kubernetes 1.36, and a function.
//! podwright's own texts are not here.

pub mod admission;
pub mod containers;
pub mod evictions;
pub mod format;
pub mod images;
pub mod node;
pub mod node_api;
pub mod objects;
pub mod pods;
pub mod probes;
pub mod resize;
pub mod shutdown;
pub mod streams;
pub mod volumes;
