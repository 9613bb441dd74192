//! Sending to an actor's bounded mailbox, and stopping actors.

use actix::dev::ToEnvelope;
use actix::prelude::*;
use podwright_metrics::ActorMetrics;
use tokio_util::sync::CancellationToken;

/// Stops an actor, with all futures on its context, once the token is cancelled. Called in `started`.
pub(crate) fn stop_with<A: Actor<Context = Context<A>>>(stop: &CancellationToken, actor: &A, ctx: &mut Context<A>) {
    let stopped = stop.clone().cancelled_owned();
    ctx.spawn(stopped.into_actor(actor).map(|(), _, ctx: &mut Context<A>| ctx.stop()));
}

/// The sending side of one kind of message to one actor.
///
/// A full mailbox makes the sender wait until its message is handled. So the mailbox holds its capacity and one message of each
/// waiting sender, and nothing is dropped. Each time a message finds the mailbox full or closed, the actor's
/// `podwright_actor_refusals_total` counts one. Senders share an outbox: actix counts a mailbox as full for each copy of its
/// address apart, so it cannot be cloned.
pub(crate) struct Outbox<M>
where
    M: Message + Send + 'static,
    M::Result: Send,
{
    recipient: Recipient<M>,
    metrics: ActorMetrics,
}

impl<M> Outbox<M>
where
    M: Message + Send + 'static,
    M::Result: Send,
{
    /// An outbox to an actor whose messages are counted in `metrics`.
    pub(crate) fn new<A>(address: &Addr<A>, metrics: &ActorMetrics) -> Self
    where
        A: Actor + Handler<M>,
        A::Context: ToEnvelope<A, M>,
    {
        Outbox { recipient: address.clone().recipient(), metrics: metrics.clone() }
    }

    /// Puts a message into the mailbox, and waits until it is handled if the mailbox is full. A stopped actor drops the
    /// message: its node has stopped, so the message has no use.
    pub(crate) async fn post(&self, message: M) {
        match self.recipient.try_send(message) {
            Ok(()) => {}
            Err(SendError::Full(message)) => {
                self.metrics.refused();
                // The message has no reply, and the mailbox is closed only when the node has stopped.
                let _stopped = self.recipient.send(message).await;
            }
            Err(SendError::Closed(_)) => self.metrics.refused(),
        }
    }
}
