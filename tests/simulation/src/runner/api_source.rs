//! The adapter that watches the pods of the API server, and the updates that it sends.

use std::sync::Arc;

use actix::{Actor, Context, Handler, Recipient};
use kube::Client;
use podwright::adapters::kube::PodSource;
use podwright_actors::ports::{Clock, SourceUpdate};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;

use crate::cluster::NODE_NAME;

/// The source of one agent. Its updates wait until the simulation has checked them.
pub(super) struct ApiSource {
    /// The source, until it is started.
    source: Option<PodSource>,
    inbox: Recipient<SourceUpdate>,
    updates: UnboundedReceiver<SourceUpdate>,
}

struct Inbox(UnboundedSender<SourceUpdate>);

impl Actor for Inbox {
    type Context = Context<Self>;
}

impl Handler<SourceUpdate> for Inbox {
    type Result = ();

    fn handle(&mut self, update: SourceUpdate, _: &mut Self::Context) {
        // The receiver is dropped when the agent ends.
        let _ended = self.0.send(update);
    }
}

impl ApiSource {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        let (sender, updates) = unbounded_channel();
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
pub(super) async fn next_update(source: &mut Option<ApiSource>) -> SourceUpdate {
    let update = match source {
        Some(source) => source.updates.recv().await,
        None => None,
    };
    match update {
        Some(update) => update,
        None => std::future::pending().await,
    }
}
