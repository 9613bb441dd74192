//! The lists of claims, which the passes share. After a failure of the API server, the results of thousands of creates may not be known,
//! and each pass needs a list that is sent after its request.
//!
//! ```text
//!  passes --request--> the next list of the namespace --sent--> the list that runs --> answers the passes that requested it
//!                                 |                                    |
//!                                 `---- waits for the end of ----------'
//! ```
//!
//! - A list answers only requests that were made before it was sent.
//! - At most one list of a namespace runs. So any number of simultaneous requests costs at most two lists.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use podwright_model::text::panic_text;

use super::{CONTROLLER_NAME, ClaimControllerPorts};
use crate::ports::resource_claims::{Answer, ApiError, ApiErrorKind, Request};

/// A list that any number of passes await. It continues as long as one of them waits.
type SharedList = Shared<BoxFuture<'static, Result<Answer, ApiError>>>;

/// The lists of all namespaces.
#[derive(Default)]
pub(super) struct SharedLists(Mutex<HashMap<String, Arc<NamespaceLists>>>);

/// The lists of a namespace.
#[derive(Default)]
struct NamespaceLists {
    /// Locked by the list that runs.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The list that is not sent yet.
    next: Mutex<Option<SharedList>>,
}

impl SharedLists {
    /// Lists the claims of a namespace. The list is sent after this call. Cancel safe: a dropped call does not end the list of the other
    /// passes.
    pub(super) async fn list(&self, namespace: String, ports: &ClaimControllerPorts) -> Result<Answer, ApiError> {
        let list = {
            let mut namespaces = self.0.lock();
            // A list that waits or runs holds a clone of `turn`.
            namespaces.retain(|_, lists| Arc::strong_count(&lists.turn) > 1);
            let lists = &*namespaces.entry(namespace.clone()).or_default();
            lists.next.lock().get_or_insert_with(|| next_list(lists, namespace, ports)).clone()
        };
        list.await
    }
}

/// The list that follows the one that runs.
fn next_list(lists: &Arc<NamespaceLists>, namespace: String, ports: &ClaimControllerPorts) -> SharedList {
    // `lists` holds this list, so a strong reference would be a cycle that is never freed.
    let (turn, lists) = (lists.turn.clone(), Arc::downgrade(lists));
    let (api, panics) = (ports.api.clone(), ports.metrics.panics.clone());
    let list = async move {
        let _turn = turn.lock_owned().await;
        // A request from now on needs a list that is sent later.
        if let Some(lists) = lists.upgrade() {
            lists.next.lock().take();
        }
        let call = async { api.call(Request::ListClaims { namespace }).await };
        // A panic here would reach only one of the passes, and the others would wait for ever.
        AssertUnwindSafe(call).catch_unwind().await.unwrap_or_else(|panic| {
            panics.caught();
            let panic = panic_text(&*panic);
            tracing::error!(controller = CONTROLLER_NAME, panic, "the list of the claims panicked");
            Err(ApiError::new(ApiErrorKind::Unknown, format!("the list panicked: {panic}")))
        })
    };
    list.boxed().shared()
}
