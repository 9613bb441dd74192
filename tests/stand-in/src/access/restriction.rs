//! The requests that the admission plugin `NodeRestriction` refuses. Source: `plugin/pkg/admission/noderestriction` of Kubernetes 1.36.

use std::collections::BTreeSet;

use serde_json::Value;

use super::node::any_field;
use crate::call::{Call, Verb};
use crate::refusal::Refusal;
use crate::schema;
use crate::signing::{self, SigningRequest};
use crate::store::Store;

/// Labels of `kubernetes.io` and `k8s.io` that a node may set on itself, besides those of `kubelet.kubernetes.io` and
/// `node.kubernetes.io`. Source: `k8s.io/kubelet/pkg/apis`.
const OWN_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

/// Decides on a write of a node. `live` is the object before the write, and `object` is the object after it.
///
/// # Errors
///
/// The refusal, if the node may not make this write.
pub(crate) fn admit(
    store: &Store,
    node: &str,
    call: &Call,
    live: Option<&Value>,
    object: Option<&Value>,
) -> Result<(), Refusal> {
    let name = match call.name() {
        "" => object.and_then(|object| object["metadata"]["name"].as_str()).unwrap_or_default(),
        name => name,
    };
    let forbid = |why: String| Err(Refusal::forbidden(call.resource, name, &why));
    let null = Value::Null;
    let (old, new) = (live.unwrap_or(&null), object.unwrap_or(&null));
    let decision = match (call.resource.plural, call.subresource(), call.verb) {
        ("nodes", ..) => node_object(node, name, old, new),
        ("leases", _, Verb::Create) if name != node => {
            Err("can only access node lease with the same name as the requesting node".to_owned())
        }
        ("pods", "", Verb::Create) => {
            let Some(own) = store.find("nodes", "", node) else {
                let nodes = schema::stored("nodes").expect("the table has nodes");
                return mirror_pod(node, "", new).or_else(forbid).and(Err(Refusal::not_found(nodes, node)));
            };
            mirror_pod(node, own["metadata"]["uid"].as_str().unwrap_or_default(), new)
        }
        ("pods", "", _) if old["spec"]["nodeName"] != node => {
            Err(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
        }
        ("pods", "eviction", _) if old["spec"]["nodeName"] != node => {
            Err(format!("node {node} can only evict pods with spec.nodeName set to itself"))
        }
        ("pods", "status", _) => pod_status(node, old, new),
        ("serviceaccounts", "token", _) => return token(store, node, call).or_else(forbid_or(forbid)),
        ("resourceslices", _, Verb::Create) if new["spec"]["nodeName"] != node => {
            Err("can only create ResourceSlice with the same NodeName as the requesting node".to_owned())
        }
        ("resourceslices", _, Verb::Delete | Verb::DeleteCollection) if old["spec"]["nodeName"] != node => {
            Err("can only delete ResourceSlice with the same NodeName as the requesting node".to_owned())
        }
        ("certificatesigningrequests", "", Verb::Create) => signing_request(node, &new["spec"]),
        _ => Ok(()),
    };
    decision.or_else(forbid)
}

/// A refusal that is complete, or the reason of one.
enum Reason {
    Complete(Box<Refusal>),
    Text(String),
}

fn forbid_or(forbid: impl Fn(String) -> Result<(), Refusal>) -> impl Fn(Reason) -> Result<(), Refusal> {
    move |reason| match reason {
        Reason::Complete(refusal) => Err(*refusal),
        Reason::Text(why) => forbid(why),
    }
}

fn node_object(node: &str, name: &str, old: &Value, new: &Value) -> Result<(), String> {
    if name != node {
        return Err(format!("node {node:?} is not allowed to modify node {name:?}"));
    }
    // The plugin leaves the deletion of the own node to the authorizers.
    if new.is_null() {
        return Ok(());
    }
    let labels = forbidden_labels(&old["metadata"]["labels"], &new["metadata"]["labels"]).join(", ");
    if old.is_null() {
        return match labels.as_str() {
            "" => Ok(()),
            labels => Err(format!("node {node:?} is not allowed to set the following labels: {labels}")),
        };
    }
    let taints = |object: &Value| object["spec"]["taints"].as_array().cloned().unwrap_or_default();
    if taints(old) != taints(new) {
        return Err(format!("node {node:?} is not allowed to modify taints"));
    }
    match labels.as_str() {
        "" => Ok(()),
        labels => Err(format!("is not allowed to modify labels: {labels}")),
    }
}

/// The labels that differ and that a node may not set, in order.
fn forbidden_labels(old: &Value, new: &Value) -> Vec<String> {
    let keys =
        |labels: &Value| labels.as_object().into_iter().flatten().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    let changed: BTreeSet<String> =
        keys(old).into_iter().chain(keys(new)).filter(|key| old.get(key) != new.get(key)).collect();
    let is_in = |domain: &str, parent: &str| domain == parent || domain.ends_with(&format!(".{parent}"));
    let is_forbidden = |key: &String| {
        let domain = key.split_once('/').map_or("", |(domain, _)| domain);
        let is_own = OWN_LABELS.contains(&key.as_str())
            || is_in(domain, "kubelet.kubernetes.io")
            || is_in(domain, "node.kubernetes.io");
        is_in(domain, "node-restriction.kubernetes.io")
            || (is_in(domain, "kubernetes.io") || is_in(domain, "k8s.io")) && !is_own
    };
    changed.into_iter().filter(is_forbidden).collect()
}

fn mirror_pod(node: &str, uid: &str, pod: &Value) -> Result<(), String> {
    let mirror = super::MIRROR;
    let create = format!("node {node:?} can only create pods with");
    if pod["metadata"]["annotations"].get(mirror).is_none() {
        return Err(format!("pod does not have {mirror:?} annotation, node {node:?} can only create mirror pods"));
    }
    if pod["spec"]["nodeName"] != node {
        return Err(format!("{create} spec.nodeName set to itself"));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let owner = match owners {
        [owner] => owner,
        [] => return Err(format!("{create} an owner reference set to itself")),
        _ => return Err(format!("{create} a single owner reference set to itself")),
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Err(format!("{create} an owner reference set to itself"));
    }
    if owner["controller"] != true {
        return Err(format!("{create} a controller owner reference set to itself"));
    }
    if owner["blockOwnerDeletion"] == true {
        return Err(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    // Without a node of this name, the caller answers that the node does not exist.
    let claimed = owner["uid"].as_str().unwrap_or_default();
    if !uid.is_empty() && claimed != uid {
        return Err(format!("node {node} UID mismatch: expected {claimed} got {uid}"));
    }
    let spec = &pod["spec"];
    let refers = |what: &str| Err(format!("node {node:?} can not create pods that reference {what}"));
    for (fields, what) in [
        (super::CONFIG_MAP_FIELDS, "configmaps"),
        (&["clusterTrustBundle"][..], "clustertrustbundles"),
        (&["persistentVolumeClaim"], "persistentvolumeclaims"),
        (&["resourceClaims"], "resourceclaims"),
    ] {
        if any_field(spec, fields, None) {
            return refers(what);
        }
    }
    Ok(())
}

/// Decides on a new mirror pod of any user. Source: `plugin/pkg/admission/serviceaccount`, whose decision comes first.
///
/// # Errors
///
/// The refusal, if a mirror pod may not have such a spec.
pub(crate) fn admit_mirror(call: &Call, pod: &Value) -> Result<(), Refusal> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let (spec, forbid) = (&pod["spec"], |why: &str| Err(Refusal::forbidden(call.resource, name, why)));
    if spec["serviceAccountName"].as_str().is_some_and(|account| !account.is_empty()) {
        return forbid("a mirror pod may not reference service accounts");
    }
    if any_field(spec, super::SECRET_FIELDS, None) {
        return forbid("a mirror pod may not reference secrets");
    }
    if any_field(spec, &["serviceAccountToken"], None) {
        return forbid("a mirror pod may not use ServiceAccountToken volume projections");
    }
    Ok(())
}

fn pod_status(node: &str, old: &Value, new: &Value) -> Result<(), String> {
    if old["spec"]["nodeName"] != node {
        return Err(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"));
    }
    let labels = |pod: &Value| pod["metadata"]["labels"].as_object().cloned().unwrap_or_default();
    if labels(old) != labels(new) {
        return Err(format!("node {node:?} cannot update labels through pod status"));
    }
    let claims = |pod: &Value| pod["status"]["resourceClaimStatuses"].as_array().cloned().unwrap_or_default();
    if claims(old) != claims(new) {
        return Err(format!("node {node:?} cannot update resource claim statues"));
    }
    if old["status"]["extendedResourceClaimStatus"] != new["status"]["extendedResourceClaimStatus"] {
        return Err(format!("node {node:?} cannot update extended resource claim status"));
    }
    Ok(())
}

fn token(store: &Store, node: &str, call: &Call) -> Result<(), Reason> {
    let refuse = |why: String| Err(Reason::Text(why));
    let spec = &call.body["spec"];
    let bound = &spec["boundObjectRef"];
    let text = |field: &str| bound[field].as_str().unwrap_or_default();
    if text("apiVersion") != "v1" || text("kind") != "Pod" || text("name").is_empty() {
        return refuse("node requested token not bound to a pod".to_owned());
    }
    if text("uid").is_empty() {
        return refuse("node requested token with a pod binding without a uid".to_owned());
    }
    let Some(pod) = store.find("pods", call.namespace(), text("name")) else {
        let pods = schema::stored("pods").expect("the table has pods");
        return Err(Reason::Complete(Box::new(Refusal::not_found(pods, text("name")))));
    };
    if pod["metadata"]["uid"] != text("uid") {
        return refuse(format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            text("uid")
        ));
    }
    if pod["spec"]["nodeName"] != node {
        return refuse("node requested token bound to a pod scheduled on a different node".to_owned());
    }
    let audiences = spec["audiences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let audience = match audiences {
        [] => "",
        [one] => one.as_str().unwrap_or_default(),
        _ => return refuse("node may only request 0 or 1 audiences".to_owned()),
    };
    let sources = pod["spec"]["volumes"].as_array().into_iter().flatten();
    let sources = sources.flat_map(|volume| volume["projected"]["sources"].as_array().into_iter().flatten());
    let mut tokens = sources.filter_map(|source| source.get("serviceAccountToken"));
    if tokens.any(|token| token["audience"].as_str().unwrap_or_default() == audience) {
        return Ok(());
    }
    refuse(format!(
        "audience {audience:?} not found in pod spec volume, system:node:{node} is not authorized to request tokens for \
         this audience"
    ))
}

fn signing_request(node: &str, spec: &Value) -> Result<(), String> {
    if !matches!(spec["signerName"].as_str(), Some(signing::KUBELET_CLIENT | signing::KUBELET_SERVING)) {
        return Ok(());
    }
    let request = SigningRequest::parse(&spec["request"]).map_err(|error| format!("unable to parse csr: {error}"))?;
    if request.common_name == format!("system:node:{node}") {
        Ok(())
    } else {
        Err(format!("can only create a node CSR with CN=system:node:{node}"))
    }
}
