//! The adapter that watches the pods of the API server, and the updates that it sends.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use kube::Client;
use podwright::adapters::kube::PodSource;
use podwright_ports::{Clock, NodeStopped, SourceInbox, SourceUpdate};
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
    inbox: Arc<dyn SourceInbox>,
    updates: Receiver<HeldUpdate>,
}

/// Holds the updates of the source until the simulation has passed them on.
struct HoldingInbox(Sender<HeldUpdate>);

impl SourceInbox for HoldingInbox {
    fn send(&self, update: SourceUpdate) -> BoxFuture<'static, Result<(), NodeStopped>> {
        let (accepted, is_accepted) = oneshot::channel();
        let updates = self.0.clone();
        Box::pin(async move {
            // The receivers are dropped when the agent ends.
            updates.send(HeldUpdate { update, accepted }).await.map_err(|_| NodeStopped)?;
            let _dropped = is_accepted.await;
            Ok(())
        })
    }
}

impl ApiSource {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        let (sender, updates) = channel(1);
        let source = Some(PodSource::new(client, NODE_NAME, clock));
        ApiSource { source, inbox: Arc::new(HoldingInbox(sender)), updates }
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
    use podwright_ports::SourceKind;

    use super::*;

    #[tokio::test]
    async fn a_source_waits_until_the_agent_has_accepted_its_update() {
        let (sender, mut updates) = channel(1);
        let update = SourceUpdate::NotYet { source: SourceKind::Api, problems: Vec::new() };
        let mut sending = HoldingInbox(sender).send(update);
        assert!((&mut sending).now_or_never().is_none(), "the simulation has not taken it");
        let HeldUpdate { accepted, .. } = updates.recv().await.unwrap();
        assert!((&mut sending).now_or_never().is_none(), "the simulation has not passed it on");
        drop(accepted);
        assert_eq!(sending.await, Ok(()));
    }
}
