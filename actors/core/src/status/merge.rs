//! Merges the node's status into the API server's copy.

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time as ApiTime;

use super::{conditions, reasons};
use crate::pod::{Phase, PodObject};
use crate::time::Time;

/// Merges the node's status into the API server's copy (upstream `mergePodStatus`, kubelet 1.36).
///
/// - The conditions that the node sets replace those of the copy. Other conditions, claim statuses and the nominated
///   node stay.
/// - `held_back` says that containers may still run or that claims are still prepared. A change to a terminal phase
///   then waits: phase, reason and message of the copy stay, and no disruption is reported yet (POD-I6).
/// - A terminal phase of the copy stays, with its reason and message, whoever wrote it. Only a static pod leaves it: such a pod runs again
///   after a shutdown of its node, and its mirror pod shows that.
/// - A pod with a terminal phase is never Ready.
pub fn merge_for_api(pod: &PodObject, api: &PodStatus, mut new: PodStatus, held_back: bool, now: Time) -> PodStatus {
    let was = Phase::parse(api.phase.as_deref());
    let is = Phase::parse(new.phase.as_deref());
    let ends = !was.is_terminal() && is.is_terminal();

    // The kept status has the time of a change. The write may come much later.
    let changed = |own: Option<ApiTime>| own.unwrap_or_else(|| now.to_api());
    conditions::keep_transition_times(&mut new, api, changed);
    let (owned, others): (Vec<_>, Vec<_>) =
        new.conditions.take().unwrap_or_default().into_iter().partition(|have| reasons::is_owned(&have.type_));
    let foreign = api.conditions.iter().flatten().filter(|have| !reasons::is_owned(&have.type_));
    new.conditions = Some(foreign.cloned().chain(owned).collect());
    if ends && !held_back {
        let disruption = others.into_iter().find(|have| have.type_ == reasons::DISRUPTION_TARGET);
        if let Some(disruption) = disruption {
            conditions::set_condition(&mut new, disruption);
        }
    }

    new.resource_claim_statuses.clone_from(&api.resource_claim_statuses);
    new.extended_resource_claim_status.clone_from(&api.extended_resource_claim_status);
    new.node_allocatable_resource_claim_statuses.clone_from(&api.node_allocatable_resource_claim_statuses);
    new.nominated_node_name.clone_from(&api.nominated_node_name);

    if ends && held_back || was.is_terminal() && is != was && !pod.is_static() {
        new.phase.clone_from(&api.phase);
        new.reason.clone_from(&api.reason);
        new.message.clone_from(&api.message);
    }
    let phase = Phase::parse(new.phase.as_deref());
    let looks_ready = conditions::is_true(&new, reasons::READY) || conditions::is_true(&new, reasons::CONTAINERS_READY);
    if phase.is_terminal() && looks_ready {
        for condition in conditions::readiness_of_ended(new.observed_generation, phase) {
            conditions::set_condition(&mut new, condition);
        }
        conditions::keep_transition_times(&mut new, api, changed);
    }
    new
}
