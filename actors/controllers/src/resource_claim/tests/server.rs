//! A server in memory: the part of the API that the controller uses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaimStatus};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1alpha2::{PodGroup, PodGroupResourceClaimStatus};
use podwright_model::time::Time;

use super::without_names;
use crate::resource_claim::api::{Answer, ApiError, ApiErrorKind, Request, StatusApply, StatusEntry};
use crate::resource_claim::cache::Core;
use crate::resource_claim::keys::{Key, ObjectKey};
use crate::resource_claim::owners::{Owner, OwnerKind, object_key};
use crate::resource_claim::table::WatchEvent;

/// An object of a kind that the controller watches.
#[expect(clippy::large_enum_variant, reason = "a test has few objects")]
#[derive(Clone, Debug)]
pub(super) enum Object {
    Pod(Pod),
    Group(PodGroup),
    Claim(ResourceClaim),
    Template(ResourceClaimTemplate),
}

impl From<Pod> for Object {
    fn from(pod: Pod) -> Self {
        Object::Pod(pod)
    }
}

impl From<PodGroup> for Object {
    fn from(group: PodGroup) -> Self {
        Object::Group(group)
    }
}

impl From<ResourceClaim> for Object {
    fn from(claim: ResourceClaim) -> Self {
        Object::Claim(claim)
    }
}

impl From<ResourceClaimTemplate> for Object {
    fn from(template: ResourceClaimTemplate) -> Self {
        Object::Template(template)
    }
}

/// A change that the watches have not shown.
#[derive(Clone, Debug)]
pub(super) struct ServerEvent {
    pub(super) object: Object,
    pub(super) is_deletion: bool,
}

fn event<T>(object: T, is_deletion: bool) -> WatchEvent<T> {
    let object = Arc::new(object);
    if is_deletion { WatchEvent::Delete(object) } else { WatchEvent::Apply(object) }
}

impl ServerEvent {
    /// Shows the change to a controller.
    pub(super) fn show(self, core: &mut Core, now: Time) -> Vec<Key> {
        match self.object {
            Object::Pod(pod) => core.pod_event(event(pod, self.is_deletion)),
            Object::Group(group) => core.pod_group_event(event(group, self.is_deletion)),
            Object::Claim(claim) => core.claim_event(event(claim, self.is_deletion), now),
            Object::Template(template) => core.template_event(event(template, self.is_deletion)),
        }
    }
}

/// The objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    pub(super) pods: BTreeMap<ObjectKey, Pod>,
    pub(super) groups: BTreeMap<ObjectKey, PodGroup>,
    pub(super) claims: BTreeMap<ObjectKey, ResourceClaim>,
    pub(super) templates: BTreeMap<ObjectKey, ResourceClaimTemplate>,
    /// For each pod or group, by UID, the entries of the status that the controller has applied.
    applied: BTreeMap<String, BTreeSet<String>>,
    /// The UIDs of the pods from whose status a client has erased the names.
    erased: BTreeSet<String>,
    events: Vec<ServerEvent>,
    versions: u64,
    created: u64,
}

pub(super) fn error(kind: ApiErrorKind) -> ApiError {
    ApiError::new(kind, format!("{kind:?}").to_lowercase())
}

impl Server {
    pub(super) fn put(&mut self, object: Object) {
        self.versions += 1;
        let version = Some(self.versions.to_string());
        let object = match object {
            Object::Pod(mut pod) => {
                pod.metadata.resource_version = version;
                self.pods.insert(object_key(&pod.metadata), pod.clone());
                Object::Pod(pod)
            }
            Object::Group(mut group) => {
                group.metadata.resource_version = version;
                self.groups.insert(object_key(&group.metadata), group.clone());
                Object::Group(group)
            }
            Object::Claim(mut claim) => {
                claim.metadata.resource_version = version;
                self.claims.insert(object_key(&claim.metadata), claim.clone());
                Object::Claim(claim)
            }
            Object::Template(mut template) => {
                template.metadata.resource_version = version;
                self.templates.insert(object_key(&template.metadata), template.clone());
                Object::Template(template)
            }
        };
        self.events.push(ServerEvent { object, is_deletion: false });
    }

    /// A client that does not know the names of claims writes the status of a pod.
    pub(super) fn erase_names(&mut self, pod: Pod) {
        self.erased.extend(pod.metadata.uid.clone());
        self.put(without_names(pod).into());
    }

    /// Whether a client has erased the names from the status of a pod.
    pub(super) fn has_erased(&self, pod: &Pod) -> bool {
        pod.metadata.uid.as_ref().is_some_and(|uid| self.erased.contains(uid))
    }

    pub(super) fn remove(&mut self, object: &Object) {
        let removed = match object {
            Object::Pod(pod) => self.pods.remove(&object_key(&pod.metadata)).map(Object::Pod),
            Object::Group(group) => self.groups.remove(&object_key(&group.metadata)).map(Object::Group),
            Object::Claim(claim) => self.claims.remove(&object_key(&claim.metadata)).map(Object::Claim),
            Object::Template(template) => self.templates.remove(&object_key(&template.metadata)).map(Object::Template),
        };
        self.events.extend(removed.map(|object| ServerEvent { object, is_deletion: true }));
    }

    /// The entries that were applied and erased, and the numbers of the next version and name.
    pub(super) fn numbers(&self) -> impl std::fmt::Debug {
        (&self.applied, &self.erased, self.versions, self.created)
    }

    pub(super) fn take_events(&mut self) -> Vec<ServerEvent> {
        std::mem::take(&mut self.events)
    }

    /// Performs a call.
    pub(super) fn perform(&mut self, request: &Request) -> Result<Answer, ApiError> {
        match request {
            Request::CreateClaim(claim) => {
                let mut claim = (**claim).clone();
                self.created += 1;
                let base = claim.metadata.generate_name.clone().unwrap_or_default();
                claim.metadata.name = Some(format!("{base}{:05}", self.created));
                claim.metadata.uid = Some(format!("c-{}", self.created));
                Ok(Answer::Claim(Box::new(self.store(claim))))
            }
            Request::ApplyStatus(apply) => self.apply(apply),
            Request::ChangeClaim(change) => {
                self.check_version(&change.claim)?;
                let claim = change.changed_claim();
                let is_over = claim.metadata.deletion_timestamp.is_some()
                    && claim.metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
                if is_over {
                    self.remove(&claim.clone().into());
                    return Ok(Answer::Claim(Box::new(claim)));
                }
                Ok(Answer::Claim(Box::new(self.store(claim))))
            }
            Request::DeleteClaim { claim, uid } => {
                let known = self.claims.get(claim).ok_or_else(|| error(ApiErrorKind::NotFound))?;
                if known.metadata.uid.as_ref() != Some(uid) {
                    return Err(error(ApiErrorKind::Conflict));
                }
                self.delete_claim(claim);
                Ok(Answer::Done)
            }
            Request::GetClaim(key) => uid(self.claims.get(key).map(|claim| &claim.metadata.uid)),
            Request::GetPod(key) => uid(self.pods.get(key).map(|pod| &pod.metadata.uid)),
            Request::GetPodGroup(key) => uid(self.groups.get(key).map(|group| &group.metadata.uid)),
            Request::ListClaims { namespace } => {
                let claims = self.claims.iter().filter(|(key, _)| key.namespace == *namespace);
                Ok(Answer::Claims(Arc::new(claims.map(|(_, claim)| claim.metadata.clone()).collect())))
            }
        }
    }

    /// Deletes a claim. One with a finalizer stays.
    pub(super) fn delete_claim(&mut self, key: &ObjectKey) {
        let Some(mut claim) = self.claims.get(key).cloned() else { return };
        if claim.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
            self.remove(&claim.into());
        } else {
            claim.metadata.deletion_timestamp = Some(Time::from_secs(1).to_api());
            self.store(claim);
        }
    }

    fn store(&mut self, claim: ResourceClaim) -> ResourceClaim {
        let key = object_key(&claim.metadata);
        self.put(claim.into());
        self.claims[&key].clone()
    }

    fn check_version(&self, read: &ResourceClaim) -> Result<(), ApiError> {
        let known = self.claims.get(&object_key(&read.metadata)).ok_or_else(|| error(ApiErrorKind::NotFound))?;
        let is_same = known.metadata.resource_version == read.metadata.resource_version;
        if is_same { Ok(()) } else { Err(error(ApiErrorKind::Conflict)) }
    }

    /// Server-side apply: what the manager has applied before, and does not apply now, is removed.
    fn apply(&mut self, apply: &StatusApply) -> Result<Answer, ApiError> {
        let owner = match apply.kind {
            OwnerKind::Pod => self.pods.get(&apply.owner).cloned().map(|pod| Owner::Pod(Arc::new(pod))),
            OwnerKind::PodGroup => self.groups.get(&apply.owner).cloned().map(|g| Owner::PodGroup(Arc::new(g))),
        };
        let owner = owner.ok_or_else(|| error(ApiErrorKind::NotFound))?;
        if owner.uid() != apply.uid {
            return Err(error(ApiErrorKind::Conflict));
        }
        let names: BTreeSet<_> = apply.entries.iter().map(|entry| entry.name.clone()).collect();
        let before = self.applied.insert(apply.uid.clone(), names.clone()).unwrap_or_default();
        let is_foreign = |entry: &StatusEntry| !before.contains(&entry.name) && !names.contains(&entry.name);
        let kept = owner.statuses().into_iter().filter(is_foreign);
        let entries: Vec<_> = apply.entries.iter().cloned().chain(kept).collect();
        match owner {
            Owner::Pod(pod) => {
                let mut pod = (*pod).clone();
                let status = |e: StatusEntry| PodResourceClaimStatus { name: e.name, resource_claim_name: e.claim };
                let all = entries.into_iter().map(status).collect();
                pod.status.get_or_insert_default().resource_claim_statuses = Some(all);
                self.put(pod.into());
            }
            Owner::PodGroup(group) => {
                let mut group = (*group).clone();
                let status =
                    |e: StatusEntry| PodGroupResourceClaimStatus { name: e.name, resource_claim_name: e.claim };
                let all = entries.into_iter().map(status).collect();
                group.status.get_or_insert_default().resource_claim_statuses = Some(all);
                self.put(group.into());
            }
        }
        Ok(Answer::Written { resource_version: self.versions.to_string() })
    }
}

fn uid(found: Option<&Option<String>>) -> Result<Answer, ApiError> {
    let uid = found.ok_or_else(|| error(ApiErrorKind::NotFound))?;
    Ok(Answer::Uid(uid.clone().unwrap_or_default()))
}

/// A call as text.
pub(super) fn text(request: &Request) -> String {
    let name = |claim: &ResourceClaim| object_key(&claim.metadata).name;
    match request {
        Request::CreateClaim(claim) => format!("create {}", claim.metadata.generate_name.clone().unwrap_or_default()),
        Request::ApplyStatus(apply) => {
            let entry = |e: &StatusEntry| format!("{}={}", e.name, e.claim.as_deref().unwrap_or("none"));
            let entries: Vec<_> = apply.entries.iter().map(entry).collect();
            format!("apply {} {}", apply.owner.name, entries.join(" "))
        }
        Request::ChangeClaim(change) if change.edit.is_of_status() => {
            let consumers = change.changed_claim().status.and_then(|status| status.reserved_for).unwrap_or_default();
            let consumers: Vec<_> = consumers.into_iter().map(|consumer| consumer.name).collect();
            format!("status {} [{}]", name(&change.claim), consumers.join(" "))
        }
        Request::ChangeClaim(change) => format!("update {}", name(&change.claim)),
        Request::DeleteClaim { claim, .. } => format!("delete {}", claim.name),
        Request::GetClaim(key) => format!("get claim {}", key.name),
        Request::GetPod(key) => format!("get pod {}", key.name),
        Request::GetPodGroup(key) => format!("get group {}", key.name),
        Request::ListClaims { namespace } => format!("list {namespace}"),
    }
}
