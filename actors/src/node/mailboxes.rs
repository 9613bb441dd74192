//! The actors of a node. The dispatcher and housekeeping get their addresses before they are built, because other parts send to them.

use std::sync::Arc;

use actix::prelude::*;
use podwright_metrics::{ActorMetrics, Metrics};
use tokio::sync::Notify;

use super::NodeBuilder;
use super::pod_workers::PodWorkers;
use super::shared::Shared;
use crate::admission::AdmissionHandler;
use crate::dispatcher::{self, Dispatcher, DispatcherActor};
use crate::eviction::RemoveDeadContainers;
use crate::explain::Explainer;
use crate::housekeeping::{Housekeeping, HousekeepingActor, PassState};
use crate::mailbox::Outbox;
use crate::observer::ObserverActor;

/// The mailboxes of actors that do not run yet.
pub(super) struct Mailboxes {
    dispatcher: Context<DispatcherActor>,
    dispatcher_metrics: ActorMetrics,
    housekeeping: Context<HousekeepingActor>,
}

/// The addresses of the actors that run.
pub(super) struct Actors {
    pub(super) dispatcher: Addr<DispatcherActor>,
    pub(super) housekeeping: Addr<HousekeepingActor>,
    pub(super) observer: Addr<ObserverActor>,
}

impl Mailboxes {
    /// Empty mailboxes.
    pub(super) fn new(metrics: &Metrics) -> Self {
        let mut dispatcher = Context::<DispatcherActor>::new();
        dispatcher.set_mailbox_capacity(dispatcher::MAILBOX);
        Mailboxes { dispatcher, dispatcher_metrics: metrics.actors.of("dispatcher"), housekeeping: Context::new() }
    }

    /// The sending side of one kind of message to the dispatcher.
    pub(super) fn outbox<M>(&self) -> Outbox<M>
    where
        DispatcherActor: Handler<M>,
        M: Message + Send + 'static,
        M::Result: Send,
    {
        Outbox::new(&self.dispatcher.address(), &self.dispatcher_metrics)
    }

    /// Where the removal of dead containers is requested.
    pub(super) fn dead_containers(&self) -> Recipient<RemoveDeadContainers> {
        self.housekeeping.address().recipient()
    }

    /// Starts the observer, the dispatcher and housekeeping. A housekeeping pass follows at once when `pass_needed` fires.
    pub(super) fn start(
        self,
        shared: &Shared,
        builder: &NodeBuilder,
        pods: PodWorkers,
        admission: Vec<Arc<dyn AdmissionHandler>>,
        explainer: Arc<Explainer>,
        pass_needed: Arc<Notify>,
    ) -> Actors {
        let (changes, health) = (Arc::new(self.outbox()), Arc::new(self.outbox()));
        let observer = ObserverActor::new(shared.observer.clone(), changes, health, shared.stop()).start();
        let dispatcher = Dispatcher {
            engine: pods.engine.clone(),
            desired: shared.desired.clone(),
            statuses: shared.statuses.clone(),
            final_statuses: shared.final_statuses.clone(),
            active: pods.active.clone(),
            mirrors: shared.mirrors.clone(),
            starts: shared.starts.clone(),
            resizes: shared.resizes.clone(),
            view: shared.observer.clone(),
            gate: shared.gate.clone(),
            admission,
            events: shared.events.clone(),
            clock: shared.clock.clone(),
            metrics: shared.metrics.clone(),
        };
        let housekeeping = Housekeeping {
            engine: pods.engine,
            desired: shared.desired.clone(),
            statuses: shared.statuses.clone(),
            final_statuses: shared.final_statuses.clone(),
            active: pods.active,
            mirrors: shared.mirrors.clone(),
            resizes: shared.resizes.clone(),
            run_facts: shared.run_facts.clone(),
            runtime: shared.runtime.clone(),
            observer: shared.observer.clone(),
            probes: pods.probes,
            containers: pods.containers,
            storage: shared.storage.clone(),
            objects: shared.objects.clone(),
            resources: shared.resources.clone(),
            cgroups: shared.cgroups.clone(),
            events: shared.events.clone(),
            explainer,
            gate: shared.gate.clone(),
            clock: shared.clock.clone(),
            metrics: shared.metrics.clone(),
            state: PassState::new(shared.passes.clone(), builder.long_wait_after, shared.stop()),
        };
        let healthy = shared.observer.healthy();
        let dispatcher =
            DispatcherActor::new(Arc::new(dispatcher), self.dispatcher_metrics, healthy, pods.pod_ended, shared.stop());
        let housekeeping = HousekeepingActor::new(Arc::new(housekeeping), pass_needed, shared.stop());
        Actors {
            dispatcher: self.dispatcher.run(dispatcher),
            housekeeping: self.housekeeping.run(housekeeping),
            observer,
        }
    }
}
