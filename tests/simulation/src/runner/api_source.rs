//! The adapter that watches the pods of the API server, and the updates that it sends.

use std::sync::Arc;

use actix::{Actor, Context, Handler, Recipient, ResponseFuture};
use kube::Client;
use podwright::adapters::kube::PodSource;
use podwright_actors::ports::{Clock, SourceUpdate};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::cluster::NODE_NAME;

/// An update that waits until the simulation has checked it and the agent has accepted it. Its source sends no other one before that.
pub(super) struct HeldUpdate {
    pub(super) update: SourceUpdate,
    /// Dropped once the agent has accepted the update.
    pub(super) accepted: oneshot::Sender<()>,
}

/// The source of one agent.
pub(super) struct ApiSource {
    /// The source, until it is started.
    source: Option<PodSource>,
    inbox: Recipient<SourceUpdate>,
    updates: Receiver<HeldUpdate>,
}

struct Inbox(Sender<HeldUpdate>);

impl Actor for Inbox {
    type Context = Context<Self>;
}

impl Handler<SourceUpdate> for Inbox {
    type Result = ResponseFuture<()>;

    fn handle(&mut self, update: SourceUpdate, _: &mut Self::Context) -> Self::Result {
        let (accepted, is_accepted) = oneshot::channel();
        let updates = self.0.clone();
        Box::pin(async move {
            // The receivers are dropped when the agent ends.
            let _ended = updates.send(HeldUpdate { update, accepted }).await;
            let _dropped = is_accepted.await;
        })
    }
}

impl ApiSource {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        let (sender, updates) = channel(1);
        let source = Some(PodSource::new(client, NODE_NAME, clock));
        ApiSource { source, inbox: Inbox(sender).start().recipient(), updates }
    }

    /// Starts the watch, if it is not started.
    pub(super) fn start(&mut self) {
        if let Some(source) = self.source.take() {
            // The task ends when the agent is killed.
            actix::spawn(source.run(self.inbox.clone(), CancellationToken::new()));
        }
    }
}

/// The next update of a source. Without a source, never returns.
pub(super) async fn next_update(source: &mut Option<ApiSource>) -> HeldUpdate {
    let update = match source {
        Some(source) => source.updates.recv().await,
        None => None,
    };
    match update {
        Some(update) => update,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use podwright_actors::ports::SourceKind;

    use super::*;

    #[test]
    fn a_source_waits_until_the_agent_has_accepted_its_update() {
        actix::System::new().block_on(async {
            let (sender, mut updates) = channel(1);
            let inbox = Inbox(sender).start();
            let update = SourceUpdate::NotYet { source: SourceKind::Api, problems: Vec::new() };
            let mut sending = Box::pin(inbox.send(update));
            let HeldUpdate { accepted, .. } = updates.recv().await.unwrap();
            assert!((&mut sending).now_or_never().is_none(), "the simulation has not passed it on");
            drop(accepted);
            sending.await.unwrap();
        });
    }
}
