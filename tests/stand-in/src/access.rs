//! Authorizes requests. Administrators have every permission, a node has permissions for its own objects, and other users have the
//! permissions that grants name.

mod node;
mod restriction;

use serde_json::{Value, json};

use crate::call::Call;
use crate::refusal::Refusal;
use crate::store::Store;

pub(crate) use restriction::{admit as restrict_node, admit_mirror};

/// The annotation of a mirror pod. Source: `k8s.io/api/core/v1`.
pub(crate) const MIRROR: &str = "kubernetes.io/config.mirror";

/// Fields of a pod that name secrets.
const SECRET_FIELDS: &[&str] = &["secretName", "secretRef", "secretKeyRef", "secret", "imagePullSecrets"];

/// Fields of a pod that name config maps.
const CONFIG_MAP_FIELDS: &[&str] = &["configMap", "configMapRef", "configMapKeyRef"];

/// The user that sends a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct User {
    /// The name.
    pub name: String,
    /// The UID, empty if the user has none.
    pub uid: String,
    /// The groups.
    pub groups: Vec<String>,
    /// The extra fields, as a review returns them.
    pub extra: Value,
    /// The time from which a client certificate of the user is valid. `None` stands for the present.
    pub issued: Option<jiff::Timestamp>,
    /// The end of the credential.
    pub expires: Option<jiff::Timestamp>,
    /// The audiences for which the credential is valid. Empty if it is valid for the API server only.
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
            issued: None,
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

    /// The user of a bootstrap token, with which a new node requests its first client certificate.
    #[must_use]
    pub fn bootstrap(id: &str) -> Self {
        Self::new(format!("system:bootstrap:{id}"), &["system:bootstrappers"])
    }

    /// The name of the node, if this is the user of a node.
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

/// The grants of kubeadm: nodes may renew their client certificates, and new nodes may request their first one.
pub(crate) fn default_grants() -> Vec<Grant> {
    let requests = "certificatesigningrequests";
    let mut grants: Vec<Grant> = ["create", "get", "list", "watch"]
        .iter()
        .map(|verb| Grant::new("system:bootstrappers", verb, requests))
        .collect();
    grants.push(Grant::new("system:bootstrappers", "create", "certificatesigningrequests/nodeclient"));
    grants.push(Grant::new("system:nodes", "create", "certificatesigningrequests/selfnodeclient"));
    grants
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

/// Whether administrator rights or grants permit a verb on a resource to a user.
pub(crate) fn is_granted(store: &Store, user: &User, verb: &str, resource: &str) -> bool {
    user.is_admin() || store.grants.iter().any(|grant| grant.allows(user, verb, resource))
}

/// The decision of the Node authorizer on a request of a user. `None` if the user is not a node.
pub(crate) fn node_authorizer_decision(
    store: &Store,
    user: &User,
    call: &Call,
    now: jiff::Timestamp,
) -> Option<Result<(), String>> {
    Some(node::authorize(store, user.node_name()?, call, now))
}

fn resource_path(call: &Call) -> String {
    match call.subresource() {
        "" => call.resource.plural.to_owned(),
        subresource => format!("{}/{subresource}", call.resource.plural),
    }
}

/// Refuses a request for which the user has no permission.
///
/// # Errors
///
/// If the user has no permission.
pub(crate) fn check(store: &Store, user: &User, call: &Call, now: jiff::Timestamp) -> Result<(), Refusal> {
    let is_self_review = call.resource.kind.starts_with("SelfSubject");
    if is_self_review || is_granted(store, user, call.verb.name(), &resource_path(call)) {
        return Ok(());
    }
    let reason = match node_authorizer_decision(store, user, call, now) {
        Some(Ok(())) => return Ok(()),
        Some(Err(reason)) => reason,
        None => String::new(),
    };
    Err(denied(user, call, &reason))
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
    Refusal::forbidden(call.resource, &node::requested_name(call), &why)
}
