//! Who may do what: administrators everything, a node what belongs to it, and everybody else what a grant names.

use serde_json::{Value, json};

use crate::call::{Call, Verb};
use crate::refusal::Refusal;
use crate::schema::Resource;
use crate::selector::Selector;
use crate::store::Store;

/// Who sends a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct User {
    /// The name.
    pub name: String,
    /// The UID, empty if the user has none.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
    /// Further facts, as a review shows them.
    pub extra: Value,
    /// The end of the credential.
    pub expires: Option<jiff::Timestamp>,
    /// For whom the credential is valid; empty for the API server alone.
    pub audiences: Vec<String>,
}

impl User {
    /// A user with these groups, and the group of all authenticated users.
    #[must_use]
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        let groups = groups.iter().chain(&["system:authenticated"]).map(|group| (*group).to_owned());
        Self {
            name: name.into(),
            uid: String::new(),
            groups: groups.collect(),
            extra: json!({}),
            expires: None,
            audiences: Vec::new(),
        }
    }

    /// The user that may do everything.
    #[must_use]
    pub fn admin() -> Self {
        Self::new("kubernetes-admin", &["system:masters"])
    }

    /// The user of a node.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self::new(format!("system:node:{name}"), &["system:nodes"])
    }

    /// The node whose user this is.
    #[must_use]
    pub fn node_name(&self) -> Option<&str> {
        let name = self.name.strip_prefix("system:node:")?;
        self.groups.iter().any(|group| group == "system:nodes").then_some(name)
    }

    fn is_admin(&self) -> bool {
        self.groups.iter().any(|group| group == "system:masters")
    }

    /// The user as reviews show it.
    #[must_use]
    pub(crate) fn info(&self) -> Value {
        let mut info = json!({"username": self.name, "groups": self.groups});
        if !self.uid.is_empty() {
            info["uid"] = json!(self.uid);
        }
        if self.extra.as_object().is_some_and(|extra| !extra.is_empty()) {
            info["extra"] = self.extra.clone();
        }
        info
    }
}

/// A permission of a user or a group. `*` matches everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The name of the user or the group.
    pub subject: String,
    /// The verb.
    pub verb: String,
    /// The resource, with its path below the object: `pods/status`.
    pub resource: String,
}

impl Grant {
    /// Permits a verb on a resource.
    #[must_use]
    pub fn new(subject: &str, verb: &str, resource: &str) -> Self {
        Self { subject: subject.to_owned(), verb: verb.to_owned(), resource: resource.to_owned() }
    }

    fn allows(&self, user: &User, verb: &str, resource: &str) -> bool {
        let matches = |pattern: &str, text: &str| pattern == "*" || pattern == text;
        (self.subject == user.name || user.groups.contains(&self.subject))
            && matches(&self.verb, verb)
            && matches(&self.resource, resource)
    }
}

/// Whether a user may do something with a resource, by administrator rights and grants alone.
pub(crate) fn is_granted(store: &Store, user: &User, verb: &str, resource: &str) -> bool {
    user.is_admin() || store.grants.iter().any(|grant| grant.allows(user, verb, resource))
}

fn resource_path(call: &Call) -> String {
    match call.subresource() {
        "" => call.resource.plural.to_owned(),
        subresource => format!("{}/{subresource}", call.resource.plural),
    }
}

/// Refuses what the user may not do.
///
/// # Errors
///
/// If the user has no permission.
pub(crate) fn check(store: &Store, user: &User, call: &Call) -> Result<(), Refusal> {
    let is_self_review = call.resource.kind.starts_with("SelfSubject");
    if is_self_review || is_granted(store, user, call.verb.name(), &resource_path(call)) {
        return Ok(());
    }
    match user.node_name() {
        Some(node) => {
            authorize_node(store, node, call).map_err(|why| denied(user, call, &why))?;
            restrict_node(store, node, call).map_err(|why| Refusal::forbidden(call.resource, object_name(call), &why))
        }
        None => Err(denied(user, call, "")),
    }
}

fn denied(user: &User, call: &Call, reason: &str) -> Refusal {
    let scope = match call.namespace() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let separator = if reason.is_empty() { "" } else { ": " };
    let why = format!(
        "User {:?} cannot {} resource {:?} in API group {:?} {scope}{separator}{reason}",
        user.name,
        call.verb.name(),
        resource_path(call),
        call.resource.group
    );
    Refusal::forbidden(call.resource, call.name(), &why)
}

fn object_name(call: &Call) -> &str {
    call.name.as_deref().or_else(|| call.body["metadata"]["name"].as_str()).unwrap_or_default()
}

/// What the Node authorizer lets a node do at all.
fn authorize_node(store: &Store, node: &str, call: &Call) -> Result<(), String> {
    use Verb::{Create, Delete, DeleteCollection, Get, List, Patch, Update, Watch};
    let selector = || selector_of(call);
    let required = |field: &str| selector().is_some_and(|selector| selector.required(field) == Some(node));
    let refuse = |why: &str| Err(why.to_owned());
    let writes = [Create, Update, Patch, Delete];
    match (call.resource.plural, call.subresource(), call.verb) {
        ("nodes", "", Create | Update | Patch | Delete) | ("nodes", "status", Update | Patch) => Ok(()),
        ("nodes", "", Get) if call.name() == node => Ok(()),
        ("nodes", "", List | Watch) if required("metadata.name") => Ok(()),
        ("nodes", ..) => refuse("node cannot read other nodes"),
        ("services", "", Get | List | Watch) => Ok(()),
        ("events", "", Create | Update | Patch) => Ok(()),
        ("certificatesigningrequests", "", Create | Get | List | Watch) => Ok(()),
        ("tokenreviews" | "subjectaccessreviews" | "localsubjectaccessreviews", "", Create) => Ok(()),
        ("leases", "", verb) if verb == Get || writes.contains(&verb) => Ok(()),
        ("pods", "", Create | Delete) | ("pods", "eviction", Create) | ("pods", "status", Update | Patch) => Ok(()),
        ("pods", "", Get) => {
            let pod = store.find("pods", call.namespace(), call.name());
            if pod.is_none_or(|pod| pod["spec"]["nodeName"] == node) { Ok(()) } else { refuse(&unrelated(node)) }
        }
        ("pods", "", List | Watch) if required("spec.nodeName") => Ok(()),
        ("pods", "", List | Watch) => refuse("can only list/watch pods with spec.nodeName field selector"),
        ("resourceslices", "", Get) => Ok(()),
        ("resourceslices", "", verb) if writes.contains(&verb) => Ok(()),
        ("resourceslices", "", List | Watch | DeleteCollection) if required("spec.nodeName") => Ok(()),
        ("resourceslices", "", List | Watch | DeleteCollection) => {
            refuse("can only list/watch/deletecollection resourceslices with spec.nodeName field selector")
        }
        ("secrets" | "configmaps" | "resourceclaims" | "serviceaccounts", _, Get | List | Watch | Create) => {
            related(store, node, call)
        }
        _ => refuse(""),
    }
}

fn selector_of(call: &Call) -> Option<Selector> {
    Selector::parse(call.resource, call.query.get("fieldSelector"), "").ok()
}

fn unrelated(node: &str) -> String {
    format!("no relationship found between node '{node}' and this object")
}

/// Objects that a node may read because one of its pods names them.
fn related(store: &Store, node: &str, call: &Call) -> Result<(), String> {
    let selector = selector_of(call);
    let name = match call.verb {
        Verb::Get => call.name(),
        Verb::Create if call.subresource() == "token" => call.name(),
        Verb::List | Verb::Watch => match selector.as_ref().and_then(|selector| selector.required("metadata.name")) {
            Some(name) => name,
            None => {
                return Err(
                    "can only read resources of this type by name, with a metadata.name field selector".to_owned()
                );
            }
        },
        _ => return Err(String::new()),
    };
    let is_named = store
        .all("pods")
        .filter(|pod| pod["spec"]["nodeName"] == node && pod["metadata"]["namespace"] == call.namespace())
        .any(|pod| names(pod, call.resource, name));
    if is_named { Ok(()) } else { Err(unrelated(node)) }
}

/// Whether a pod names an object.
fn names(pod: &Value, resource: &Resource, name: &str) -> bool {
    let spec = &pod["spec"];
    match resource.plural {
        "serviceaccounts" => spec["serviceAccountName"] == name,
        "resourceclaims" => {
            let claims = spec["resourceClaims"].as_array().into_iter().flatten();
            let generated = pod["status"]["resourceClaimStatuses"].as_array().into_iter().flatten();
            claims.chain(generated).any(|claim| claim["resourceClaimName"] == name)
                || pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"] == name
        }
        "secrets" => any_field(spec, &["secretName", "secretRef", "secretKeyRef", "secret", "imagePullSecrets"], name),
        _ => any_field(spec, &["configMap", "configMapRef", "configMapKeyRef"], name),
    }
}

/// Whether a field with one of these names holds the name, or an object or a list with it.
fn any_field(value: &Value, fields: &[&str], name: &str) -> bool {
    match value {
        Value::Object(map) => map.iter().any(|(field, value)| {
            let is_meant = fields.contains(&field.as_str());
            let list = || value.as_array().into_iter().flatten().any(|item| item["name"] == name);
            is_meant && (value == name || value["name"] == name || list()) || any_field(value, fields, name)
        }),
        Value::Array(items) => items.iter().any(|item| any_field(item, fields, name)),
        _ => false,
    }
}

/// What the admission plugin `NodeRestriction` refuses.
fn restrict_node(store: &Store, node: &str, call: &Call) -> Result<(), String> {
    let name = object_name(call);
    let is_write = !matches!(call.verb, Verb::Get | Verb::List | Verb::Watch);
    match (call.resource.plural, call.subresource(), call.verb) {
        ("nodes", ..) if is_write && name != node => {
            Err(format!("node {node:?} is not allowed to modify node {name:?}"))
        }
        ("nodes", "", Verb::Update | Verb::Patch) => {
            let live = store.find("nodes", "", name);
            let taints = &call.body["spec"]["taints"];
            if !taints.is_null() && live.is_some_and(|live| live["spec"]["taints"] != *taints) {
                return Err(format!("node {node:?} is not allowed to modify taints"));
            }
            Ok(())
        }
        ("leases", ..) if call.namespace() != "kube-node-lease" => {
            Err("can only access leases in the \"kube-node-lease\" system namespace".to_owned())
        }
        ("leases", ..) if name != node => {
            Err("can only access node lease with the same name as the requesting node".to_owned())
        }
        ("pods", "", Verb::Create) => mirror_pod(node, &call.body),
        ("pods", "", Verb::Delete) | ("pods", "eviction", _) if !is_on(store, node, call) => {
            Err(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
        }
        ("pods", "status", _) if !is_on(store, node, call) => {
            Err(format!("node {node:?} can only update pod status for pods with spec.nodeName set to itself"))
        }
        ("serviceaccounts", "token", _) => {
            let bound = &call.body["spec"]["boundObjectRef"];
            if bound["kind"] != "Pod" {
                return Err("node requested token not bound to a pod".to_owned());
            }
            let pod = store.find("pods", call.namespace(), bound["name"].as_str().unwrap_or_default());
            if pod.is_some_and(|pod| pod["spec"]["nodeName"] != node) {
                return Err("node requested token bound to a pod scheduled on a different node".to_owned());
            }
            Ok(())
        }
        ("resourceslices", "", Verb::Create) if call.body["spec"]["nodeName"] != node => {
            Err("can only create ResourceSlice with the same NodeName as the requesting node".to_owned())
        }
        ("resourceslices", "", Verb::Update | Verb::Patch | Verb::Delete) => {
            let live = store.find("resourceslices", "", name);
            if live.is_some_and(|slice| slice["spec"]["nodeName"] != node) {
                return Err("can only delete ResourceSlice with the same NodeName as the requesting node".to_owned());
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn is_on(store: &Store, node: &str, call: &Call) -> bool {
    store.find("pods", call.namespace(), call.name()).is_none_or(|pod| pod["spec"]["nodeName"] == node)
}

fn mirror_pod(node: &str, pod: &Value) -> Result<(), String> {
    let mirror = "kubernetes.io/config.mirror";
    if pod["metadata"]["annotations"].get(mirror).is_none() {
        return Err(format!("pod does not have {mirror:?} annotation, node {node:?} can only create mirror pods"));
    }
    if pod["spec"]["nodeName"] != node {
        return Err(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owners = pod["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    match owners {
        [owner] if owner["kind"] == "Node" && owner["name"] == node => {}
        _ => return Err(format!("node {node:?} can only create pods with an owner reference set to itself")),
    }
    if !pod["spec"]["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        return Err(format!("node {node:?} can not create pods that reference a service account"));
    }
    Ok(())
}
