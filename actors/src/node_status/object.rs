//! Builds a new Node object, and the patch of a Node object that exists. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::registration::NodeRegistration;
use crate::ports::HostIps;

const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
const OS_LABELS: [&str; 2] = ["kubernetes.io/os", "beta.kubernetes.io/os"];
const ARCH_LABELS: [&str; 2] = ["kubernetes.io/arch", "beta.kubernetes.io/arch"];
/// The labels that an agent corrects on a node that exists (upstream `updateDefaultLabels`, kubelet 1.36).
const CORRECTED_LABELS: [&str; 12] = [
    HOSTNAME_LABEL,
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "node.kubernetes.io/windows-build",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
/// The annotation with which the attach-detach controller attaches the volumes of the node (`volume/util`,
/// `ControllerManagedAttachAnnotation`).
const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// The taint of a node to which no pods may be scheduled (`core/v1`, `TaintNodeUnschedulable`).
const UNSCHEDULABLE_TAINT: &str = "node.kubernetes.io/unschedulable";

/// The name and the addresses of a node.
#[derive(Clone, Debug)]
pub(super) struct NodeIdentity {
    pub(super) name: String,
    pub(super) host_ips: HostIps,
}

impl NodeIdentity {
    /// The addresses of the status: those of the machine, then its host name.
    pub(super) fn addresses(&self) -> Vec<NodeAddress> {
        let address = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
        let ips = self.host_ips.get().into_iter().map(|ip| address("InternalIP", ip.to_string()));
        ips.chain([address("Hostname", self.name.clone())]).collect()
    }
}

/// The node as it is created (upstream `initialNode`, kubelet 1.36).
pub(super) fn initial_node(identity: &NodeIdentity, settings: &NodeRegistration, status: NodeStatus) -> Node {
    let mut taints = settings.taints.clone();
    let unschedulable =
        Taint { key: UNSCHEDULABLE_TAINT.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let is_same = |taint: &Taint| taint.key == unschedulable.key && taint.effect == unschedulable.effect;
    if !settings.is_schedulable && !taints.iter().any(is_same) {
        taints.push(unschedulable);
    }
    Node {
        metadata: ObjectMeta {
            name: Some(identity.name.clone()),
            labels: Some(labels(identity, settings)),
            annotations: Some([(CONTROLLER_ATTACHES.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: (!taints.is_empty()).then_some(taints),
            unschedulable: (!settings.is_schedulable).then_some(true),
            ..NodeSpec::default()
        }),
        status: Some(status),
    }
}

/// The patch of the metadata of a node that exists. `None` if nothing has to be changed (upstream `tryRegisterWithAPIServer`, kubelet
/// 1.36). Other labels and annotations, and all taints, stay as they are.
pub(super) fn adoption_patch(identity: &NodeIdentity, settings: &NodeRegistration, existing: &Node) -> Option<Value> {
    let own = labels(identity, settings);
    let has = |map: &Option<BTreeMap<String, String>>, key: &str, value: &str| {
        map.as_ref().and_then(|map| map.get(key)).is_some_and(|have| have == value)
    };
    let wrong = CORRECTED_LABELS.into_iter().filter_map(|key| Some((key, own.get(key)?)));
    let wrong = wrong.filter(|(key, value)| !has(&existing.metadata.labels, key, value));
    // An empty label is removed.
    let wrong: BTreeMap<&str, Option<&String>> =
        wrong.map(|(key, value)| (key, Some(value).filter(|value| !value.is_empty()))).collect();
    let mut metadata = json!({});
    if !wrong.is_empty() {
        metadata["labels"] = json!(wrong);
    }
    if !has(&existing.metadata.annotations, CONTROLLER_ATTACHES, "true") {
        metadata["annotations"] = json!({CONTROLLER_ATTACHES: "true"});
    }
    metadata.as_object().is_some_and(|fields| !fields.is_empty()).then(|| json!({"metadata": metadata}))
}

/// The labels of the machine, and those of the settings, which replace them.
fn labels(identity: &NodeIdentity, settings: &NodeRegistration) -> BTreeMap<String, String> {
    let info = &settings.system_info;
    let of_machine = [(HOSTNAME_LABEL, &identity.name)]
        .into_iter()
        .chain(OS_LABELS.map(|label| (label, &info.operating_system)))
        .chain(ARCH_LABELS.map(|label| (label, &info.architecture)));
    let of_machine = of_machine.map(|(label, value)| (label.to_owned(), value.clone()));
    of_machine.chain(settings.labels.clone()).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::NodeSystemInfo;

    use super::*;

    fn identity() -> NodeIdentity {
        NodeIdentity {
            name: "n1".to_owned(),
            host_ips: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()].into(),
        }
    }

    fn settings() -> NodeRegistration {
        let info = NodeSystemInfo {
            operating_system: "linux".to_owned(),
            architecture: "amd64".to_owned(),
            ..NodeSystemInfo::default()
        };
        let labels = [("disk", "ssd"), ("topology.kubernetes.io/zone", "a")];
        NodeRegistration::new("agent-1")
            .system_info(info)
            .labels(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
    }

    fn node(metadata: &Value) -> Node {
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn new_node_has_the_labels_of_the_machine_and_of_the_flags() {
        let taint = Taint { key: "drain".to_owned(), effect: "NoExecute".to_owned(), ..Taint::default() };
        let settings = settings().taints(vec![taint]).schedulable(false);
        let node = serde_json::to_value(initial_node(&identity(), &settings, NodeStatus::default())).unwrap();
        assert_eq!(
            node["metadata"]["labels"],
            json!({"disk": "ssd", "kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "beta.kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "a"})
        );
        assert_eq!(
            node["spec"],
            json!({"unschedulable": true, "taints": [{"key": "drain", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]})
        );
        let schedulable =
            initial_node(&identity(), &settings.clone().schedulable(true).taints(Vec::new()), NodeStatus::default());
        assert_eq!(schedulable.spec, Some(NodeSpec::default()));
    }

    #[test]
    fn adoption_corrects_the_labels_of_the_machine_and_leaves_all_others() {
        let metadata = json!({
            "labels": {"kubernetes.io/hostname": "other", "kubernetes.io/os": "linux", "beta.kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64", "beta.kubernetes.io/arch": "amd64", "disk": "hdd", "foreign": "stays"},
        });
        assert_eq!(
            adoption_patch(&identity(), &settings(), &node(&metadata)),
            Some(json!({"metadata": {
                "labels": {"kubernetes.io/hostname": "n1", "topology.kubernetes.io/zone": "a"},
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}}}))
        );
        let created = initial_node(&identity(), &settings(), NodeStatus::default());
        assert_eq!(adoption_patch(&identity(), &settings(), &created), None);
    }

    #[test]
    fn addresses_are_those_of_the_machine_and_its_name() {
        let addresses: Vec<_> =
            identity().addresses().into_iter().map(|it| format!("{} {}", it.type_, it.address)).collect();
        assert_eq!(addresses, ["InternalIP 192.0.2.1", "InternalIP 2001:db8::1", "Hostname n1"]);
    }
}
