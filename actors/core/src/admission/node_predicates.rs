//! The checks that compare a pod with its node.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Taint};

use super::affinity::Labels;
use super::requests::Requests;
use super::{AdmissionHandler, Admitted, NodeCapacity, Rejection, affinity, host_ports, taints};
use crate::pod::PodObject;
use crate::texts::admission as texts;

const OS_LABEL: &str = "kubernetes.io/os";
const ARCH_LABEL: &str = "kubernetes.io/arch";
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
/// The only operating system that podwright runs on.
const OS: &str = "linux";

/// The checks that compare a pod with its node, in the order of upstream (`lifecycle/predicate.go`, kubelet 1.36): operating
/// system, supplemental groups, resources, node selector and affinity, node name, host ports, taints.
///
/// The first failed check gives the reason. For a critical pod, a failed check that no preemption helps comes before a lack of
/// resources.
#[derive(Clone)]
#[must_use]
pub struct NodePredicates {
    name: String,
    capacity: NodeCapacity,
    labels: Labels,
    taints: Vec<Taint>,
    strict_groups: Arc<dyn Fn() -> bool + Send + Sync>,
    registered: Arc<dyn Fn() -> Option<Arc<Node>> + Send + Sync>,
}

impl NodePredicates {
    /// A node with its name and capacity. It has the labels of its operating system, its architecture and its name, no taints, and
    /// a runtime with strict supplemental groups.
    pub fn new(name: impl Into<String>, capacity: NodeCapacity) -> Self {
        let name = name.into();
        let labels = [(OS_LABEL, OS), (ARCH_LABEL, architecture()), (HOSTNAME_LABEL, &*name)];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        NodePredicates {
            name,
            capacity,
            labels,
            taints: Vec::new(),
            strict_groups: Arc::new(|| true),
            registered: Arc::new(|| None),
        }
    }

    /// Adds labels, which replace those with the same keys.
    pub fn labels(mut self, labels: BTreeMap<String, String>) -> Self {
        self.labels.extend(labels);
        self
    }

    /// The node's taints. Only those with the effect `NoExecute` count, and static pods ignore them.
    pub fn taints(mut self, taints: Vec<Taint>) -> Self {
        self.taints = taints;
        self
    }

    /// Whether the runtime supports the policy `Strict` for supplemental groups. It is called for each pod that needs the policy,
    /// and must return at once.
    pub fn strict_groups(mut self, is_supported: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.strict_groups = Arc::new(is_supported);
        self
    }

    /// The node as the API server has it, once it is registered. Its labels and taints then count instead of those that were set
    /// here. It is called for each pod, and must return at once.
    pub fn registered(mut self, node: impl Fn() -> Option<Arc<Node>> + Send + Sync + 'static) -> Self {
        self.registered = Arc::new(node);
        self
    }

    /// The checks before the resources.
    fn check_features(&self, pod: &PodObject) -> Result<(), Rejection> {
        let refuse = |(reason, message): (&str, &str)| Err(Rejection::new(reason, message));
        // Upstream compares a label of the pod, not its node selector.
        let os_label = pod.metadata().labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
        if os_label.is_some_and(|os| os != OS) {
            return refuse(texts::OS_LABEL_DIFFERS);
        }
        if pod.spec().os.as_ref().is_some_and(|os| os.name != OS) {
            return refuse(texts::OS_NOT_SUPPORTED);
        }
        let context = pod.spec().security_context.as_ref();
        let policy = context.and_then(|context| context.supplemental_groups_policy.as_deref());
        if policy == Some("Strict") && !(self.strict_groups)() {
            return refuse(texts::STRICT_GROUPS_NOT_SUPPORTED);
        }
        Ok(())
    }

    /// The first failed check that does not concern resources.
    fn check_placement(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection> {
        let spec = pod.spec();
        let message = |(name, why): (&str, &str)| texts::predicate_failed(name, why);
        let registered = (self.registered)();
        let metadata_labels = registered.as_ref().map(|node| node.metadata.labels.clone().unwrap_or_default());
        let labels = metadata_labels.as_ref().unwrap_or(&self.labels);
        if !affinity::matches(spec, &self.name, labels) {
            return Err(Rejection::new(texts::NODE_AFFINITY.0, message(texts::NODE_AFFINITY)));
        }
        if spec.node_name.as_deref().is_some_and(|name| !name.is_empty() && name != self.name) {
            return Err(Rejection::new(texts::NODE_NAME.0, message(texts::NODE_NAME)));
        }
        if host_ports::conflict(pod, others.pods().map(|pod| &**pod)) {
            return Err(Rejection::in_use(texts::NODE_PORTS.0, message(texts::NODE_PORTS)));
        }
        let taints = match &registered {
            Some(node) => node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default(),
            None => &self.taints,
        };
        if !pod.is_static() && !taints::tolerated(spec, taints) {
            return Err(Rejection::new(texts::TAINT_TOLERATION.0, message(texts::TAINT_TOLERATION)));
        }
        Ok(())
    }
}

impl AdmissionHandler for NodePredicates {
    fn admit(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection> {
        self.check_features(pod)?;
        let shortages = self.capacity.shortages(&Requests::of(pod), &others.used());
        let placement = self.check_placement(pod, others);
        match Rejection::short_of(shortages) {
            Some(short) if placement.is_ok() || !pod.is_critical() => Err(short),
            Some(_) | None => placement,
        }
    }
}

impl fmt::Debug for NodePredicates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePredicates")
            .field("name", &self.name)
            .field("capacity", &self.capacity)
            .field("labels", &self.labels)
            .field("taints", &self.taints)
            .finish_non_exhaustive()
    }
}

/// The machine's architecture in the spelling of Go, as node labels have it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        "loongarch64" => "loong64",
        other => other,
    }
}
