//! The conditions `RuntimeReady` and `NetworkReady` that the runtime reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use podwright_model::texts::pods::runtime_condition;
use podwright_ports::{RuntimeCapabilities, RuntimeHandler, Unready};

use super::client::Client;
use super::v1;

/// The interval between two status calls (upstream `updateRuntimeUp`, kubelet 1.36).
const PERIOD: Duration = Duration::from_secs(5);
/// The interval while a condition is not met, because pods wait for it.
const PERIOD_UNREADY: Duration = Duration::from_secs(1);

/// The conditions and features that the runtime reported last.
#[derive(Debug, Default)]
pub(super) struct RuntimeConditions {
    unready: Mutex<Unready>,
    /// Whether the last report was without strict supplemental groups.
    lacks_strict_groups: AtomicBool,
    capabilities: Mutex<RuntimeCapabilities>,
}

impl RuntimeConditions {
    /// The conditions that are not met.
    pub(super) fn unready(&self) -> Unready {
        self.unready.lock().clone()
    }

    /// Whether the runtime supports strict supplemental groups. True before the first report: the creation of the sandbox then
    /// checks it.
    pub(super) fn supports_strict_groups(&self) -> bool {
        !self.lacks_strict_groups.load(Ordering::Relaxed)
    }

    /// The version and the features of the runtime.
    pub(super) fn capabilities(&self) -> RuntimeCapabilities {
        self.capabilities.lock().clone()
    }

    /// Reads the conditions periodically. Never returns.
    pub(super) async fn watch(self: Arc<Self>, client: Client) {
        let mut has_version = false;
        loop {
            // If the runtime does not answer, the last conditions stay, and the relist reports the failure.
            let answer = client.status(v1::StatusRequest { verbose: false }).await;
            // A runtime that did not answer may have been replaced by another version.
            has_version &= answer.is_ok();
            if !has_version && let Ok(answer) = client.version(v1::VersionRequest { version: "v1".to_owned() }).await {
                self.capabilities.lock().version = Some(answer.runtime_version);
                has_version = true;
            }
            if let Ok(answer) = answer {
                self.update_features(&answer);
                let has_strict_groups = answer.features.is_some_and(|features| features.supplemental_groups_policy);
                self.lacks_strict_groups.store(!has_strict_groups, Ordering::Relaxed);
                self.update(unready(&answer));
            }
            let ready = *self.unready.lock() == Unready::default();
            tokio::time::sleep(if ready { PERIOD } else { PERIOD_UNREADY }).await;
        }
    }

    fn update_features(&self, answer: &v1::StatusResponse) {
        let handler = |handler: &v1::RuntimeHandler| {
            let features = handler.features.unwrap_or_default();
            RuntimeHandler {
                name: handler.name.clone(),
                recursive_read_only_mounts: features.recursive_read_only_mounts,
                user_namespaces: features.user_namespaces,
            }
        };
        let mut capabilities = self.capabilities.lock();
        capabilities.handlers = answer.runtime_handlers.iter().map(handler).collect();
        capabilities.supplemental_groups_policy = answer.features.map(|it| it.supplemental_groups_policy);
    }

    fn update(&self, now: Unready) {
        let before = std::mem::replace(&mut *self.unready.lock(), now.clone());
        for (before, now) in [(before.runtime, now.runtime), (before.network, now.network)] {
            match (before, now) {
                (Some(before), None) => tracing::info!(before, "a condition of the container runtime is met again"),
                (before, Some(now)) if before.as_ref() != Some(&now) => {
                    tracing::warn!(why = now, "a condition of the container runtime is not met");
                }
                _ => {}
            }
        }
    }
}

/// The conditions of an answer that are not met. A condition that the answer does not contain counts as met.
fn unready(answer: &v1::StatusResponse) -> Unready {
    let conditions = answer.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let unmet = |name: &str, what: &str| {
        let unmet = conditions.iter().find(|condition| condition.r#type == name && !condition.status)?;
        let v1::RuntimeCondition { reason, message, .. } = unmet;
        Some(runtime_condition(what, name, reason, message))
    };
    Unready {
        runtime: unmet("RuntimeReady", "container runtime"),
        network: unmet("NetworkReady", "container runtime network"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reported_false_condition_makes_the_runtime_unready() {
        let of = |conditions: &[(&str, bool)]| {
            let condition = |(name, status): &(&str, bool)| v1::RuntimeCondition {
                r#type: (*name).to_owned(),
                status: *status,
                reason: "NetworkPluginNotReady".into(),
                message: "cni plugin not initialized".into(),
            };
            let status = v1::RuntimeStatus { conditions: conditions.iter().map(condition).collect() };
            unready(&v1::StatusResponse { status: Some(status), ..Default::default() })
        };
        assert_eq!(of(&[]), Unready::default());
        assert_eq!(of(&[("RuntimeReady", true), ("NetworkReady", true), ("SomethingElse", false)]), Unready::default());
        let network = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                       message:cni plugin not initialized";
        let unready = of(&[("RuntimeReady", true), ("NetworkReady", false)]);
        assert_eq!(unready, Unready { runtime: None, network: Some(network.into()) });
        let runtime = "container runtime not ready: RuntimeReady=false reason:NetworkPluginNotReady \
                       message:cni plugin not initialized";
        assert_eq!(of(&[("RuntimeReady", false)]), Unready { runtime: Some(runtime.into()), network: None });
    }
}
