//! Decides whether a pod may start on this node, beside the pods that already use the node. Pure.
//!
//! ```text
//!   handlers, in their order            requests of the others: Admitted
//!     SysctlAllowlist                     used now, soon free, reserved for waiting pods
//!     NodePredicates  <----------------- capacity, labels, host ports, taints
//!     AppArmor
//!     NoRootPods, if containers are processes of the node
//!        |
//!      judge -- a lasting reason ----------> the pod is rejected
//!        +----- others give enough back ---> the pod waits for them (AdmissionQueue)
//!        +----- a resource is short -------> a critical pod waits until its victims (choose_victims) have stopped
//!        `----- something stays in use ----> the pod is rejected; a static pod is judged again when something is freed
//! ```

mod admitted;
mod affinity;
mod app_armor;
mod capacity;
mod host_ports;
mod no_root_pods;
mod node_predicates;
mod preemption;
mod queue;
mod requests;
mod sysctls;
mod taints;
mod verdict;

pub use admitted::{Admitted, PodActivity, is_active};
pub use app_armor::AppArmor;
pub use capacity::{NodeCapacity, Shortage};
pub use host_ports::users_of_host_ports;
pub use no_root_pods::NoRootPods;
pub use node_predicates::{NodePredicates, architecture};
pub(crate) use preemption::choose_victims;
pub use queue::WaitingPod;
pub use queue::{AdmissionQueue, Decision, EarlierDecision};
pub use requests::Requests;
pub use sysctls::{InvalidSysctlPattern, SysctlAllowlist};
pub use taints::tolerates_taint;
pub use verdict::{Verdict, Wait, judge};

use std::time::Duration;

use crate::pod::PodObject;
use crate::texts::admission as texts;

/// How long a pod waits for a stop that fails, from the end of its grace period on, or for a resize that fails, from its first failure on.
/// After that, the pod is rejected.
pub const PATIENCE: Duration = Duration::from_secs(2 * 60);

/// Why a pod may not start. It becomes the pod's reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// The reason in upstream's spelling (`OutOfcpu`, `NodeShutdown`).
    pub reason: String,
    /// The missing resource or condition, for people.
    pub message: String,
    remedy: Remedy,
}

/// The event that would let a rejected pod start.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Remedy {
    /// Nothing that another pod does.
    None,
    /// The end of a pod that uses what this pod needs.
    Freed,
    /// The end of pods with these requests.
    Resources(Vec<Shortage>),
}

impl Rejection {
    /// A rejection with its reason in upstream's spelling, such as `NodeAffinity`, and a message for people. The end of other
    /// pods does not change the decision.
    pub fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Rejection { reason: reason.into(), message: message.into(), remedy: Remedy::None }
    }

    /// A rejection of a pod that needs something which another pod uses, such as a host port. If the other pod stops, the pod waits.
    /// Otherwise a static pod is judged again when something is freed.
    pub fn in_use(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Rejection { remedy: Remedy::Freed, ..Rejection::new(reason, message) }
    }

    /// A rejection of a pod that requests more than the node has left. The first shortage gives the reason and the message.
    /// `None` without a shortage.
    pub fn short_of(shortages: Vec<Shortage>) -> Option<Self> {
        let Shortage { resource, requested, used, capacity } = shortages.first()?;
        let reason = texts::out_of_reason(resource);
        let message = texts::out_of(resource, *requested, *used, *capacity);
        Some(Rejection { reason, message, remedy: Remedy::Resources(shortages) })
    }

    /// The rejection of a critical pod for which no pods can be preempted.
    pub(crate) fn no_room(missing: &[(String, i64)]) -> Self {
        Rejection::in_use(texts::UNEXPECTED_ADMISSION_ERROR, texts::no_room(missing))
    }

    /// The resources that the node has too little of. Empty if there is another reason.
    pub fn shortages(&self) -> &[Shortage] {
        match &self.remedy {
            Remedy::Resources(shortages) => shortages,
            Remedy::None | Remedy::Freed => &[],
        }
    }

    /// Whether the pod may start once other pods have ended.
    pub fn may_end(&self) -> bool {
        self.remedy != Remedy::None
    }
}

/// A check that every new pod has to pass. It must return at once, without I/O.
pub trait AdmissionHandler: Send + Sync + 'static {
    /// Admits a pod beside the pods that already use the node.
    ///
    /// # Errors
    /// [`Rejection`] if the pod may not start.
    fn admit(&self, pod: &PodObject, others: &Admitted) -> Result<(), Rejection>;
}

/// Whether the reason of a failed pod means that the pod lacked something which other pods used. A static pod with such a
/// reason is judged again by the next agent.
pub fn is_lack(reason: &str) -> bool {
    reason.starts_with("OutOf") || lacks_ports(reason) || reason == texts::UNEXPECTED_ADMISSION_ERROR
}

/// Whether the reason of a failed pod means that other pods used its host ports.
pub fn lacks_ports(reason: &str) -> bool {
    let (ports, _) = texts::NODE_PORTS;
    reason == ports
}

#[cfg(test)]
mod tests;
