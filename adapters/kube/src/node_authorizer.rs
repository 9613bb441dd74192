//! Requests that the Node authorizer refuses because it does not know their pod yet.
//!
//! The Node authorizer of an API server lets a node read the objects that the pods of the node name. It watches the pods, as the node does.
//! A node that receives a new pod before the authorizer does requests the objects too early, usually by 10 to 100 ms. The backoff of the
//! caller would then delay the pod by 10 s or more.

use std::time::Duration;

use kube::core::Status;
use tokio::time::sleep;

/// The pauses before a refused request is repeated. If the authorizer learns of a pod within a second, the last repetition
/// succeeds, and no error is reported. The sum is less than the time that a read of a config map or a secret waits.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(250), Duration::from_millis(350), Duration::from_millis(350)];

/// The repetitions of one request that the Node authorizer may refuse too early.
pub(super) struct EarlyRefusals(std::array::IntoIter<Duration, 4>);

impl EarlyRefusals {
    pub(super) fn new() -> Self {
        EarlyRefusals(PAUSES.into_iter())
    }

    /// The pause before the request is repeated. `None` if the request was refused for another cause, or was repeated often enough.
    pub(super) fn next_pause(&mut self, refusal: &Status) -> Option<Duration> {
        if is_unknown_relation(refusal) { self.0.next() } else { None }
    }
}

/// Whether the Node authorizer refused a request because it knows no pod of the node that names the object.
///
/// This is the only decision that searches the text of an answer. The code 403 and the reason `Forbidden` are those of every authorizer, and
/// the details name only the object. A refusal for another cause lasts until somebody changes a permission, so it is not repeated at once.
/// If a later Kubernetes changes the text (`plugin/pkg/auth/authorizer/node`, 1.36), the caller repeats the request after its own backoff.
fn is_unknown_relation(status: &Status) -> bool {
    status.code == 403 && status.message.contains("no relationship found")
}

/// Makes a call, and repeats it after each pause while the Node authorizer does not know the pod.
pub(super) async fn until_related<T, F: Future<Output = kube::Result<T>>>(call: impl Fn() -> F) -> kube::Result<T> {
    let mut refusals = EarlyRefusals::new();
    loop {
        let answer = call().await;
        let pause = match &answer {
            Err(kube::Error::Api(status)) => refusals.next_pause(status),
            _ => None,
        };
        let Some(pause) = pause else { return answer };
        sleep(pause).await;
    }
}

#[cfg(test)]
mod tests;
