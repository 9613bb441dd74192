//! Whether pods would have a network now.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::client::Client;
use super::v1;

/// How often the runtime is asked (upstream `updateRuntimeUp`, kubelet 1.36).
const PERIOD: Duration = Duration::from_secs(5);
/// How often while the network is not there: pods wait for it.
const PERIOD_WITHOUT: Duration = Duration::from_secs(1);
/// The condition of the runtime that tells (CRI `RuntimeCondition`).
const CONDITION: &str = "NetworkReady";

/// What the runtime said last.
#[derive(Debug, Default)]
pub(super) struct NetworkState(Mutex<Option<String>>);

impl NetworkState {
    /// Why pods would have no network, if so.
    pub(super) fn problem(&self) -> Option<String> {
        self.0.lock().clone()
    }

    /// Asks again and again. Ends never.
    pub(super) async fn watch(self: Arc<Self>, client: Client) {
        loop {
            // Of one that does not answer nothing new is known, and whoever lists pods says so.
            if let Ok(answer) = client.status(v1::StatusRequest { verbose: false }).await {
                *self.0.lock() = problem(&answer);
            }
            let ready = self.0.lock().is_none();
            tokio::time::sleep(if ready { PERIOD } else { PERIOD_WITHOUT }).await;
        }
    }
}

fn problem(answer: &v1::StatusResponse) -> Option<String> {
    let conditions = answer.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let unmet = conditions.iter().find(|condition| condition.r#type == CONDITION && !condition.status)?;
    let v1::RuntimeCondition { reason, message, .. } = unmet;
    Some(format!("container runtime network not ready: {CONDITION}=false reason:{reason} message:{message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_of_the_runtime_that_there_is_none_counts() {
        let of = |conditions: &[(&str, bool)]| {
            let condition = |(name, status): &(&str, bool)| v1::RuntimeCondition {
                r#type: (*name).to_owned(),
                status: *status,
                reason: "NetworkPluginNotReady".into(),
                message: "cni plugin not initialized".into(),
            };
            let status = v1::RuntimeStatus { conditions: conditions.iter().map(condition).collect() };
            problem(&v1::StatusResponse { status: Some(status), ..Default::default() })
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("RuntimeReady", false), ("NetworkReady", true)]), None);
        let expected = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                        message:cni plugin not initialized";
        assert_eq!(of(&[("RuntimeReady", true), ("NetworkReady", false)]).as_deref(), Some(expected));
    }
}
