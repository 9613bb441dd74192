//! Requests that the Node authorizer refuses because it does not know their pod yet.
//!
//! The Node authorizer of an API server lets a node read the objects that the pods of the node name. It watches the pods, as the node does.
//! A node that receives a new pod before the authorizer does requests the objects too early, usually by 10 to 100 ms. The backoff of the
//! caller would then delay the pod by 10 s or more.

use std::time::Duration;

use kube::core::Status;
use tokio::time::sleep;

/// The pauses before a refused request is repeated. Their sum is less than the time that a read of a config map or a secret waits.
pub(super) const PAUSES: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(250), Duration::from_millis(500)];

/// Whether the Node authorizer refused a request because it knows no pod of the node that names the object.
///
/// This is the only decision that searches the text of an answer. The code 403 and the reason `Forbidden` are those of every authorizer, and
/// the details name only the object. A refusal for another cause lasts until somebody changes a permission, so it is not repeated at once.
/// If a later Kubernetes changes the text (`plugin/pkg/auth/authorizer/node`, 1.36), the caller repeats the request after its own backoff.
pub(super) fn is_unknown_relation(status: &Status) -> bool {
    status.code == 403 && status.message.contains("no relationship found")
}

/// Makes a call, and repeats it after each pause while the Node authorizer does not know the pod.
pub(super) async fn until_related<T, F: Future<Output = kube::Result<T>>>(call: impl Fn() -> F) -> kube::Result<T> {
    for pause in PAUSES {
        match call().await {
            Err(kube::Error::Api(status)) if is_unknown_relation(&status) => sleep(pause).await,
            answer => return answer,
        }
    }
    call().await
}

#[cfg(test)]
mod tests;
