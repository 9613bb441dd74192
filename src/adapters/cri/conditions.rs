//! What the runtime says it lacks.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_actors::ports::Unready;

use super::client::Client;
use super::v1;

/// How often the runtime is asked (upstream `updateRuntimeUp`, kubelet 1.36).
const PERIOD: Duration = Duration::from_secs(5);
/// How often while something is not there: pods wait for it.
const PERIOD_WITHOUT: Duration = Duration::from_secs(1);

/// What the runtime said last.
#[derive(Debug, Default)]
pub(super) struct Conditions(Mutex<Unready>);

impl Conditions {
    /// What it lacks.
    pub(super) fn unready(&self) -> Unready {
        self.0.lock().clone()
    }

    /// Asks again and again. Ends never.
    pub(super) async fn watch(self: Arc<Self>, client: Client) {
        loop {
            // Of one that does not answer nothing new is known, and whoever lists pods says so.
            if let Ok(answer) = client.status(v1::StatusRequest { verbose: false }).await {
                self.learn(unready(&answer));
            }
            let ready = *self.0.lock() == Unready::default();
            tokio::time::sleep(if ready { PERIOD } else { PERIOD_WITHOUT }).await;
        }
    }

    fn learn(&self, now: Unready) {
        let before = std::mem::replace(&mut *self.0.lock(), now.clone());
        for (before, now) in [(before.runtime, now.runtime), (before.network, now.network)] {
            match (before, now) {
                (Some(before), None) => tracing::info!(before, "what the container runtime lacked is there now"),
                (before, Some(now)) if before.as_ref() != Some(&now) => {
                    tracing::warn!(why = now, "the container runtime lacks something");
                }
                _ => {}
            }
        }
    }
}

/// What the conditions of an answer (CRI `RuntimeCondition`) say is not there. One that is not told of is met.
fn unready(answer: &v1::StatusResponse) -> Unready {
    let conditions = answer.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let unmet = |name: &str, what: &str| {
        let unmet = conditions.iter().find(|condition| condition.r#type == name && !condition.status)?;
        let v1::RuntimeCondition { reason, message, .. } = unmet;
        Some(format!("{what} not ready: {name}=false reason:{reason} message:{message}"))
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
    fn only_the_word_of_the_runtime_that_something_is_not_there_counts() {
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
