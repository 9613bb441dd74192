//! The settings and the progress of the registration of a node.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, NodeSystemInfo, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tokio::sync::watch;

use crate::ids::NodeUid;

/// The features that nodes of Kubernetes 1.36 declare by default and that every podwright node supports (`component-helpers`,
/// `nodedeclaredfeatures`). The scheduler binds a pod with such a feature only to nodes that declare it. A kubelet also declares the resize
/// of the resources of a whole pod and of init containers, `InPlacePodLevelResourcesVerticalScaling` and
/// `InPlacePodVerticalScalingInitContainers`: see [`NodeRegistration::declared_features`].
const DECLARED_FEATURES: &[&str] = &["RestartAllContainersOnContainerExits"];

/// The settings of the Node object, which do not change while the agent runs.
///
/// Clones share the progress of the registration.
#[derive(Clone, Debug)]
#[must_use]
pub struct NodeRegistration {
    pub(super) instance: String,
    pub(super) creates: bool,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) taints: Vec<Taint>,
    pub(super) is_schedulable: bool,
    pub(super) provider_id: Option<String>,
    /// The addresses that the operator has given to the node, if an external cloud provider initializes it.
    pub(super) external_cloud: Option<Vec<IpAddr>>,
    pub(super) enforces_allocatable: bool,
    pub(super) system_info: NodeSystemInfo,
    pub(super) capacity: BTreeMap<String, Quantity>,
    pub(super) allocatable: BTreeMap<String, Quantity>,
    pub(super) declared_features: Vec<String>,
    pub(super) kubelet_port: i32,
    pub(super) progress: Arc<watch::Sender<Registration>>,
}

/// The progress of the registration of the node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Registration {
    /// The node is not registered yet.
    Pending {
        /// Why the last attempt failed. `None` while none has failed.
        problem: Option<String>,
    },
    /// The node is registered. This is its object as it was read last.
    Registered(Arc<Node>),
    /// The node was registered, and somebody deleted its object from the API server. This is the last object that was read. If
    /// somebody creates the node again, it is registered again.
    Deleted(Arc<Node>),
    /// Another agent or a kubelet runs with the name of this node. The node has stopped as in a crash: it writes nothing more, and its
    /// containers run on. The agent has to end.
    Taken,
}

impl Registration {
    /// The UID of the Node object. `None` if the node is not registered, or if its object is being deleted.
    pub fn node_uid(&self) -> Option<NodeUid> {
        let Registration::Registered(node) = self else { return None };
        let is_deleting = node.metadata.deletion_timestamp.is_some();
        node.metadata.uid.as_deref().filter(|_| !is_deleting).map(NodeUid::from)
    }
}

impl NodeRegistration {
    /// Registers a schedulable node without labels and taints of its own. `instance` identifies the agent across its restarts: an
    /// agent with another instance must not run with the same node name.
    pub fn new(instance: impl Into<String>) -> Self {
        NodeRegistration {
            instance: instance.into(),
            creates: true,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            is_schedulable: true,
            provider_id: None,
            external_cloud: None,
            enforces_allocatable: false,
            system_info: NodeSystemInfo::default(),
            capacity: BTreeMap::new(),
            allocatable: BTreeMap::new(),
            declared_features: DECLARED_FEATURES.iter().map(|feature| (*feature).to_owned()).collect(),
            kubelet_port: 0,
            progress: Arc::new(watch::Sender::new(Registration::Pending { problem: None })),
        }
    }

    /// Whether the node is created if it does not exist. If not, the agent waits until somebody creates it. By default true.
    pub fn creates(mut self, creates: bool) -> Self {
        self.creates = creates;
        self
    }

    /// The labels of a node that is created, besides those of its operating system, architecture and name.
    pub fn labels(mut self, labels: BTreeMap<String, String>) -> Self {
        self.labels = labels;
        self
    }

    /// The taints of a node that is created.
    pub fn taints(mut self, taints: Vec<Taint>) -> Self {
        self.taints = taints;
        self
    }

    /// Whether pods may be scheduled to a node that is created. By default true.
    pub fn schedulable(mut self, schedulable: bool) -> Self {
        self.is_schedulable = schedulable;
        self
    }

    /// The ID of the machine at its cloud provider (`spec.providerID`), which cannot be changed later. By default none.
    pub fn provider_id(mut self, id: Option<String>) -> Self {
        self.provider_id = id;
        self
    }

    /// The node is initialized by the controller of an external cloud provider: a node that is created has the taint for that, and the
    /// controller sets the addresses. `node_ips` are the addresses that the operator has given to the node, which are a hint for the
    /// controller.
    pub fn external_cloud(mut self, node_ips: Vec<IpAddr>) -> Self {
        self.external_cloud = Some(node_ips);
        self
    }

    /// Whether the limits of all pods together are enforced, which an event reports. By default false.
    pub fn enforces_allocatable(mut self, enforces: bool) -> Self {
        self.enforces_allocatable = enforces;
        self
    }

    /// The machine and the versions of its software. The runtime's version is added to it.
    pub fn system_info(mut self, info: NodeSystemInfo) -> Self {
        self.system_info = info;
        self
    }

    /// The resources of the machine, and the part of them that pods may request.
    pub fn resources(mut self, capacity: BTreeMap<String, Quantity>, allocatable: BTreeMap<String, Quantity>) -> Self {
        self.capacity = capacity;
        self.allocatable = allocatable;
        self
    }

    /// The features that the node declares (`status.declaredFeatures`). By default those that every podwright node supports.
    pub fn declared_features(mut self, features: Vec<String>) -> Self {
        self.declared_features = features;
        self.declared_features.sort();
        self
    }

    /// The port of the node API. By default 0, which means that it is not served.
    pub fn kubelet_port(mut self, port: u16) -> Self {
        self.kubelet_port = port.into();
        self
    }

    /// The node as it was read last, once it is registered.
    pub fn node(&self) -> Option<Arc<Node>> {
        match &*self.progress.borrow() {
            Registration::Registered(node) | Registration::Deleted(node) => Some(node.clone()),
            Registration::Pending { .. } | Registration::Taken => None,
        }
    }

    /// The progress of the registration, and a signal for each change.
    pub fn progress(&self) -> watch::Receiver<Registration> {
        self.progress.subscribe()
    }
}
