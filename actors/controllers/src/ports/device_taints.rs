//! The calls of the device taint eviction controller to the API server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use podwright_model::ids::PodUid;
use podwright_model::time::Time;
use serde_json::{Value, json};

pub use super::resource_claims::{ApiError, ApiErrorKind, ObjectKey};

/// The component of events, and the field manager of each write of the status of a rule.
pub const COMPONENT: &str = "device-taint-eviction-controller";
/// The reason of each event.
pub const EVENT_REASON: &str = "DeviceTaintManagerEviction";
/// The API version of rules in calls.
pub const RULE_API_VERSION: &str = "resource.k8s.io/v1beta2";

/// Performs the calls of the controller, and records its events.
pub trait DeviceTaintApi: Send + Sync + 'static {
    /// Performs one call. The implementation sets the timeout, and does not repeat the call. If the future is dropped, the server may
    /// still perform the call.
    ///
    /// # Errors
    /// [`ApiError`]. Its kind must be [`ApiErrorKind::Unknown`] unless it is certain that the server has changed nothing: for a
    /// timeout, a closed connection, a status of 500 and above, and an answer that cannot be decoded.
    fn call(&self, request: Request) -> BoxFuture<'_, Result<Answer, ApiError>>;

    /// Records an event of a pod. Never waits; may drop the event.
    fn record(&self, event: EvictionEvent);

    /// Writes the events that were recorded, and ends the tasks that write them. The next event starts new ones. Returns how many events
    /// were not written within `limit`.
    ///
    /// Cancel safe: another call goes on.
    fn close_events(&self, limit: Duration) -> BoxFuture<'_, usize>;
}

/// The identity of a pod. A pod that replaces it under the same name has another identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodId {
    /// The namespace and the name.
    pub key: ObjectKey,
    /// The UID.
    pub uid: PodUid,
}

impl PodId {
    /// The identity of a pod. `None` for an object without a UID, which no API server stores.
    pub fn of(pod: &Pod) -> Option<Self> {
        let uid = pod.metadata.uid.as_deref().filter(|uid| !uid.is_empty())?;
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        Some(PodId { key: ObjectKey::new(namespace, name), uid: PodUid::new(uid) })
    }
}

/// Prints `NAMESPACE/NAME`.
impl fmt::Display for PodId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

/// The identity of a DeviceTaintRule. A rule that replaces it under the same name has another identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId {
    /// The name.
    pub name: Arc<str>,
    /// The UID.
    pub uid: Arc<str>,
}

/// Prints the name.
impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A call of the API.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Read a pod from the server. Answer: [`Answer::Pod`].
    GetPod(ObjectKey),
    /// Set a condition of a pod by a strategic-merge patch of its status. Answer: [`Answer::Done`].
    PatchPodStatus(PodCondition),
    /// Delete a pod if it has this UID. Answer: [`Answer::Done`].
    DeletePod(PodId),
    /// Write conditions to the status of a rule by server-side apply. Answer: [`Answer::Done`].
    ApplyRuleStatus(RuleConditions),
}

/// The answer to a successful call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The pod that the server returned.
    Pod(Box<Pod>),
    /// The call succeeded.
    Done,
}

/// The condition `DisruptionTarget` of a pod that is about to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodCondition {
    /// The pod. The server refuses the patch if another pod has its name now.
    pub pod: PodId,
    /// When the status of the condition changed.
    pub since: Time,
}

impl PodCondition {
    /// The type of the condition.
    pub const TYPE: &str = "DisruptionTarget";
    /// The reason.
    pub const REASON: &str = "DeletionByDeviceTaintManager";
    /// The message.
    pub const MESSAGE: &str = "Device Taint manager: deleting due to NoExecute taint";

    /// The body of the patch.
    pub fn body(&self) -> Value {
        json!({
            "metadata": { "uid": self.pod.uid.to_string() },
            "status": { "conditions": [{
                "type": Self::TYPE,
                "status": "True",
                "reason": Self::REASON,
                "message": Self::MESSAGE,
                "lastTransitionTime": seconds(self.since),
            }] },
        })
    }
}

/// The conditions of a rule that this controller writes. The apply is forced, and its manager is [`COMPONENT`]. Conditions of other
/// types stay.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleConditions {
    /// The rule. The server refuses the write if another rule has its name now.
    pub rule: RuleId,
    /// All conditions of the manager. The server removes its other conditions.
    pub conditions: Vec<Condition>,
}

impl RuleConditions {
    /// The body of the apply.
    pub fn body(&self) -> Value {
        let condition = |condition: &Condition| {
            json!({
                "type": condition.type_,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "observedGeneration": condition.observed_generation,
                "lastTransitionTime": seconds(Time::from_timestamp(condition.last_transition_time.0)),
            })
        };
        let conditions: Vec<_> = self.conditions.iter().map(condition).collect();
        json!({
            "apiVersion": RULE_API_VERSION,
            "kind": "DeviceTaintRule",
            "metadata": { "name": &*self.rule.name, "uid": &*self.rule.uid },
            "status": { "conditions": conditions },
        })
    }
}

/// A Normal event of a pod, with the reason [`EVENT_REASON`] and the component [`COMPONENT`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionEvent {
    /// The pod.
    pub pod: PodId,
    /// What happens to the pod.
    pub kind: EvictionEventKind,
}

/// The events of the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvictionEventKind {
    /// The pod is about to be deleted.
    Deletion,
    /// The eviction was cancelled, so the pod stays.
    Cancellation,
}

impl EvictionEventKind {
    /// The message of the event, as in upstream.
    pub const fn message(self) -> &'static str {
        match self {
            EvictionEventKind::Deletion => "Marking for deletion",
            EvictionEventKind::Cancellation => "Cancelling deletion",
        }
    }
}

/// A time in the form of the API, which has whole seconds.
fn seconds(at: Time) -> String {
    format!("{:.0}", at.to_timestamp())
}
