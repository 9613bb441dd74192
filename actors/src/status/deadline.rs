//! The active deadline of a pod (`spec.activeDeadlineSeconds`).

use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;

use super::reasons;
use crate::pod::PodObject;
use crate::time::Time;

/// A pod exceeded its active deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exceeded {
    /// `status.reason`: `DeadlineExceeded`.
    pub reason: &'static str,
    /// The message, for people.
    pub message: String,
}

/// When the pod's deadline passes: its start time plus its active deadline. `None` without a deadline or before the
/// start.
///
/// The start time in a status has whole seconds, so the deadline passes up to a second early, as in the kubelet.
pub(crate) fn deadline(pod: &PodObject, status: Option<&PodStatus>) -> Option<Time> {
    let start = status.or(pod.status())?.start_time.as_ref()?;
    after(pod, Time::from_timestamp(start.0))
}

/// The reason and message, if the deadline of a pod that started at `start` has passed at `now`.
pub(crate) fn deadline_exceeded(pod: &PodObject, start: Option<Time>, now: Time) -> Option<Exceeded> {
    if now < after(pod, start?)? {
        return None;
    }
    let seconds = pod.spec().active_deadline_seconds.unwrap_or_default();
    Some(Exceeded {
        reason: reasons::DEADLINE_EXCEEDED,
        message: format!("the pod was active on the node for longer than its deadline of {seconds} s"),
    })
}

fn after(pod: &PodObject, start: Time) -> Option<Time> {
    let seconds = u64::try_from(pod.spec().active_deadline_seconds?).unwrap_or(0);
    Some(start + Duration::from_secs(seconds))
}
