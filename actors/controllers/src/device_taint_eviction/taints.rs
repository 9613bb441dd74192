//! Taints, and which of them a toleration matches.

use std::fmt;
use std::time::Duration;

use k8s_openapi::api::resource::v1::DeviceToleration;
use podwright_model::time::Time;

use super::api::NO_EXECUTE;

/// A taint with the effect NoExecute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taint {
    pub(super) key: Box<str>,
    pub(super) value: Box<str>,
    pub(super) since: Since,
}

/// The time from which the seconds of a toleration count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// The `timeAdded` of the taint.
    Added(Time),
    /// The time at which the controller first received the taint, because the taint has no `timeAdded`.
    FirstReceived(Time),
}

impl Since {
    pub(super) fn time(self) -> Time {
        match self {
            Since::Added(time) | Since::FirstReceived(time) => time,
        }
    }
}

impl Taint {
    /// A taint, if its effect is NoExecute. `known` returns when the controller first received a taint without
    /// `timeAdded`.
    pub(super) fn no_execute(
        key: &str,
        value: Option<&str>,
        effect: &str,
        added: Option<Time>,
        known: impl FnOnce(&str, &str) -> Option<Time>,
        now: Time,
    ) -> Option<Self> {
        (effect == NO_EXECUTE).then(|| Taint::new(key, value, added, known, now))
    }

    /// A taint as if its effect were NoExecute.
    pub(super) fn new(
        key: &str,
        value: Option<&str>,
        added: Option<Time>,
        known: impl FnOnce(&str, &str) -> Option<Time>,
        now: Time,
    ) -> Self {
        let value = value.unwrap_or_default();
        let since = match added {
            Some(added) => Since::Added(added),
            None => Since::FirstReceived(known(key, value).unwrap_or(now)),
        };
        Taint { key: key.into(), value: value.into(), since }
    }

    /// When the controller first received this taint. `None` if the taint has a `timeAdded`, another key or another value.
    pub(super) fn first_received(&self, key: &str, value: &str) -> Option<Time> {
        match self.since {
            Since::FirstReceived(time) if *self.key == *key && *self.value == *value => Some(time),
            Since::FirstReceived(_) | Since::Added(_) => None,
        }
    }

    /// When the taint evicts the user of a device with these tolerations. `None` if it is tolerated for ever.
    pub(super) fn evicts_at(&self, tolerations: &[DeviceToleration]) -> Option<Time> {
        let mut shortest: Option<u64> = None;
        for toleration in tolerations {
            let Some(tolerated) = tolerated_for(toleration, &self.key, &self.value) else { continue };
            let seconds = tolerated?;
            shortest = Some(shortest.map_or(seconds, |shortest| shortest.min(seconds)));
        }
        Some(self.since.time() + Duration::from_secs(shortest.unwrap_or(0)))
    }
}

/// Prints `KEY=VALUE`, or `KEY` without a value.
impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.key)?;
        if self.value.is_empty() { Ok(()) } else { write!(f, "={}", self.value) }
    }
}

/// For how many seconds a toleration tolerates a NoExecute taint: `Some(None)` is for ever. `None` if it does not match.
#[expect(clippy::option_option, reason = "two questions: whether it matches, and for how long")]
fn tolerated_for(toleration: &DeviceToleration, key: &str, value: &str) -> Option<Option<u64>> {
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !(effect.is_empty() || effect == NO_EXECUTE) || !matches(toleration, key, value) {
        return None;
    }
    // The API ignores `tolerationSeconds` of a toleration without an effect.
    let seconds = toleration.toleration_seconds.filter(|_| !effect.is_empty());
    Some(seconds.map(|seconds| u64::try_from(seconds).unwrap_or(0)))
}

/// Whether a toleration is for this key and value.
pub(super) fn matches(toleration: &DeviceToleration, key: &str, value: &str) -> bool {
    let tolerated = toleration.key.as_deref().unwrap_or_default();
    if !tolerated.is_empty() && tolerated != key {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => toleration.value.as_deref().unwrap_or_default() == value,
        "Exists" => true,
        _ => false,
    }
}
