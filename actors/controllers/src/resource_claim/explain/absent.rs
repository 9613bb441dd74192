//! Why a claim does not exist.

use std::collections::HashSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_model::time::Time;

use super::super::cache::{Core, Found};
use super::super::generate::check_template;
use super::super::keys::ObjectKey;
use super::super::names::{ClaimEntry, NameError, Named, generate_name, is_cut};
use super::super::owners::{AllowedWork, Owner, object_key, pod_group_name};
use super::super::ownership::{BindTarget, bind_target};
use super::super::pass::Fault;
use super::{ClaimExplanation, ClaimReason, ReasonKind};

impl Core {
    /// Adds a reason for each claim of a spec that this name may stand for.
    pub(super) fn explain_absent(&self, claim: &ObjectKey, now: Time, explanation: &mut ClaimExplanation) {
        for owner in self.candidates(claim) {
            let statuses = self.statuses(&owner);
            for entry in owner.claims() {
                let named = entry.named(&statuses);
                let is_guessed = is_guessed_name(&claim.name, &owner.key().name, &entry.name);
                let is_meant = match &named {
                    Ok(Named::Claim { name, .. }) => *name == claim.name || is_guessed,
                    Ok(Named::NotNeeded) | Err(_) => {
                        is_guessed || is_generated_name(&claim.name, &owner.key().name, &entry.name)
                    }
                };
                if is_meant {
                    explanation.reasons.push(self.absence(&owner, &entry, named, now));
                    explanation.add_owner(&owner);
                }
            }
        }
        if explanation.reasons.is_empty() {
            let detail = "No known pod uses a claim of this name.".to_owned();
            explanation.add(ReasonKind::NotUsed, detail, "a pod uses the claim");
        }
    }

    /// The pods and groups that may use a claim of this name. The core is locked during the search and may have 150,000 pods, so the names
    /// of the other pods are not copied.
    fn candidates(&self, claim: &ObjectKey) -> Vec<Owner> {
        let pods = self.pods_by_claim.get(claim).filter_map(|key| self.pods.get(key));
        let groups = self.groups_by_claim.get(claim).filter_map(|key| self.groups.get(key));
        let named = pods.cloned().map(Owner::Pod).chain(groups.cloned().map(Owner::PodGroup));
        let mut found: Vec<_> = named.collect();
        let named: HashSet<_> = found.iter().map(|owner| owner.uid().to_owned()).collect();
        let is_named = |metadata: &ObjectMeta| named.contains(metadata.uid.as_deref().unwrap_or_default());
        let pods = self.pods.iter().filter(|pod| {
            let entries = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
            may_be_meant(claim, &pod.metadata, entries.map(|entry| &*entry.name)) && !is_named(&pod.metadata)
        });
        found.extend(pods.cloned().map(Owner::Pod));
        let groups = self.groups.iter().filter(|group| {
            let entries = group.spec.resource_claims.iter().flatten();
            may_be_meant(claim, &group.metadata, entries.map(|entry| &*entry.name)) && !is_named(&group.metadata)
        });
        found.extend(groups.cloned().map(Owner::PodGroup));
        found
    }

    /// Why the claim of an entry does not exist.
    fn absence(&self, owner: &Owner, entry: &ClaimEntry, named: Result<Named, NameError>, now: Time) -> ClaimReason {
        let of = format!("{} {}", owner.kind().as_str(), owner.key());
        let reason = |what, detail, released_by| ClaimReason { what, detail, released_by };
        if let Ok(Named::Claim { name, .. }) = &named {
            let key = ObjectKey::new(&owner.key().namespace, name);
            if let Some(claim) = self.claims.get(&key) {
                let detail = match self.belongs_to(claim, owner) {
                    Ok(()) => format!("The claim {:?} of {of} is ResourceClaim {key}. Use this name.", entry.name),
                    Err(_) => format!(
                        "The status of {of} names ResourceClaim {key} for its claim {:?}, which belongs to another object.",
                        entry.name
                    ),
                };
                return reason(ReasonKind::OtherName, detail, "nothing: no claim gets the name that you gave");
            }
        }
        match named {
            Ok(Named::Claim { is_generated: false, .. }) => {
                let detail = format!("{of} uses the claim by its name, and a user has not created it.");
                return reason(ReasonKind::NotCreatedByUser, detail, "a user creates the claim");
            }
            Ok(Named::NotNeeded) => {
                let detail = format!("The status of {of} says that its claim {:?} is not needed.", entry.name);
                return reason(ReasonKind::NotNeeded, detail, "the component that wrote the status changes it");
            }
            Ok(Named::Claim { is_generated: true, .. }) | Err(_) if owner.allowed_work() != AllowedWork::All => {
                let detail = format!("{of} has ended or is being deleted, so no claim is generated for it.");
                return reason(ReasonKind::OwnerEnded, detail, "nothing");
            }
            Ok(Named::Claim { is_generated: true, .. }) | Err(_) => {}
        }
        match self.obstacle(owner, entry, now) {
            Obstacle::Fault(fault) => {
                let detail = format!("No claim is generated for {:?} of {of}: {fault}.", entry.name);
                reason(ReasonKind::NotGenerated, detail, "you correct this error, and the next pass runs")
            }
            Obstacle::Unanswered(fault) => {
                let detail = format!("No claim is generated for {:?} of {of} yet: {fault}.", entry.name);
                reason(ReasonKind::Unanswered, detail, "a list from the API server shows whether the claim was created")
            }
            Obstacle::NotShown(name) => {
                let detail =
                    format!("ResourceClaim {name} was generated for {of}, and the watch does not show it yet.");
                reason(ReasonKind::NotShown, detail, "the watch shows the claim")
            }
            Obstacle::None => {
                let detail = format!("The next pass of {of} generates the claim.");
                reason(ReasonKind::PassDue, detail, "the next pass runs")
            }
        }
    }

    /// What prevents the generation of a claim.
    fn obstacle(&self, owner: &Owner, entry: &ClaimEntry, now: Time) -> Obstacle {
        let Some(template) = &entry.template else {
            return Obstacle::Fault(NameError::Unsupported(entry.name.clone()).into());
        };
        if let Owner::Pod(pod) = owner {
            let group = self.group_of(pod).cloned();
            if group.is_none()
                && let Some(name) = pod_group_name(pod).filter(|_| self.features.pod_groups)
            {
                return Obstacle::Fault(Fault::GroupNotFound(ObjectKey::new(&owner.key().namespace, name)));
            }
            match (bind_target(pod, group.as_deref(), entry, self.features), group) {
                (Err(error), _) => return Obstacle::Fault(error.into()),
                (Ok(BindTarget::PodGroup), Some(group)) => return self.obstacle(&Owner::PodGroup(group), entry, now),
                (Ok(_), _) => {}
            }
        }
        let key = ObjectKey::new(&owner.key().namespace, template);
        match (self.generated(&owner.id(), &entry.name, now), self.templates.get(&key)) {
            (Some(Found::Claim(name)), _) => Obstacle::NotShown(ObjectKey::new(&key.namespace, &name)),
            _ if let Some(settling) = self.unanswered.settling(&owner.id(), &entry.name, now) => {
                let settles_in = settling.delay();
                Obstacle::Unanswered(Fault::Unanswered { owner: owner.key(), entry: entry.name.clone(), settles_in })
            }
            (Some(Found::Unconfirmed(claim)), _) => Obstacle::NotShown(object_key(&claim)),
            (None, None) => Obstacle::Fault(Fault::TemplateNotFound(key)),
            (None, Some(template)) => match check_template(&template.spec.spec, self.features) {
                Err(refused) => Obstacle::Fault(Fault::TemplateRefused { template: key, refused }),
                Ok(()) => Obstacle::None,
            },
        }
    }
}

enum Obstacle {
    /// The claim cannot be generated.
    Fault(Fault),
    /// The result of a create is not known.
    Unanswered(Fault),
    /// The claim was generated.
    NotShown(ObjectKey),
    None,
}

/// Whether a name may mean a claim of a pod or group with these entries: it begins with the name of the pod or group, or a generated name
/// is so long that it has only the beginning of that name.
fn may_be_meant<'a>(claim: &ObjectKey, owner: &ObjectMeta, mut entries: impl Iterator<Item = &'a str>) -> bool {
    let name = owner.name.as_deref().unwrap_or_default();
    owner.namespace.as_deref() == Some(&*claim.namespace)
        && (claim.name.starts_with(name) || entries.any(|entry| is_cut(name, entry)))
}

/// Whether the claim that is generated for an entry may get this name.
fn is_generated_name(name: &str, owner: &str, entry: &str) -> bool {
    let base = generate_name(owner, entry);
    name.strip_prefix(&base).is_some_and(|random| !random.contains('-'))
}

/// Whether a user who does not know the name of a generated claim may write this name: `POD` or `POD-CLAIM`, even if it is too long for the
/// name of a claim.
fn is_guessed_name(name: &str, owner: &str, entry: &str) -> bool {
    let is_both = name.strip_prefix(owner).and_then(|rest| rest.strip_prefix('-')) == Some(entry);
    name == owner || is_both || generate_name(owner, entry).strip_suffix('-') == Some(name)
}
