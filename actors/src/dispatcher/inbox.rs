//! Where the sources of pods send their updates to a dispatcher.

use std::sync::Arc;

use actix::{Addr, Recipient};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::actor::DispatcherActor;
use super::messages::AcceptUpdate;
use crate::ports::{NodeStopped, SourceInbox, SourceUpdate};

/// The inbox of a dispatcher that runs. A full mailbox makes its sender wait.
pub(crate) fn inbox(dispatcher: &Addr<DispatcherActor>) -> Arc<dyn SourceInbox> {
    Arc::new(DispatcherInbox(dispatcher.clone().recipient()))
}

struct DispatcherInbox(Recipient<AcceptUpdate>);

impl SourceInbox for DispatcherInbox {
    fn send(&self, update: SourceUpdate) -> BoxFuture<'static, Result<(), NodeStopped>> {
        // The request has no timeout, so the only error is that of a closed mailbox.
        self.0.send(AcceptUpdate(update)).map(|sent| sent.map_err(|_closed| NodeStopped)).boxed()
    }
}
