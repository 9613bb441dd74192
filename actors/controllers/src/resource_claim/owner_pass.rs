//! The pass of a pod or pod group: generates its claims, writes their names to its status, and reserves them for a pod on a node. For a pod
//! that is being deleted on a node, it only writes the names of claims that exist.
//!
//! ```text
//!              .--> Confirming --.
//!  Generating -+--> Listing -----+--> Generating, the same claim again
//!      |       `--> Creating --------> Generating, the next claim
//!      `-- all claims --> Applying, if a name is new --> Reserving <--> Updating, one claim after the other
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_model::time::Time;

use super::api::{Answer, ApiError, ApiErrorKind, OwnerWarning, Request, StatusApply, StatusEntry};
use super::cache::{Core, Found};
use super::counts::has_admin_access;
use super::generate::{check_template, new_claim};
use super::keys::ObjectKey;
use super::names::{ClaimEntry, NameError, Named};
use super::owners::{AllowedWork, Owner, OwnerId, OwnerKind, object_key, pod_group_name};
use super::ownership::{BindTarget, BindTargetError, bind_target};
use super::pass::{ClaimWrite, Fact, Fault, Step, fault, report};
use super::unanswered::Settling;
use super::written::OwnWrite;

#[derive(Clone, Debug)]
pub(super) struct OwnerPass {
    /// The newest known state. Each step reads it again.
    pub(super) owner: Owner,
    pub(super) claims: Vec<ClaimEntry>,
    /// The index of the current entry in `claims`.
    pub(super) at: usize,
    pub(super) stage: Stage,
    /// The names of claims that this pass has found or created, and that the status does not have.
    pub(super) new_names: BTreeMap<String, String>,
    /// The names of claims that may exist. They are written only with others, so that the write does not remove them.
    unconfirmed: BTreeMap<String, String>,
    /// The claims that this pass has reserved. The watch may not show that yet.
    pub(super) reserved: BTreeSet<ObjectKey>,
    pub(super) faults: Vec<Fault>,
    pub(super) facts: Vec<Fact>,
}

#[derive(Clone, Debug)]
pub(super) enum Stage {
    Begin,
    Generating,
    /// A call reads a claim that may not exist any more. The call is sent at this time or later.
    Confirming {
        owner: OwnerId,
        claim: Arc<ObjectMeta>,
        requested: Time,
    },
    /// A call lists the claims, because a create without an answer may have been performed. The list is sent at this time or later.
    Listing {
        requested: Time,
    },
    Creating {
        admin_access: bool,
    },
    /// A call writes the names to the status.
    Applying {
        /// The write of this status before the call, if the watch does not show it yet.
        before: Option<OwnWrite>,
    },
    Reserving,
    /// A call reserves a claim.
    Updating {
        claim: ObjectKey,
        consumer: String,
    },
}

impl OwnerPass {
    pub(super) fn new(owner: Owner) -> Self {
        OwnerPass {
            claims: owner.claims(),
            owner,
            at: 0,
            stage: Stage::Begin,
            new_names: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            reserved: BTreeSet::new(),
            faults: Vec::new(),
            facts: Vec::new(),
        }
    }

    pub(super) fn step(&mut self, core: &mut Core, answer: Option<Result<Answer, ApiError>>, now: Time) -> Step {
        if let Some(answer) = answer {
            self.answered(core, answer, now);
        }
        // The object may have ended or been replaced during the call.
        let Some(owner) = core.current(&self.owner) else { return self.end() };
        self.owner = owner;
        let work = self.owner.allowed_work();
        if work == AllowedWork::Nothing {
            return self.end();
        }
        loop {
            let request = match self.stage {
                Stage::Begin => {
                    if let Owner::Pod(pod) = &self.owner
                        && let Some(group) = pod_group_name(pod).filter(|_| core.features.pod_groups)
                        && core.group_of(pod).is_none()
                    {
                        // A pod that is being deleted may outlive its group.
                        if work == AllowedWork::All {
                            self.faults.push(Fault::GroupNotFound(ObjectKey::new(&self.owner.key().namespace, group)));
                        }
                        return self.end();
                    }
                    self.stage = Stage::Generating;
                    None
                }
                Stage::Generating => match self.claims.get(self.at).cloned() {
                    Some(entry) if work == AllowedWork::Record => self.adopt(core, &entry, now),
                    Some(entry) => match self.generate(core, &entry, now) {
                        Ok(request) => request,
                        Err(fault) => {
                            self.generation_failed(&entry, fault);
                            None
                        }
                    },
                    None => self.apply(core),
                },
                Stage::Reserving if self.at == self.claims.len() => return self.end(),
                Stage::Reserving => self.reserve(core),
                // Each of these stages waits for an answer, which has set another stage before.
                Stage::Confirming { .. }
                | Stage::Listing { .. }
                | Stage::Creating { .. }
                | Stage::Applying { .. }
                | Stage::Updating { .. } => return self.end(),
            };
            if let Some(request) = request {
                return Step::Call(request);
            }
        }
    }

    fn end(&mut self) -> Step {
        Step::Done(report(std::mem::take(&mut self.faults), std::mem::take(&mut self.facts)))
    }

    /// Finds the claim of an entry, or names the call that is needed. Without a call, the next entry follows.
    fn generate(&mut self, core: &mut Core, entry: &ClaimEntry, now: Time) -> Result<Option<Request>, Fault> {
        let statuses = core.statuses(&self.owner);
        let namespace = self.owner.key().namespace;
        let mut recorded = None;
        match entry.named(&statuses) {
            Ok(Named::NotNeeded) => return Ok(self.next()),
            Ok(Named::Claim { name, is_generated }) => {
                if let Some(claim) = core.claims.get(&ObjectKey::new(&namespace, &name)) {
                    match core.belongs_to(claim, &self.owner) {
                        Err(foreign) if is_generated => self.facts.push(Fact::Foreign(foreign)),
                        Ok(()) | Err(_) => return Ok(self.next()),
                    }
                }
                recorded = Some(name);
            }
            Err(NameError::NotCreated(_)) => {}
            Err(fault @ NameError::Unsupported(_)) => return Err(fault.into()),
        }
        let Some(template) = &entry.template else { return Ok(self.next()) };
        let id = self.owner_of_claim(core, entry)?;
        match core.generated(&id, &entry.name, now) {
            Some(Found::Claim(name)) => {
                if recorded.as_ref() != Some(&name) {
                    self.new_names.insert(entry.name.clone(), name);
                }
                return Ok(self.next());
            }
            Some(Found::Unconfirmed(claim)) => return Ok(Some(self.confirm(id, claim, now))),
            // The pass of the group makes the claims of the group. Then the new status of the group queues the pod again.
            None if id != self.owner.id() => return Ok(self.next()),
            None => {}
        }
        match core.unanswered.settling(&id, &entry.name, now) {
            Some(Settling::List) => {
                core.unanswered.dropped(&id, &entry.name, now);
                self.stage = Stage::Listing { requested: now };
                return Ok(Some(Request::ListClaims { namespace }));
            }
            // The lost answer was reported already, so this wait is not a further failure.
            Some(Settling::Wait(settles_in)) => {
                self.faults.push(Fault::Unanswered { owner: self.owner.key(), entry: entry.name.clone(), settles_in });
                return Ok(self.next());
            }
            None => {}
        }
        let key = ObjectKey::new(&namespace, template);
        let Some(template) = core.templates.get(&key) else { return Err(Fault::TemplateNotFound(key)) };
        check_template(&template.spec.spec, core.features)
            .map_err(|refused| Fault::TemplateRefused { template: key, refused })?;
        let claim = new_claim(&self.owner, &entry.name, template);
        // Recorded before the call: if the pass is dropped or the answer is lost, the server may still perform the create.
        core.unanswered.sent(&self.owner, &entry.name, now);
        self.stage = Stage::Creating { admin_access: has_admin_access(&claim.spec) };
        Ok(Some(Request::CreateClaim(Box::new(claim))))
    }

    /// Finds a claim whose name somebody has erased from the status of a pod that is being deleted.
    fn adopt(&mut self, core: &Core, entry: &ClaimEntry, now: Time) -> Option<Request> {
        let is_erased = matches!(entry.named(&core.statuses(&self.owner)), Err(NameError::NotCreated(_)));
        if is_erased && let Ok(id) = self.owner_of_claim(core, entry) {
            match core.generated(&id, &entry.name, now) {
                Some(Found::Claim(name)) => {
                    self.new_names.insert(entry.name.clone(), name);
                }
                Some(Found::Unconfirmed(claim)) => return Some(self.confirm(id, claim, now)),
                None => {}
            }
        }
        self.next()
    }

    /// Reads a claim, and then works on the same entry again.
    fn confirm(&mut self, owner: OwnerId, claim: Arc<ObjectMeta>, now: Time) -> Request {
        let key = object_key(&claim);
        self.stage = Stage::Confirming { owner, claim, requested: now };
        Request::GetClaim(key)
    }

    /// The pod or group that the claim of an entry is generated for.
    fn owner_of_claim(&self, core: &Core, entry: &ClaimEntry) -> Result<OwnerId, BindTargetError> {
        let Owner::Pod(pod) = &self.owner else { return Ok(self.owner.id()) };
        let group = core.group_of(pod);
        match (bind_target(pod, group.map(|group| &**group), entry, core.features)?, group) {
            (BindTarget::PodGroup, Some(group)) => Ok(Owner::PodGroup(group.clone()).id()),
            (BindTarget::PodGroup, None) | (BindTarget::Pod, _) => Ok(self.owner.id()),
        }
    }

    fn next(&mut self) -> Option<Request> {
        self.at += 1;
        None
    }

    /// One claim could not be generated. The pass continues with the next claim.
    fn generation_failed(&mut self, entry: &ClaimEntry, fault: Fault) {
        let kind = self.owner.kind();
        let prefix = match kind {
            OwnerKind::Pod => "PodResourceClaim",
            OwnerKind::PodGroup => "PodGroupResourceClaim",
        };
        let message = format!("{prefix} {}: {fault}", entry.name);
        let (owner, uid) = (self.owner.key(), self.owner.uid().to_owned());
        self.facts.push(Fact::GenerationFailed(OwnerWarning { kind, owner, uid, message }));
        self.faults.push(fault);
        self.stage = Stage::Generating;
        self.at += 1;
    }

    /// Writes the names, if one is new. The server removes each name that an earlier write had and this one does not have. So the
    /// write has all names: also those of claims that this pass could not work on, and those that the watch does not show yet.
    fn apply(&mut self, core: &mut Core) -> Option<Request> {
        self.at = 0;
        if self.new_names.is_empty() {
            self.stage = Stage::Reserving;
            return None;
        }
        let id = self.owner.id();
        let (statuses, written) = (core.statuses(&self.owner), core.own_writes.entries(&id));
        let entry = |entry: &ClaimEntry| {
            let of_entry = |statuses: &[StatusEntry]| statuses.iter().find(|status| status.name == entry.name).cloned();
            let with = |claim: &String| StatusEntry { name: entry.name.clone(), claim: Some(claim.clone()) };
            let new = self.new_names.get(&entry.name).map(with);
            // A write whose answer was lost may have been performed. Then its name is newer than that of the watch.
            let known = of_entry(&statuses).filter(|status| status.claim.is_none()).or_else(|| of_entry(written));
            let known = known.or_else(|| of_entry(&statuses));
            new.or(known).or_else(|| self.unconfirmed.get(&entry.name).map(with))
        };
        let entries: Vec<_> = self.claims.iter().filter_map(entry).collect();
        self.stage = Stage::Applying { before: core.own_writes.sent(id, entries.clone()) };
        let (kind, owner, uid) = (self.owner.kind(), self.owner.key(), self.owner.uid().to_owned());
        Some(Request::ApplyStatus(StatusApply { kind, owner, uid, entries }))
    }

    fn answered(&mut self, core: &mut Core, answer: Result<Answer, ApiError>, now: Time) {
        let key = self.owner.key();
        let id = self.owner.id();
        let entry = self.claims.get(self.at).cloned();
        match (std::mem::replace(&mut self.stage, Stage::Generating), entry) {
            (Stage::Confirming { owner, claim, requested }, Some(entry)) => match answer {
                Ok(Answer::Uid(uid)) if claim.uid.as_ref() == Some(&uid) => {
                    core.pending.confirm(&claim, now);
                    core.unanswered.found(&owner, &entry.name, requested);
                }
                Ok(Answer::Uid(_)) | Err(ApiError { kind: ApiErrorKind::NotFound, .. }) => {
                    core.pending.claim_gone(&claim);
                }
                answer => {
                    let key = object_key(&claim);
                    self.unconfirmed.insert(entry.name.clone(), key.name.clone());
                    self.generation_failed(&entry, fault("read ResourceClaim", key, answer));
                }
            },
            (Stage::Listing { requested }, Some(entry)) => match answer {
                // The other pods and groups of the namespace then need no list of their own.
                Ok(Answer::Claims(claims)) => core.namespace_listed(&id.namespace, &claims, requested, now),
                answer => self.generation_failed(&entry, fault("list the ResourceClaims for", key, answer)),
            },
            (Stage::Creating { admin_access }, Some(entry)) => {
                let succeeded = matches!(answer, Ok(Answer::Claim(_)));
                self.facts.push(Fact::Created { succeeded, admin_access });
                match answer {
                    Ok(Answer::Claim(claim)) => {
                        core.unanswered.settled(&id, &entry.name);
                        let made =
                            ClaimWrite::Created { claim: object_key(&claim.metadata), entry: entry.name.clone() };
                        self.facts.push(Fact::Wrote(made));
                        self.new_names.insert(entry.name, claim.metadata.name.clone().unwrap_or_default());
                        core.remember(id, claim.metadata, now);
                        self.at += 1;
                    }
                    answer => {
                        match &answer {
                            Err(error) if error.kind != ApiErrorKind::Unknown => {
                                core.unanswered.settled(&id, &entry.name);
                            }
                            Ok(_) | Err(_) => core.unanswered.lost(&id, &entry.name, now),
                        }
                        self.generation_failed(&entry, fault("create a ResourceClaim for", key, answer));
                    }
                }
            }
            (Stage::Applying { before }, _) => {
                self.stage = Stage::Reserving;
                match answer {
                    Ok(Answer::Written { resource_version }) => {
                        core.status_stored(&self.owner, &resource_version);
                        let names: Vec<_> =
                            self.new_names.iter().map(|(entry, claim)| format!("{entry}={claim}")).collect();
                        self.facts.push(Fact::Wrote(ClaimWrite::Recorded { names: names.join(" ") }));
                    }
                    answer => {
                        if matches!(&answer, Err(error) if error.kind != ApiErrorKind::Unknown) {
                            core.status_refused(&self.owner, before);
                        }
                        self.new_names.clear();
                        self.faults.push(fault("write the status of", key, answer));
                    }
                }
            }
            (Stage::Updating { claim, consumer }, _) => {
                self.stage = Stage::Reserving;
                match answer {
                    Ok(Answer::Claim(_)) => {
                        self.facts.push(Fact::Wrote(ClaimWrite::Reserved { claim: claim.clone(), consumer }));
                        self.reserved.insert(claim);
                    }
                    answer => self.faults.push(fault("reserve ResourceClaim", claim, answer)),
                }
                self.at += 1;
            }
            // These stages have no call, so no answer belongs to them.
            (stage, _) => self.stage = stage,
        }
    }
}
