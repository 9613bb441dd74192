//! Performs what the [core](super::state) decides. Each call and each stream is a task, which reports events.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use podwright_dra_api::node_resources::NodeListAndWatchResourcesResponse;
use podwright_metrics::SliceMetrics;
use podwright_model::ids::DriverName;
use podwright_model::text::error_text;
use podwright_model::time::Time;
use podwright_slices::DriverResources;
use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Status};
use tracing::{Instrument, debug, info, info_span, warn};

use super::ports::{Publisher, SlicePorts};
use super::report::SlicesReport;
use super::resources::{self, InvalidMessage};
use super::state::{CloseReason, Delays, Effect, Event, NodeSlices, Snapshot, Target};
use super::stream::{StreamEnd, StreamId};

/// How often the node is looked up until it exists.
const NODE_PERIOD: Duration = Duration::from_secs(1);
/// A message with more bytes is read by a blocking thread, because it may have 4 MiB of JSON.
const LARGE: usize = 64 << 10;
/// The events that may wait. A driver that sends faster is slowed down by its connection.
const MAILBOX: usize = 16;

/// Deletes and publishes slices.
pub(super) struct SlicesTask<P: SlicePorts> {
    core: NodeSlices<P::Instance>,
    ports: Arc<P>,
    node: Arc<str>,
    events: mpsc::Sender<Event<P::Instance>>,
    inbox: mpsc::Receiver<Event<P::Instance>>,
    wipes: HashMap<Target, RunningWipe>,
    streams: HashMap<DriverName, AbortOnDropHandle<()>>,
    publishers: HashMap<DriverName, P::Publisher>,
    started: Instant,
    metrics: SliceMetrics,
    report: SlicesReport,
}

/// A deletion that runs or has ended.
struct RunningWipe {
    stop: CancellationToken,
    _task: AbortOnDropHandle<()>,
}

impl<P: SlicePorts> SlicesTask<P> {
    pub(super) fn new(ports: Arc<P>, node: &str, delays: Delays, metrics: SliceMetrics) -> Self {
        let (events, inbox) = mpsc::channel(MAILBOX);
        SlicesTask {
            core: NodeSlices::new(delays, Time::ZERO),
            ports,
            node: node.into(),
            events,
            inbox,
            wipes: HashMap::new(),
            streams: HashMap::new(),
            publishers: HashMap::new(),
            started: Instant::now(),
            metrics,
            report: SlicesReport::default(),
        }
    }

    /// Publishes the state there after each change.
    pub(super) fn report_to(mut self, report: SlicesReport) -> Self {
        self.report = report;
        self
    }

    /// Runs until `stop` fires. Then the slices stay as they are.
    pub(super) async fn run<D>(
        mut self,
        mut drivers: watch::Receiver<D>,
        snapshot: impl Fn(&D) -> Snapshot<P::Instance>,
        stop: CancellationToken,
    ) {
        let _find_node = self.spawn(find_node(self.ports.clone(), self.events.clone()));
        let mut next = Some(Event::Drivers(snapshot(&drivers.borrow_and_update())));
        loop {
            if let Some(event) = next.take() {
                let now = Time::ZERO + self.started.elapsed();
                let effects = self.core.step(event, now);
                effects.into_iter().for_each(|effect| self.perform(effect));
                self.report.set(&self.core, self.started);
            }
            let due = self.core.next_due().map(|due| due.since(Time::ZERO + self.started.elapsed()));
            tokio::select! {
                () = stop.cancelled() => return,
                changed = drivers.changed() => match changed {
                    Ok(()) => next = Some(Event::Drivers(snapshot(&drivers.borrow_and_update()))),
                    Err(_) => return,
                },
                event = self.inbox.recv() => next = event,
                () = sleep(due.unwrap_or_default()), if due.is_some() => next = Some(Event::Due),
            }
        }
    }

    fn perform(&mut self, effect: Effect<P::Instance>) {
        match effect {
            Effect::Wipe(target) => {
                let stop = CancellationToken::new();
                let wipe = Wiper {
                    ports: self.ports.clone(),
                    target: target.clone(),
                    stop: stop.clone(),
                    metrics: self.metrics.clone(),
                    events: self.events.clone(),
                };
                let _task = self.spawn(wipe.run());
                self.wipes.insert(target, RunningWipe { stop, _task });
            }
            Effect::StopWipe(target) => {
                match &target {
                    Target::AllDrivers => {
                        info!("a driver is connected: only slices of drivers that are not are deleted")
                    }
                    Target::Driver(driver) => {
                        info!(%driver, "the driver is connected again: there is no further try to delete its slices")
                    }
                }
                if let Some(wipe) = self.wipes.get(&target) {
                    wipe.stop.cancel();
                }
            }
            Effect::ListDrivers => {
                let _task = self.spawn(list(self.ports.clone(), self.events.clone()));
                self.wipes.insert(Target::AllDrivers, RunningWipe { stop: CancellationToken::new(), _task });
            }
            Effect::OpenStream { driver, stream, instance } => {
                let task = Reader {
                    ports: self.ports.clone(),
                    events: self.events.clone(),
                    node: self.node.clone(),
                    driver: driver.clone(),
                    stream,
                    metrics: self.metrics.clone(),
                };
                let span = info_span!("node_resources", %driver);
                let task = self.spawn(async move { task.run(&instance).await }.instrument(span));
                self.streams.insert(driver, task);
            }
            Effect::CloseStream { driver, reason } => {
                let reason = match reason {
                    CloseReason::Reregistered => "re-registered",
                    CloseReason::Unregistered => "unregistered",
                };
                info!(%driver, reason, "the stream of node resources is closed");
                self.streams.remove(&driver);
            }
            Effect::Publish(driver, resources) => {
                let ports = &self.ports;
                let publisher = self.publishers.entry(driver).or_insert_with_key(|driver| ports.publisher(driver));
                publisher.publish((*resources).clone());
            }
            Effect::Hold(driver) => {
                if let Some(publisher) = self.publishers.get(&driver) {
                    publisher.hold();
                }
            }
            Effect::Forget(driver) => drop(self.publishers.remove(&driver)),
        }
    }

    /// Starts a task that ends with its handle.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
        AbortOnDropHandle::new(tokio::spawn(task))
    }
}

/// Reports once that the node exists.
async fn find_node<P: SlicePorts>(ports: Arc<P>, events: mpsc::Sender<Event<P::Instance>>) {
    let mut is_reported = false;
    while let Err(error) = ports.node().await {
        if !std::mem::replace(&mut is_reported, true) {
            info!(error = error_text(&error), "waiting for the node before slices are published");
        }
        sleep(NODE_PERIOD).await;
    }
    let _stopped = events.send(Event::NodeFound).await;
}

/// Deletes slices.
struct Wiper<P: SlicePorts> {
    ports: Arc<P>,
    target: Target,
    stop: CancellationToken,
    metrics: SliceMetrics,
    events: mpsc::Sender<Event<P::Instance>>,
}

impl<P: SlicePorts> Wiper<P> {
    async fn run(self) {
        let Wiper { ports, target, stop, metrics, events } = self;
        let result = AssertUnwindSafe(ports.wipe(&target, &stop)).catch_unwind().await;
        let is_late = stop.is_cancelled();
        let was_sent = !matches!(result, Ok(Ok(false)));
        let result = match result {
            Ok(Ok(was_sent)) => {
                match &target {
                    _ if !was_sent => {}
                    Target::AllDrivers => info!("deleted the slices that an earlier agent left"),
                    Target::Driver(driver) if is_late => {
                        info!(%driver, "the driver connected while its slices were being deleted: they have to be published again")
                    }
                    Target::Driver(driver) => info!(%driver, "deleted the slices of a driver that is not connected"),
                }
                Ok(())
            }
            Ok(Err(error)) => {
                let error = error_text(&error);
                if is_late {
                    info!(
                        ?target,
                        error, "cannot delete slices of drivers that were not connected, which is no longer needed"
                    );
                } else {
                    warn!(?target, error, "cannot delete slices of drivers that are not connected, trying again");
                }
                Err(fastrand::f64())
            }
            Err(_) => Err(fastrand::f64()),
        };
        if was_sent {
            metrics.wiped(result.is_ok());
        }
        let _stopped = events.send(Event::Wiped(target, result)).await;
    }
}

async fn list<P: SlicePorts>(ports: Arc<P>, events: mpsc::Sender<Event<P::Instance>>) {
    let result = AssertUnwindSafe(ports.drivers()).catch_unwind().await;
    let result = match result {
        Ok(Ok(drivers)) => Ok(drivers),
        Ok(Err(error)) => {
            warn!(error = error_text(&error), "cannot list the slices that an earlier agent left, trying again");
            Err(fastrand::f64())
        }
        Err(_) => Err(fastrand::f64()),
    };
    let _stopped = events.send(Event::Listed(result)).await;
}

async fn read(message: NodeListAndWatchResourcesResponse, node: Arc<str>) -> Result<DriverResources, InvalidMessage> {
    if message.encoded_len() <= LARGE {
        return resources::resources(message, &node);
    }
    match tokio::task::spawn_blocking(move || resources::resources(message, &node)).await {
        Ok(read) => read,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The tokio runtime is shutting down and will drop this task too.
        Err(_) => std::future::pending().await,
    }
}

/// Reads the stream of a driver.
struct Reader<P: SlicePorts> {
    ports: Arc<P>,
    events: mpsc::Sender<Event<P::Instance>>,
    node: Arc<str>,
    driver: DriverName,
    stream: StreamId,
    metrics: SliceMetrics,
}

impl<P: SlicePorts> Reader<P> {
    async fn run(self, instance: &P::Instance) {
        let ended = AssertUnwindSafe(self.read(instance)).catch_unwind().await;
        let end = match ended {
            Ok(Ok(())) => {
                info!("the driver ended the stream of node resources: its published slices stay");
                StreamEnd::Finished
            }
            Ok(Err(status)) if status.code() == Code::Unimplemented => {
                warn!(
                    "the driver announced node resources, but does not have this service: nothing is published for it"
                );
                StreamEnd::Finished
            }
            Ok(Err(status)) => {
                info!(error = error_text(&status), "the stream of node resources failed, opening it again later");
                StreamEnd::Failed { draw: fastrand::f64() }
            }
            Err(_) => {
                warn!("reading the node resources of a driver panicked, opening its stream again later");
                StreamEnd::Failed { draw: fastrand::f64() }
            }
        };
        let _stopped = self.events.send(Event::Ended { driver: self.driver, stream: self.stream, end }).await;
    }

    async fn read(&self, instance: &P::Instance) -> Result<(), Status> {
        let mut messages = self.ports.stream(instance);
        while let Some(message) = messages.next().await {
            let read = read(message?, self.node.clone()).await;
            self.metrics.received(read.is_ok());
            match read {
                Ok(resources) => {
                    debug!(pools = resources.pools.len(), "the driver sent its node resources");
                    let (driver, stream, resources) = (self.driver.clone(), self.stream, Arc::new(resources));
                    let _stopped = self.events.send(Event::Received { driver, stream, resources }).await;
                }
                Err(error) => {
                    warn!(
                        error = error.short(),
                        "cannot use a message of a driver with node resources: the resources of its previous message stay published"
                    );
                }
            }
        }
        Ok(())
    }
}
