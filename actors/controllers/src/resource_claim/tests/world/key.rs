//! What makes two states of the world different.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::*;
use crate::resource_claim::ownership::is_allocated;

impl Hash for World {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key().hash(hasher);
    }
}

impl PartialEq for World {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl World {
    /// All that the behaviour depends on. The indexes of the core follow from its objects.
    fn key(&self) -> String {
        let core = &self.core;
        let known: Vec<_> = core.pods().map(|pod| pod_text(pod)).chain(core.claims().map(|c| claim_text(c))).collect();
        let known: BTreeSet<_> = known.into_iter().chain(core.groups.iter().map(|g| group_text(g))).collect();
        let templates: BTreeSet<_> = core.templates.iter().map(|template| &template.metadata.name).collect();
        let memory = (&core.pending, &core.unanswered, &core.own_writes, &core.deleted);
        let server = &self.server;
        let stored: Vec<_> = server.pods.values().map(pod_text).chain(server.claims.values().map(claim_text)).collect();
        let groups: Vec<_> = server.groups.values().map(group_text).collect();
        let hidden: Vec<_> = self.hidden.iter().flatten().map(event_text).collect();
        let running: Vec<_> = self.running.iter().map(|running| (&running.key, &running.pass)).collect();
        let late: Vec<_> = self.late.iter().map(|(until, request)| (until, server::text(request))).collect();
        let listing = self.listing.as_ref().map(|claims| claims.iter().map(claim_text).collect::<Vec<_>>());
        let list = (listing, core.claims_list_began);
        let outside = (stored, groups, server.templates.len(), server.numbers(), late, self.now, &self.broken);
        format!("{known:?} {templates:?} {memory:?} {hidden:?} {list:?} {:?} {running:?} {outside:?}", self.queue)
    }
}

fn pod_text(pod: &Pod) -> String {
    let (meta, owner) = (&pod.metadata, pod_owner(pod));
    let status = (owner.statuses(), is_done(pod), crate::resource_claim::owners::node_name(pod));
    format!("{:?} {:?} {:?} {status:?}", meta.name, meta.uid, meta.resource_version)
}

fn group_text(group: &PodGroup) -> String {
    let (meta, owner) = (&group.metadata, group_owner(group));
    format!("{:?} {:?} {:?} {:?}", meta.name, meta.uid, meta.resource_version, owner.statuses())
}

fn claim_text(claim: &ResourceClaim) -> String {
    let meta = &claim.metadata;
    let state = (&meta.finalizers, meta.deletion_timestamp.is_some(), is_allocated(claim), consumers(claim));
    format!("{:?} {:?} {:?} {:?} {state:?}", meta.name, meta.uid, meta.resource_version, OwnerId::of_claim(meta))
}

fn event_text(event: &ServerEvent) -> impl fmt::Debug {
    let object = match &event.object {
        Object::Pod(pod) => pod_text(pod),
        Object::Claim(claim) => claim_text(claim),
        Object::Group(group) => group_text(group),
        Object::Template(template) => format!("{:?}", template.metadata.name),
    };
    (event.is_deletion, object)
}
