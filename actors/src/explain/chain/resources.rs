//! The waits of a pod for its resources, such as ResourceClaims.

use k8s_openapi::api::core::v1::PodStatus;

use super::ExplainContext;
use crate::explain::facts::PodFacts;
use crate::explain::wait::{SubjectKind, Wait, WaitKind, WaitSubject};
use crate::pod_worker::{Hook, Lifecycle};
use crate::ports::ResourceWait;

/// Whether the release of resources is all that a pod waits for: its containers have ended, and its first wait would be for
/// them, for a try of the release or for nothing.
pub(super) fn is_release_awaited_alone(context: &ExplainContext<'_>, pod: &PodFacts, first: &Wait) -> bool {
    let is_of_release = match first.what {
        // An outage of the runtime hides the end of containers.
        WaitKind::Grace | WaitKind::Retry(Hook::Terminating | Hook::TerminatingRuntime) => {
            context.node.runtime.is_none() && !pod.status.as_deref().is_some_and(has_running_container)
        }
        WaitKind::Nothing => pod.lifecycle() == Some(Lifecycle::Finished),
        _ => false,
    };
    is_of_release && pod.resources.iter().any(|wait| wait.is_release && resource(wait).is_some())
}

fn has_running_container(status: &PodStatus) -> bool {
    let lists = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let mut all = lists.into_iter().flatten().flatten();
    all.any(|container| container.state.as_ref().is_some_and(|state| state.running.is_some()))
}

/// The cause below a failed hook: a resource that is not ready or not released, its driver, and the last error.
pub(super) fn resource(wait: &ResourceWait) -> Option<Wait> {
    let goal = if wait.is_release { "released" } else { "prepared" };
    let devices = match wait.resource.as_str() {
        "" => format!("its devices are not {goal}"),
        claim => format!("ResourceClaim {claim} is not {goal}"),
    };
    let cause = match (&wait.error, &wait.driver) {
        (Some(error), _) => error.clone(),
        (None, Some(driver)) => format!("DRA driver {driver} has not answered"),
        (None, None) if wait.resource.is_empty() => return None,
        (None, None) => "an operation of another pod on the claim comes first".to_owned(),
    };
    let released_by = match (&wait.driver, wait.is_release) {
        (Some(driver), true) => {
            let command = match wait.resource.as_str() {
                "" => "podwright give-up".to_owned(),
                claim => format!("podwright give-up {claim} --driver {driver}"),
            };
            format!("DRA driver {driver} answers, or an operator gives the driver up ({command})")
        }
        (Some(driver), false) => format!("DRA driver {driver} prepares them"),
        (None, _) if wait.error.is_none() => "that operation ends".to_owned(),
        (None, _) => "the next try succeeds".to_owned(),
    };
    let on = match &wait.driver {
        Some(driver) => WaitSubject::new(SubjectKind::Driver, driver),
        None => WaitSubject::new(SubjectKind::Claim, &wait.resource),
    };
    let claim = Some(wait.resource.clone()).filter(|claim| !claim.is_empty());
    let explained = Wait::new(WaitKind::Claim, on, format!("{devices}: {cause}"), released_by);
    let explained = explained.since(wait.since).tries(wait.tries).below(1);
    Some(Wait { claim, driver: wait.driver.clone(), ..explained })
}
