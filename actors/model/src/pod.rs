//! A `v1.Pod` from a source, checked to have an identity, with the fields that the engine reads often.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use serde::{Deserialize, Serialize};

use crate::ids::{FullName, PodUid};
use crate::time::{Grace, Time};

/// The source of a pod: `file`, `http` or `api` (the kubelet's `kubetypes.ConfigSourceAnnotationKey`).
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// Marks a mirror pod: the copy of a static pod that the node makes in the API server.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// The hash of a static pod's manifest, equal to its generated UID.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
/// When the node first saw the pod (RFC 3339).
pub const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";

/// The lowest priority of a critical pod (Kubernetes `scheduling.SystemCriticalPriority`).
pub const SYSTEM_CRITICAL_PRIORITY: i32 = 2_000_000_000;

/// A pod's phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Not all containers have run yet. Also the phase of a pod without one.
    #[default]
    Pending,
    /// The pod is bound to a node and its containers were started.
    Running,
    /// All containers succeeded and none will restart.
    Succeeded,
    /// All containers ended and at least one failed.
    Failed,
    /// The node lost contact, or the pod is in the runtime only.
    Unknown,
}

impl Phase {
    /// Parses the text of `status.phase`.
    pub fn parse(text: Option<&str>) -> Phase {
        match text {
            Some("Running") => Phase::Running,
            Some("Succeeded") => Phase::Succeeded,
            Some("Failed") => Phase::Failed,
            Some("Unknown") => Phase::Unknown,
            _ => Phase::Pending,
        }
    }

    /// The text of `status.phase`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Running => "Running",
            Phase::Succeeded => "Succeeded",
            Phase::Failed => "Failed",
            Phase::Unknown => "Unknown",
        }
    }

    /// Whether the phase is Succeeded or Failed.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Phase::Succeeded | Phase::Failed)
    }
}

/// The list of a pod's spec that a container is in. A sidecar is in the init list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ContainerKind {
    /// `spec.initContainers`.
    Init,
    /// `spec.containers`.
    Regular,
    /// `spec.ephemeralContainers`.
    Ephemeral,
}

/// A pod in the engine. It is always behind an [`Arc`] and never copied.
#[derive(Debug)]
pub struct PodObject {
    uid: PodUid,
    full_name: FullName,
    facts: Facts,
    /// The phase in the source's object.
    pod: Pod,
}

#[derive(Clone, Copy, Debug)]
struct Facts {
    is_static: bool,
    is_mirror: bool,
    phase: Phase,
    deleting: bool,
    deletion_grace: Option<i64>,
    spec_grace: Option<i64>,
}

/// A pod has no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("pod {name:?} has no {missing}: set it, or let the source default it")]
#[non_exhaustive]
pub struct InvalidPod {
    /// The pod's name, if known.
    pub name: String,
    /// The path of the missing field.
    pub missing: &'static str,
}

impl PodObject {
    /// Wraps a pod.
    ///
    /// # Errors
    /// [`InvalidPod`] if name, namespace, UID or spec is missing.
    pub fn new(pod: Pod) -> Result<Arc<Self>, InvalidPod> {
        let meta = &pod.metadata;
        let need = |value: Option<&str>, missing: &'static str| match value {
            Some(text) if !text.is_empty() => Ok(text.to_owned()),
            _ => Err(InvalidPod { name: meta.name.clone().unwrap_or_default(), missing }),
        };
        let name = need(meta.name.as_deref(), "metadata.name")?;
        let namespace = need(meta.namespace.as_deref(), "metadata.namespace")?;
        let uid = need(meta.uid.as_deref(), "metadata.uid")?;
        let Some(spec) = pod.spec.as_ref() else {
            return Err(InvalidPod { name, missing: "spec" });
        };
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key));
        let facts = Facts {
            is_static: annotation(SOURCE_ANNOTATION).is_some_and(|source| source != "api"),
            is_mirror: annotation(MIRROR_ANNOTATION).is_some(),
            phase: Phase::parse(pod.status.as_ref().and_then(|status| status.phase.as_deref())),
            deleting: meta.deletion_timestamp.is_some(),
            deletion_grace: meta.deletion_grace_period_seconds,
            spec_grace: spec.termination_grace_period_seconds,
        };
        Ok(Arc::new(PodObject { uid: PodUid::new(&uid), full_name: FullName::new(&namespace, &name), facts, pod }))
    }

    /// The pod's UID.
    pub fn uid(&self) -> &PodUid {
        &self.uid
    }

    /// The pod's name and namespace.
    pub fn full_name(&self) -> &FullName {
        &self.full_name
    }

    /// Whether the pod came from a file or a URL.
    pub fn is_static(&self) -> bool {
        self.facts.is_static
    }

    /// Whether this is the mirror pod of a static pod.
    pub fn is_mirror(&self) -> bool {
        self.facts.is_mirror
    }

    /// Whether this mirror pod was made from that version of the static pod.
    pub fn is_mirror_of(&self, pod: &PodObject) -> bool {
        self.annotation(MIRROR_ANNOTATION) == Some(&*pod.manifest_hash())
    }

    /// The hash of a static pod's manifest, or the UID if the source gives no hash.
    pub fn manifest_hash(&self) -> String {
        self.annotation(HASH_ANNOTATION).map_or_else(|| self.uid().to_string(), str::to_owned)
    }

    /// Whether the pod is never evicted or preempted: a static pod, a mirror pod, or one of system-critical priority.
    pub fn is_critical(&self) -> bool {
        self.is_static() || self.is_mirror() || self.spec().priority.is_some_and(|p| p >= SYSTEM_CRITICAL_PRIORITY)
    }

    /// The phase in the source's object.
    pub fn phase(&self) -> Phase {
        self.facts.phase
    }

    /// Whether a deletion timestamp is set.
    pub fn is_deleting(&self) -> bool {
        self.facts.deleting
    }

    /// `metadata.deletionGracePeriodSeconds`.
    pub fn deletion_grace(&self) -> Option<i64> {
        self.facts.deletion_grace
    }

    /// `spec.terminationGracePeriodSeconds`.
    pub fn spec_grace(&self) -> Option<i64> {
        self.facts.spec_grace
    }

    /// Whether each of the pod's containers runs at most once: no container ever restarts.
    pub fn runs_once(&self) -> bool {
        let spec = self.spec();
        let never = |policy: Option<&str>| policy == Some("Never");
        let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
        never(spec.restart_policy.as_deref())
            && all.all(|one| one.restart_policy.is_none() || never(one.restart_policy.as_deref()))
    }

    /// The address for probes and hooks: the first address of the sandbox. A pod on the node's network has the node's address, as in
    /// `status.podIP`. Without any address its servers are on this machine. `None` for another pod without an address.
    pub fn address(&self, sandbox: Option<IpAddr>, node: Option<IpAddr>) -> Option<IpAddr> {
        match (sandbox, self.is_host_network()) {
            (Some(own), _) => Some(own),
            (None, true) => Some(node.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))),
            (None, false) => None,
        }
    }

    /// The grace period of the spec; one second if the spec has none.
    pub fn spec_grace_or_min(&self) -> Grace {
        self.facts.spec_grace.map_or(Grace::MIN, Grace::from_seconds)
    }

    /// The whole object.
    pub fn pod(&self) -> &Pod {
        &self.pod
    }

    /// `metadata`.
    pub fn metadata(&self) -> &ObjectMeta {
        &self.pod.metadata
    }

    /// `spec`.
    pub fn spec(&self) -> &PodSpec {
        self.pod.spec.as_ref().expect("`new` refuses a pod without spec")
    }

    /// `status`, if the object has one.
    pub fn status(&self) -> Option<&PodStatus> {
        self.pod.status.as_ref()
    }

    /// The value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }

    /// When the node first saw the pod, from its [`SEEN_ANNOTATION`].
    pub fn first_seen(&self) -> Option<Time> {
        self.annotation(SEEN_ANNOTATION)?.parse().ok().map(Time::from_timestamp)
    }

    /// The same pod with another first-seen time. The object is copied only if it is shared.
    pub fn with_first_seen(mut self: Arc<Self>, seen: &str) -> Arc<Self> {
        let set = |pod: &mut Pod| {
            pod.metadata.annotations.get_or_insert_default().insert(SEEN_ANNOTATION.to_owned(), seen.to_owned());
        };
        if self.annotation(SEEN_ANNOTATION) == Some(seen) {
            return self;
        }
        if let Some(object) = Arc::get_mut(&mut self) {
            set(&mut object.pod);
            return self;
        }
        let mut pod = self.pod.clone();
        set(&mut pod);
        // The annotation does not affect the identity, so the cached fields stay valid.
        Arc::new(PodObject { uid: self.uid.clone(), full_name: self.full_name.clone(), facts: self.facts, pod })
    }

    /// The same pod with another status.
    pub fn with_status(&self, status: PodStatus) -> Arc<Self> {
        let facts = Facts { phase: Phase::parse(status.phase.as_deref()), ..self.facts };
        let pod = Pod { status: Some(status), ..self.pod.clone() };
        Arc::new(PodObject { uid: self.uid.clone(), full_name: self.full_name.clone(), facts, pod })
    }

    /// The same pod with another spec.
    pub fn with_spec(&self, spec: PodSpec) -> Arc<Self> {
        let facts = Facts { spec_grace: spec.termination_grace_period_seconds, ..self.facts };
        let (metadata, status) = (self.pod.metadata.clone(), self.pod.status.clone());
        let pod = Pod { metadata, spec: Some(spec), status };
        Arc::new(PodObject { uid: self.uid.clone(), full_name: self.full_name.clone(), facts, pod })
    }

    /// The init containers, including sidecars, in spec order.
    pub fn init_containers(&self) -> &[Container] {
        self.spec().init_containers.as_deref().unwrap_or_default()
    }

    /// The regular containers in spec order.
    pub fn containers(&self) -> &[Container] {
        &self.spec().containers
    }

    /// The ephemeral containers in spec order.
    pub fn ephemeral_containers(&self) -> &[EphemeralContainer] {
        self.spec().ephemeral_containers.as_deref().unwrap_or_default()
    }

    /// Whether the pod has ResourceClaims, of its own or for extended resources.
    pub fn has_claims(&self) -> bool {
        self.spec().resource_claims.as_ref().is_some_and(|claims| !claims.is_empty())
            || self.status().is_some_and(|status| status.extended_resource_claim_status.is_some())
    }

    /// Whether the pod uses the node's network.
    pub fn is_host_network(&self) -> bool {
        self.spec().host_network.unwrap_or(false)
    }
}

/// Whether an init container is a sidecar (container-level restart policy `Always`, KEP-753).
pub fn is_sidecar(init_container: &Container) -> bool {
    init_container.restart_policy.as_deref() == Some("Always")
}
