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

/// The taint of a node that its cloud provider has not initialized (`cloud-provider/api`, `TaintExternalCloudProvider`).
const UNINITIALIZED_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// The annotation with the addresses that the operator has given to the node, for the controller of the cloud provider
/// (`cloud-provider/api`, `AnnotationAlphaProvidedIPAddr`).
const PROVIDED_ADDRESSES: &str = "alpha.kubernetes.io/provided-node-ip";

/// The name and the addresses of a node.
#[derive(Clone, Debug)]
pub(super) struct NodeIdentity {
    pub(super) name: String,
    pub(super) host_ips: HostIps,
}

impl NodeIdentity {
    /// The addresses of the status: those of the machine, then its host name. An external cloud provider sets the addresses: those that
    /// the server has stay, and until then the node has only what the operator has given (upstream `nodestatus.NodeAddress`, kubelet
    /// 1.36).
    pub(super) fn addresses(&self, settings: &NodeRegistration, old: Option<Vec<NodeAddress>>) -> Vec<NodeAddress> {
        let ips = match (&settings.external_cloud, old) {
            (Some(_), Some(old)) if !old.is_empty() => return old,
            (Some(given), _) => given.clone(),
            (None, _) => self.host_ips.get(),
        };
        let address = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
        let ips = ips.into_iter().map(|ip| address("InternalIP", ip.to_string()));
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
    if settings.external_cloud.is_some() {
        let (key, value) = (UNINITIALIZED_TAINT.to_owned(), Some("true".to_owned()));
        taints.push(Taint { key, value, effect: "NoSchedule".to_owned(), time_added: None });
    }
    let attaches = (CONTROLLER_ATTACHES.to_owned(), "true".to_owned());
    let provided = provided_addresses(settings).map(|ips| (PROVIDED_ADDRESSES.to_owned(), ips));
    Node {
        metadata: ObjectMeta {
            name: Some(identity.name.clone()),
            labels: Some(labels(identity, settings)),
            annotations: Some([attaches].into_iter().chain(provided).collect()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: (!taints.is_empty()).then_some(taints),
            unschedulable: (!settings.is_schedulable).then_some(true),
            provider_id: settings.provider_id.clone(),
            ..NodeSpec::default()
        }),
        status: Some(status),
    }
}

/// The addresses that the operator has given, as the annotation has them.
fn provided_addresses(settings: &NodeRegistration) -> Option<String> {
    let given = settings.external_cloud.as_ref().filter(|given| !given.is_empty())?;
    Some(given.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

/// The patch of a node that exists. `None` if nothing has to be changed (upstream `tryRegisterWithAPIServer`, kubelet 1.36). Other labels
/// and annotations, and all taints, stay as they are. A node without a provider ID gets that of the settings.
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
    let mut annotations = json!({});
    if !has(&existing.metadata.annotations, CONTROLLER_ATTACHES, "true") {
        annotations[CONTROLLER_ATTACHES] = json!("true");
    }
    let provided = provided_addresses(settings);
    let old = existing.metadata.annotations.as_ref().and_then(|map| map.get(PROVIDED_ADDRESSES));
    if provided.as_ref() != old {
        // Null removes the annotation.
        annotations[PROVIDED_ADDRESSES] = json!(provided);
    }
    if annotations != json!({}) {
        metadata["annotations"] = annotations;
    }
    let mut patch = json!({});
    if metadata != json!({}) {
        patch["metadata"] = metadata;
    }
    if let (Some(id), None) = (&settings.provider_id, provider_id(existing)) {
        patch["spec"] = json!({"providerID": id});
    }
    (patch != json!({})).then_some(patch)
}

/// The provider ID of a node, if it has one.
pub(super) fn provider_id(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.provider_id.as_deref().filter(|id| !id.is_empty())
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
        let own = ["InternalIP 192.0.2.1", "InternalIP 2001:db8::1", "Hostname n1"];
        assert_eq!(addresses(&settings(), &[]), own);
        assert_eq!(addresses(&settings(), &["ExternalIP 203.0.113.1"]), own);
    }

    fn addresses(settings: &NodeRegistration, old: &[&str]) -> Vec<String> {
        let parse = |text: &&str| {
            let (type_, address) = text.split_once(' ').unwrap();
            NodeAddress { type_: type_.to_owned(), address: address.to_owned() }
        };
        let addresses = identity().addresses(settings, Some(old.iter().map(parse).collect()));
        addresses.into_iter().map(|it| format!("{} {}", it.type_, it.address)).collect()
    }

    #[test]
    fn addresses_of_a_cloud_provider_stay() {
        let given = || vec!["192.0.2.7".parse().unwrap()];
        let of_cloud = ["InternalIP 10.0.0.1", "ExternalIP 203.0.113.1", "Hostname n1"];
        for (given, before) in [(Vec::new(), &["Hostname n1"][..]), (given(), &["InternalIP 192.0.2.7", "Hostname n1"])]
        {
            let settings = settings().external_cloud(given);
            assert_eq!(addresses(&settings, &[]), before);
            assert_eq!(addresses(&settings, &of_cloud), of_cloud);
        }
    }

    #[test]
    fn new_node_of_a_cloud_waits_for_its_provider() {
        let settings = settings().provider_id(Some("cloud:///1".to_owned()));
        let settings = settings.external_cloud(vec!["192.0.2.7".parse().unwrap(), "2001:db8::7".parse().unwrap()]);
        let node = initial_node(&identity(), &settings, NodeStatus::default());
        assert_eq!(
            serde_json::to_value(&node.spec).unwrap(),
            json!({"providerID": "cloud:///1", "taints": [
                {"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}]})
        );
        let annotations = node.metadata.annotations.clone().unwrap();
        assert_eq!(annotations["alpha.kubernetes.io/provided-node-ip"], "192.0.2.7,2001:db8::7");
        assert_eq!(adoption_patch(&identity(), &settings, &node), None);
    }

    #[test]
    fn adoption_sets_the_provider_id_once_and_corrects_the_given_addresses() {
        let settings = settings().labels(BTreeMap::new());
        let mut existing = initial_node(&identity(), &settings, NodeStatus::default());
        let of_cloud = settings.clone().provider_id(Some("cloud:///1".to_owned()));
        let of_cloud = of_cloud.external_cloud(vec!["192.0.2.7".parse().unwrap()]);
        assert_eq!(
            adoption_patch(&identity(), &of_cloud, &existing),
            Some(json!({"metadata": {"annotations": {"alpha.kubernetes.io/provided-node-ip": "192.0.2.7"}},
                "spec": {"providerID": "cloud:///1"}}))
        );
        // The API server refuses to change an ID, and a node keeps its taints.
        existing.spec = Some(NodeSpec { provider_id: Some("cloud:///2".to_owned()), ..NodeSpec::default() });
        let annotation =
            |ips: Value| json!({"metadata": {"annotations": {"alpha.kubernetes.io/provided-node-ip": ips}}});
        assert_eq!(adoption_patch(&identity(), &of_cloud, &existing), Some(annotation(json!("192.0.2.7"))));
        let annotations = existing.metadata.annotations.get_or_insert_default();
        annotations.insert("alpha.kubernetes.io/provided-node-ip".to_owned(), "192.0.2.9".to_owned());
        assert_eq!(adoption_patch(&identity(), &settings, &existing), Some(annotation(Value::Null)));
    }
}
