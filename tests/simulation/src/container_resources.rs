//! The resources of containers as the runtime really has them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use podwright_model::ids::ContainerId;
use podwright_model::pod::PodObject;
use podwright_model::quantity::Amount;

/// The requests and limits of one container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Amounts {
    pub(super) cpu: RequestAndLimit,
    pub(super) memory: RequestAndLimit,
}

/// A missing request is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestAndLimit {
    pub(super) request: Amount,
    limit: Option<Amount>,
}

impl Amounts {
    pub(super) fn of(resources: Option<&ResourceRequirements>) -> Self {
        let of = |name: &str| {
            let amount = |list: Option<&BTreeMap<_, _>>| list?.get(name).map(|quantity| Amount::of(quantity).unwrap());
            let request = amount(resources.and_then(|resources| resources.requests.as_ref()));
            let limit = amount(resources.and_then(|resources| resources.limits.as_ref()));
            RequestAndLimit { request: request.unwrap_or_default(), limit }
        };
        Amounts { cpu: of("cpu"), memory: of("memory") }
    }

    pub(super) fn of_container(container: &Container) -> Self {
        Amounts::of(container.resources.as_ref())
    }

    /// The amounts with which a container of a pod runs. It has the limits of the pod where it has none of its own (KEP-2837).
    pub(super) fn in_pod(pod: &PodObject, container: &Container) -> Self {
        let (own, whole) = (Amounts::of_container(container), Amounts::of(pod.spec().resources.as_ref()));
        let of = |own: RequestAndLimit, whole: RequestAndLimit| RequestAndLimit {
            request: own.request,
            limit: own.limit.or(whole.limit),
        };
        Amounts { cpu: of(own.cpu, whole.cpu), memory: of(own.memory, whole.memory) }
    }

    /// These amounts with the requests of others where those are larger.
    pub(super) fn raised_to(self, others: Amounts) -> Self {
        let of = |own: RequestAndLimit, other: RequestAndLimit| RequestAndLimit {
            request: own.request.max(other.request),
            limit: own.limit,
        };
        Amounts { cpu: of(self.cpu, others.cpu), memory: of(self.memory, others.memory) }
    }

    /// Whether the resize policy of a container requires a restart for the change from these amounts to others.
    pub(super) fn needs_restart(self, new: Amounts, container: &Container) -> bool {
        let mut policies = container.resize_policy.iter().flatten();
        policies.any(|policy| {
            let changes = match policy.resource_name.as_str() {
                "cpu" => self.cpu != new.cpu,
                "memory" => self.memory != new.memory,
                _ => false,
            };
            changes && policy.restart_policy == "RestartContainer"
        })
    }
}

/// The resources that each container was created with or that its last update has set.
#[derive(Debug, Default)]
pub(super) struct AppliedResources(BTreeMap<ContainerId, Amounts>);

impl AppliedResources {
    pub(super) fn set(&mut self, id: &ContainerId, amounts: Amounts) {
        self.0.insert(id.clone(), amounts);
    }

    pub(super) fn get(&self, id: &ContainerId) -> Option<Amounts> {
        self.0.get(id).copied()
    }
}
