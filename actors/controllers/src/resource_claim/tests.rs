//! Scenarios of the controller against a server in memory, whose watches show a change when the test says so.

mod events;
mod explain;
mod generation;
mod helpers;
mod model;
mod numbers;
mod orders;
mod pending;
mod reservation;
mod server;
mod unanswered;
mod world;
mod written;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Pod, PodExtendedResourceClaimStatus, PodResourceClaim, PodResourceClaimStatus, PodSchedulingGroup, PodSpec,
};
use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceClaim, DeviceRequest, DeviceSubRequest, ExactDeviceRequest, ResourceClaim,
    ResourceClaimConsumerReference, ResourceClaimTemplate,
};
use k8s_openapi::api::scheduling::v1alpha2::{PodGroup, PodGroupResourceClaim, PodGroupResourceClaimStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_model::time::Time;

use self::server::{Object, Server};
use super::api::{ApiErrorKind, CLAIM_FINALIZER, POD_CLAIM_NAME_ANNOTATION};
use super::cache::Core;
use super::features::Features;
use super::keys::{Key, ObjectKey};
use super::owners::Owner;
use super::pass::{ClaimWrite, Fact, Report, Step};

const NAMESPACE: &str = "shop";
const GROUPS: Features = Features { admin_access: true, prioritized_list: true, pod_groups: true };

fn object(name: &str) -> ObjectKey {
    ObjectKey::new(NAMESPACE, name)
}

fn metadata(name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(NAMESPACE.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(format!("{name}-uid")),
        ..ObjectMeta::default()
    }
}

/// A pod whose claims come from templates.
fn pod(name: &str, claims: &[(&str, &str)]) -> Pod {
    let claim = |(name, template): &(&str, &str)| PodResourceClaim {
        name: (*name).to_owned(),
        resource_claim_name: None,
        resource_claim_template_name: Some((*template).to_owned()),
    };
    let spec = PodSpec { resource_claims: Some(claims.iter().map(claim).collect()), ..PodSpec::default() };
    Pod { metadata: metadata(name), spec: Some(spec), status: None }
}

/// A pod with a claim that a user has made.
fn pod_with_claim(name: &str, claim: &str) -> Pod {
    let mut pod = pod(name, &[("res", "")]);
    let claims = pod.spec.get_or_insert_default().resource_claims.get_or_insert_default();
    claims[0].resource_claim_template_name = None;
    claims[0].resource_claim_name = Some(claim.to_owned());
    pod
}

fn in_group(mut pod: Pod, group: &str) -> Pod {
    let group = PodSchedulingGroup { pod_group_name: Some(group.to_owned()) };
    pod.spec.get_or_insert_default().scheduling_group = Some(group);
    pod
}

fn on_node(mut pod: Pod) -> Pod {
    pod.spec.get_or_insert_default().node_name = Some("n7".to_owned());
    pod
}

fn deleting(mut pod: Pod) -> Pod {
    pod.metadata.deletion_timestamp = Some(Time::from_secs(1).to_api());
    pod
}

fn in_phase(mut pod: Pod, phase: &str) -> Pod {
    pod.status.get_or_insert_default().phase = Some(phase.to_owned());
    pod
}

fn recorded(mut pod: Pod, entries: &[(&str, Option<&str>)]) -> Pod {
    let entry = |(name, claim): &(&str, Option<&str>)| PodResourceClaimStatus {
        name: (*name).to_owned(),
        resource_claim_name: claim.map(str::to_owned),
    };
    pod.status.get_or_insert_default().resource_claim_statuses = Some(entries.iter().map(entry).collect());
    pod
}

/// The pod after a client that does not know the names of claims has written its status.
fn without_names(mut pod: Pod) -> Pod {
    pod.status.get_or_insert_default().resource_claim_statuses = None;
    pod
}

fn with_extended_claim(mut pod: Pod, claim: &str) -> Pod {
    let status = PodExtendedResourceClaimStatus { resource_claim_name: claim.to_owned(), request_mappings: Vec::new() };
    pod.status.get_or_insert_default().extended_resource_claim_status = Some(status);
    pod
}

fn group(name: &str, claims: &[(&str, &str)]) -> PodGroup {
    let claim = |(name, template): &(&str, &str)| PodGroupResourceClaim {
        name: (*name).to_owned(),
        resource_claim_name: None,
        resource_claim_template_name: Some((*template).to_owned()),
    };
    let mut group = PodGroup { metadata: metadata(name), ..PodGroup::default() };
    group.spec.resource_claims = Some(claims.iter().map(claim).collect());
    group
}

fn group_recorded(mut group: PodGroup, entry: &str, claim: &str) -> PodGroup {
    let status = PodGroupResourceClaimStatus { name: entry.to_owned(), resource_claim_name: Some(claim.to_owned()) };
    group.status.get_or_insert_default().resource_claim_statuses = Some(vec![status]);
    group
}

fn template(name: &str) -> ResourceClaimTemplate {
    ResourceClaimTemplate { metadata: metadata(name), ..ResourceClaimTemplate::default() }
}

fn requests(admin_access: Option<bool>) -> DeviceClaim {
    let exactly = ExactDeviceRequest { admin_access, ..ExactDeviceRequest::default() };
    let request = DeviceRequest { name: "r".to_owned(), exactly: Some(exactly), first_available: None };
    DeviceClaim { requests: Some(vec![request]), ..DeviceClaim::default() }
}

fn prioritized() -> DeviceClaim {
    let list = Some(vec![DeviceSubRequest::default()]);
    let request = DeviceRequest { name: "r".to_owned(), exactly: None, first_available: list };
    DeviceClaim { requests: Some(vec![request]), ..DeviceClaim::default() }
}

fn claim(name: &str) -> ResourceClaim {
    ResourceClaim { metadata: metadata(name), ..ResourceClaim::default() }
}

/// A claim that was generated for the entry `res`.
fn generated(name: &str, owner: &Owner) -> ResourceClaim {
    let mut claim = claim(name);
    claim.metadata.owner_references = Some(vec![owner.owner_reference()]);
    claim.metadata.annotations = Some([(POD_CLAIM_NAME_ANNOTATION.to_owned(), "res".to_owned())].into_iter().collect());
    claim
}

fn allocated(mut claim: ResourceClaim) -> ResourceClaim {
    claim.status.get_or_insert_default().allocation = Some(AllocationResult::default());
    claim
}

fn with_finalizer(mut claim: ResourceClaim) -> ResourceClaim {
    claim.metadata.finalizers = Some(vec![CLAIM_FINALIZER.to_owned()]);
    claim
}

fn reserved(mut claim: ResourceClaim, consumers: &[ResourceClaimConsumerReference]) -> ResourceClaim {
    claim.status.get_or_insert_default().reserved_for = Some(consumers.to_vec());
    claim
}

fn pod_owner(pod: &Pod) -> Owner {
    Owner::Pod(Arc::new(pod.clone()))
}

fn group_owner(group: &PodGroup) -> Owner {
    Owner::PodGroup(Arc::new(group.clone()))
}

fn consumer(pod: &Pod) -> ResourceClaimConsumerReference {
    pod_owner(pod).consumer()
}

/// A controller whose watches are in step with the server.
struct Cluster {
    core: Core,
    server: Server,
    now: Time,
    /// The calls, as text.
    calls: Vec<String>,
    facts: Vec<Fact>,
    /// The beginnings of calls that fail once.
    failing: Vec<(&'static str, ApiErrorKind)>,
    /// Whether the watches show nothing.
    is_lagging: bool,
}

impl Cluster {
    fn new(features: Features) -> Self {
        let (calls, facts, failing) = (Vec::new(), Vec::new(), Vec::new());
        let (core, server) = (Core::new(features), Server::default());
        Cluster { core, server, now: Time::from_secs(1_000), calls, facts, failing, is_lagging: false }
    }

    /// Adds or changes an object, and returns the keys that its event queues.
    fn put(&mut self, object: impl Into<Object>) -> Vec<String> {
        self.server.put(object.into());
        self.watch()
    }

    fn remove(&mut self, object: impl Into<Object>) -> Vec<String> {
        self.server.remove(&object.into());
        self.watch()
    }

    /// Shows the changes to the controller.
    fn watch(&mut self) -> Vec<String> {
        let events = self.server.take_events();
        let keys: Vec<Key> = events.into_iter().flat_map(|event| event.show(&mut self.core, self.now)).collect();
        keys.iter().map(ToString::to_string).collect()
    }

    /// Runs the pass of a key.
    fn run(&mut self, key: &str) -> Result<(), String> {
        self.calls.clear();
        let mut pass = self.core.begin(&key.parse().unwrap());
        let mut answer = None;
        let Report { result, facts, .. } = loop {
            match pass.step(&mut self.core, answer, self.now) {
                Step::Done(report) => break report,
                Step::Call(request) => {
                    let text = server::text(&request);
                    let failing = self.failing.iter().position(|(call, _)| text.starts_with(call));
                    answer = Some(match failing.map(|at| self.failing.remove(at)) {
                        Some((_, kind)) => Err(server::error(kind)),
                        None => self.server.perform(&request),
                    });
                    self.calls.push(text);
                }
            }
            if !self.is_lagging {
                self.watch();
            }
        };
        self.facts.extend(facts);
        result.map_err(|error| error.to_string())
    }

    /// The answered creates as pairs of success and admin access.
    fn creates(&self) -> Vec<(bool, bool)> {
        let create = |fact: &Fact| match fact {
            Fact::Created { succeeded, admin_access } => Some((*succeeded, *admin_access)),
            Fact::GenerationFailed(_) | Fact::Foreign(_) | Fact::Full(_) | Fact::Wrote(_) => None,
        };
        self.facts.iter().filter_map(create).collect()
    }

    fn messages(&self) -> Vec<String> {
        let message = |fact: &Fact| match fact {
            Fact::GenerationFailed(warning) => Some(warning.message.clone()),
            Fact::Created { .. } | Fact::Foreign(_) | Fact::Full(_) | Fact::Wrote(_) => None,
        };
        self.facts.iter().filter_map(message).collect()
    }

    /// The writes that were reported since the last call.
    fn take_writes(&mut self) -> Vec<ClaimWrite> {
        let write = |fact: Fact| if let Fact::Wrote(write) = fact { Some(write) } else { None };
        std::mem::take(&mut self.facts).into_iter().filter_map(write).collect()
    }

    fn claim(&self, name: &str) -> &ResourceClaim {
        &self.server.claims[&object(name)]
    }
}
