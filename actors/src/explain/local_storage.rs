//! The local storage of a pod with limits: what was measured, and the limits. Pure.

use serde::Serialize;

use super::wait::time;
use crate::config::resource_amount::binary;
use crate::eviction::{MeasuredPod, StorageLimits};
use crate::pod::PodObject;
use crate::ports::UsedSpace;
use crate::time::Time;

/// The last measurement of a pod's local storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LocalStorage {
    /// When the measurement ended.
    #[serde(serialize_with = "time")]
    pub at: Time,
    /// One entry for each limit.
    pub limits: Vec<StorageLimitView>,
    /// Whether the pod is never evicted, whatever it uses: it is static or critical.
    pub never_evicted: bool,
    /// What could not be measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A limit on the pod's local storage, and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct StorageLimitView {
    /// `emptyDir`, `container` or `pod`.
    pub what: &'static str,
    /// The name of the volume or container; empty for the pod.
    pub name: String,
    /// The used bytes.
    pub used_bytes: u64,
    /// The limit, as a quantity.
    pub limit: String,
    /// Whether more is used than the limit.
    pub exceeded: bool,
}

/// The view of a measurement.
pub(super) fn view(pod: &PodObject, measured: &MeasuredPod) -> LocalStorage {
    let usage = &measured.usage;
    let limits = StorageLimits::of(pod).unwrap_or_default();
    let volumes = limits.volumes.iter().map(|(name, limit)| {
        let used = usage.disk.volumes.get(name).copied().unwrap_or_default();
        ("emptyDir", name.clone(), used, limit)
    });
    let containers = limits.containers.iter().map(|(name, limit)| {
        ("container", name.clone(), usage.of_container(name, !measured.dedicated_image_disk), limit)
    });
    let of_pod = limits.pod.iter().map(|limit| ("pod", String::new(), usage.total(pod), limit));
    let entry =
        |(what, name, used, limit): (&'static str, String, UsedSpace, &crate::eviction::Limit)| StorageLimitView {
            what,
            name,
            used_bytes: used.bytes,
            limit: limit.text.clone(),
            exceeded: limit.is_exceeded_by(used),
        };
    LocalStorage {
        at: measured.at,
        limits: volumes.chain(containers).chain(of_pod).map(entry).collect(),
        never_evicted: pod.is_critical(),
        error: measured.error.clone(),
    }
}

impl LocalStorage {
    /// One line for each limit, such as `emptyDir cache: 12Ki of 1Mi`.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |limit: &StorageLimitView| {
            let name = if limit.name.is_empty() { String::new() } else { format!(" {}", limit.name) };
            let note = match (limit.exceeded, self.never_evicted) {
                (true, true) => ", which exceeds the limit; a static or critical pod is not evicted",
                (true, false) => ", which exceeds the limit",
                (false, _) => "",
            };
            format!("{}{name}: {} of {}{note}", limit.what, binary(limit.used_bytes), limit.limit)
        };
        let error = self.error.iter().map(|error| format!("not measured: {error}"));
        self.limits.iter().map(line).chain(error).collect()
    }
}
