//! Law of the generation in a status: it says what was decided on the newest resources of the pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_core::config::pod_resources::resources_without_overhead;
use podwright_core::pod_worker::Lifecycle;
use podwright_model::pod::PodObject;

use super::CheckResult;
use crate::container_resources::Amounts;
use crate::machine::Machine;

/// When a status gets the generation of its pod, the pod and its containers have what they desire in this generation, or a condition says
/// why not. A resize of a pod that stops is never decided, so such a pod is not checked.
pub(crate) fn generation_is_decided(machine: &Machine, before: &PodObject, after: &PodObject) -> CheckResult {
    let agent = machine.agent();
    let snapshot = agent.and_then(|agent| agent.engine.snapshot(before.uid()));
    let runs = snapshot.is_some_and(|pod| pod.lifecycle == Lifecycle::Sync);
    if runs { is_decided(before, after) } else { Ok(()) }
}

fn is_decided(before: &PodObject, after: &PodObject) -> CheckResult {
    let observed = |pod: &PodObject| pod.status().and_then(|status| status.observed_generation);
    let (generation, Some(status)) = (before.metadata().generation, after.status()) else { return Ok(()) };
    let is_new = observed(before) != generation && observed(after) == generation;
    let has_condition = status.conditions.iter().flatten().any(|it| it.type_.starts_with("PodResize"));
    if !is_new || has_condition || before.is_deleting() || before.is_mirror() || after.phase().is_terminal() {
        return Ok(());
    }
    let what = |name: &str| format!("{}: its status has the generation {generation:?}, and {name}", before.uid());
    let regular = before.containers().iter().map(|container| (container, &status.container_statuses));
    let init = before.init_containers().iter().map(|container| (container, &status.init_container_statuses));
    for (container, statuses) in regular.chain(init) {
        // A container that has not begun has no resources, and one that was removed keeps those of its last run.
        let runs = |it: &&ContainerStatus| it.state.as_ref().is_some_and(|state| state.running.is_some());
        let found = statuses.iter().flatten().find(|it| it.name == container.name);
        let Some(found) = found.filter(runs) else { continue };
        let desired = container.resources.clone().unwrap_or_default();
        agrees(&what(&container.name), &desired, found.allocated_resources.as_ref(), found.resources.as_ref())?;
        // The status of a pod that has not been admitted yet has no resources. No container of it runs.
        let whole = resources_without_overhead(before.spec());
        agrees(&what("the pod"), &whole, status.allocated_resources.as_ref(), status.resources.as_ref())?;
    }
    Ok(())
}

/// The allocated requests and the resources in a status are the desired ones.
fn agrees(
    what: &str,
    desired: &ResourceRequirements,
    allocated: Option<&BTreeMap<String, Quantity>>,
    actual: Option<&ResourceRequirements>,
) -> CheckResult {
    let requests = |list: Option<&BTreeMap<String, Quantity>>| {
        Amounts::of(Some(&ResourceRequirements { requests: list.cloned(), ..ResourceRequirements::default() }))
    };
    let (allocated, requested) = (requests(allocated), requests(desired.requests.as_ref()));
    if allocated != requested {
        return Err(format!("{what} requests {requested:?} and has {allocated:?} allocated"));
    }
    let (actual, desired) = (Amounts::of(actual), Amounts::of(Some(desired)));
    if actual == desired { Ok(()) } else { Err(format!("{what} desires {desired:?} and has {actual:?}")) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;

    /// A pod whose generation 2 desires other resources.
    fn pod(status: &Value) -> Arc<PodObject> {
        let resources = json!({"requests": {"cpu": "1", "memory": "8Mi"}, "limits": {"cpu": "2", "memory": "16Mi"}});
        let container = |name: &str| json!({"name": name, "image": "img", "resources": resources});
        let spec = json!({
            "initContainers": [container("i")], "containers": [container("a")],
            "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "4"}},
        });
        let metadata = json!({"name": "p", "namespace": "sim", "uid": "p", "generation": 2});
        let pod = json!({"metadata": metadata, "spec": spec, "status": status});
        PodObject::new(serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn status() -> Value {
        let container = |name: &str| {
            json!({
                "name": name, "image": "img", "imageID": "img", "ready": true, "restartCount": 0,
                "state": {"running": {}}, "allocatedResources": {"cpu": "1", "memory": "8Mi"},
                "resources": {"requests": {"cpu": "1", "memory": "8Mi"}, "limits": {"cpu": "2", "memory": "16Mi"}},
            })
        };
        json!({
            "phase": "Running", "observedGeneration": 2, "conditions": [{"type": "Ready", "status": "True"}],
            "initContainerStatuses": [container("i")], "containerStatuses": [container("a")],
            "allocatedResources": {"cpu": "2", "memory": "8Mi"},
            "resources": {"requests": {"cpu": "2", "memory": "8Mi"}, "limits": {"cpu": "4", "memory": "16Mi"}},
        })
    }

    /// The verdict about a write with other values at some places.
    fn after(changes: &[(&str, Value)]) -> CheckResult {
        let mut written = status();
        for (place, value) in changes {
            *written.pointer_mut(place).expect(place) = value.clone();
        }
        is_decided(&pod(&json!({"phase": "Running", "observedGeneration": 1})), &pod(&written))
    }

    /// Values that differ from those that the pod desires.
    fn old_values() -> Vec<(&'static str, Value)> {
        let of = |places: [&'static str; 6]| {
            let others = [json!("500m"), json!("4Mi"), json!("500m"), json!("4Mi"), json!("3"), json!("24Mi")];
            places.into_iter().zip(others)
        };
        let regular = of([
            "/containerStatuses/0/allocatedResources/cpu",
            "/containerStatuses/0/allocatedResources/memory",
            "/containerStatuses/0/resources/requests/cpu",
            "/containerStatuses/0/resources/requests/memory",
            "/containerStatuses/0/resources/limits/cpu",
            "/containerStatuses/0/resources/limits/memory",
        ]);
        let init = of([
            "/initContainerStatuses/0/allocatedResources/cpu",
            "/initContainerStatuses/0/allocatedResources/memory",
            "/initContainerStatuses/0/resources/requests/cpu",
            "/initContainerStatuses/0/resources/requests/memory",
            "/initContainerStatuses/0/resources/limits/cpu",
            "/initContainerStatuses/0/resources/limits/memory",
        ]);
        let whole = of([
            "/allocatedResources/cpu",
            "/allocatedResources/memory",
            "/resources/requests/cpu",
            "/resources/requests/memory",
            "/resources/limits/cpu",
            "/resources/limits/memory",
        ]);
        regular.chain(init).chain(whole).collect()
    }

    #[test]
    fn each_old_value_with_the_new_generation_is_reported() {
        assert_eq!(after(&[]), Ok(()));
        for change in old_values() {
            let place = change.0;
            assert!(after(&[change]).is_err(), "{place}");
        }
        assert!(after(&[("/containerStatuses/0/resources", Value::Null)]).is_err());
        assert!(after(&[("/resources", Value::Null)]).is_err());
    }

    #[test]
    fn old_values_with_a_reason_are_allowed() {
        for reason in [
            ("/observedGeneration", json!(1)),
            ("/conditions/0/type", json!("PodResizePending")),
            ("/conditions/0/type", json!("PodResizeInProgress")),
        ] {
            let mut changes = old_values();
            changes.push(reason);
            assert_eq!(after(&changes), Ok(()));
        }
    }

    #[test]
    fn container_that_has_ended_may_keep_its_old_values() {
        let ended = json!({"terminated": {"exitCode": 0}});
        let of_init = |change: &(&str, Value)| change.0.starts_with("/initContainerStatuses");
        let mut changes: Vec<_> = old_values().into_iter().filter(of_init).collect();
        assert!(after(&changes).is_err());
        changes.push(("/initContainerStatuses/0/state", ended));
        assert_eq!(after(&changes), Ok(()));
    }
}
