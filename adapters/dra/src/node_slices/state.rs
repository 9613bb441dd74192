//! Decides which slices of the node are deleted, and which are published for drivers. Pure.
//!
//! ```text
//!   Drivers ----> instances --- none is connected ---> Wipe: Scheduled --30 s--> Running ---> Forget, or retry
//!                     |                                  ^ connected: Idle         '-- connected: Stopping ---> Forget, publish
//!                     '--- offers node resources ----> Stream: Open ---> Received ---> Publication
//! ```
//!
//! A driver is usable if an instance of it is connected. While it is not usable, its slices are not created or updated, so that slices that
//! were deleted do not come back. A deletion that has been sent cannot be taken back. So nothing is written for the driver before the
//! deletion has ended, and then the slices are read anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use podwright_model::ids::DriverName;
use podwright_model::time::Time;
use podwright_slices::DriverResources;

use super::stream::{Stream, StreamEnd, StreamId};
use super::wiping::{PendingDeletion, StartupWipe, Wipe};

/// An instance of a driver.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InstanceFacts<I> {
    pub(super) instance: I,
    pub(super) is_connected: bool,
    /// Whether it offers node resources.
    pub(super) publishes: bool,
}

/// The instances of all registered drivers, in the order of their registration.
pub(super) type Snapshot<I> = BTreeMap<DriverName, Vec<InstanceFacts<I>>>;

/// Slices that are deleted with one call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    /// All slices of the node.
    AllDrivers,
    Driver(DriverName),
}

/// What happened. A failure has a random number from 0 to 1, which varies the delay before the next try.
#[derive(Clone, Debug)]
pub(super) enum Event<I> {
    /// These drivers are registered.
    Drivers(Snapshot<I>),
    /// The API server has the node.
    NodeFound,
    /// A deletion has ended.
    Wiped(Target, Result<(), f64>),
    /// The drivers that have slices on this node.
    Listed(Result<BTreeSet<DriverName>, f64>),
    /// A driver has sent all its resources.
    Received { driver: DriverName, stream: StreamId, resources: Arc<DriverResources> },
    /// A stream has ended.
    Ended { driver: DriverName, stream: StreamId, end: StreamEnd },
    /// A delay may have passed.
    Due,
}

/// What has to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect<I> {
    /// Delete the slices. The end is reported as [`Event::Wiped`].
    Wipe(Target),
    /// The running deletion is no longer needed: do not send it if it has not been sent. Its end is reported.
    StopWipe(Target),
    /// List the drivers that have slices.
    ListDrivers,
    OpenStream {
        driver: DriverName,
        stream: StreamId,
        instance: I,
    },
    CloseStream {
        driver: DriverName,
        reason: CloseReason,
    },
    /// Publish the resources of a driver from now on.
    Publish(DriverName, Arc<DriverResources>),
    /// Write nothing for the driver until it publishes again.
    Hold(DriverName),
    /// Stop managing the slices of the driver. The slices stay.
    Forget(DriverName),
}

/// Why a stream is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// An instance has registered. It gets the new stream.
    Reregistered,
    /// The instance has deregistered.
    Unregistered,
}

/// How far the resources of a driver are published.
#[derive(Clone, Debug, Default, PartialEq)]
enum Publication {
    #[default]
    Nothing,
    /// Cannot be published yet.
    Waiting(Arc<DriverResources>),
    Active(Arc<DriverResources>),
    /// Are published, but the driver is not usable now.
    Held(Arc<DriverResources>),
}

/// The delays before slices are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delays {
    /// After a driver has stopped being usable.
    pub(super) wipe: Duration,
    /// After the start of the agent.
    pub(super) startup_wipe: Duration,
}

/// The slices of the node.
#[derive(Clone, Debug)]
pub(super) struct NodeSlices<I> {
    delays: Delays,
    has_node: bool,
    startup: StartupWipe,
    drivers: BTreeMap<DriverName, DriverState<I>>,
    last_stream: StreamId,
}

#[derive(Clone, Debug)]
struct DriverState<I> {
    instances: Vec<InstanceFacts<I>>,
    wipe: Wipe,
    stream: Stream<I>,
    publication: Publication,
}

impl<I: Clone + PartialEq> NodeSlices<I> {
    pub(super) fn new(delays: Delays, now: Time) -> Self {
        let startup = StartupWipe::Scheduled { due: now + delays.startup_wipe, failures: 0 };
        NodeSlices { delays, has_node: false, startup, drivers: BTreeMap::new(), last_stream: 0 }
    }

    /// One move.
    #[must_use]
    pub(super) fn step(&mut self, event: Event<I>, now: Time) -> Vec<Effect<I>> {
        let mut effects = Vec::new();
        match event {
            Event::Drivers(snapshot) => self.registered(snapshot, now, &mut effects),
            Event::NodeFound => {
                self.has_node = true;
                self.startup.retry_at_once(now);
            }
            Event::Wiped(Target::AllDrivers, result) => self.startup.deleted(result, now),
            Event::Wiped(Target::Driver(name), result) => self.wiped(&name, result, now, &mut effects),
            Event::Listed(Err(draw)) => self.startup.failed(draw, now),
            Event::Listed(Ok(drivers)) => {
                self.startup = StartupWipe::Done;
                for name in drivers {
                    let driver = self.drivers.entry(name).or_default();
                    if !driver.is_usable() {
                        driver.wipe.schedule(now);
                    }
                }
            }
            Event::Received { driver, stream, resources } => {
                if let Some(state) = self.drivers.get_mut(&driver).filter(|state| state.stream.is_open(stream)) {
                    state.stream.received();
                    state.publication = match state.publication {
                        Publication::Nothing | Publication::Waiting(_) => Publication::Waiting(resources),
                        Publication::Held(_) => Publication::Held(resources),
                        Publication::Active(_) => {
                            effects.push(Effect::Publish(driver, resources.clone()));
                            Publication::Active(resources)
                        }
                    };
                }
            }
            Event::Ended { driver, stream, end } => {
                if let Some(state) = self.drivers.get_mut(&driver).filter(|state| state.stream.is_open(stream)) {
                    state.stream.ended(end, now);
                }
            }
            Event::Due => {}
        }
        self.start(now, &mut effects);
        self.publish(&mut effects);
        effects
    }

    /// When the next delay ends.
    pub(super) fn next_due(&self) -> Option<Time> {
        let drivers = self.drivers.values().flat_map(|driver| [driver.wipe.due(), driver.stream.due()]);
        drivers.chain([self.startup.due()]).flatten().min()
    }

    /// The deletion of the slices that an earlier agent left, until it has succeeded.
    pub(super) fn startup_deletion(&self) -> Option<PendingDeletion> {
        self.startup.pending()
    }

    /// The drivers that are registered or have slices that will be deleted: each with this deletion, and its stream.
    pub(super) fn drivers(&self) -> impl Iterator<Item = (&DriverName, Option<PendingDeletion>, &Stream<I>)> {
        self.drivers.iter().map(|(name, driver)| (name, driver.wipe.pending(), &driver.stream))
    }

    fn registered(&mut self, mut snapshot: Snapshot<I>, now: Time, effects: &mut Vec<Effect<I>>) {
        let names: BTreeSet<DriverName> = self.drivers.keys().chain(snapshot.keys()).cloned().collect();
        for name in names {
            let instances = snapshot.remove(&name).unwrap_or_default();
            let driver = self.drivers.entry(name.clone()).or_default();
            let is_new = |facts: &InstanceFacts<I>| !driver.instances.iter().any(|old| old.instance == facts.instance);
            let newest = instances.iter().rfind(|facts| facts.publishes).filter(|facts| is_new(facts));
            let newest = newest.map(|facts| facts.instance.clone());
            let must_wipe = driver.is_usable() || instances.iter().any(is_new);
            driver.instances = instances;
            if driver.is_usable() {
                if driver.wipe.cancel() {
                    effects.push(Effect::StopWipe(Target::Driver(name.clone())));
                }
            } else if must_wipe {
                driver.wipe.schedule(now + self.delays.wipe);
            }
            driver.move_stream(&name, newest, &mut self.last_stream, effects);
            let publishes_itself = !driver.instances.is_empty() && driver.chosen().is_none();
            if publishes_itself && std::mem::take(&mut driver.publication).has_slices() {
                effects.push(Effect::Forget(name));
            }
        }
        if let StartupWipe::Deleting { failures } = self.startup
            && self.is_any_usable()
        {
            // The call would also delete the slices of the driver that is there now.
            effects.push(Effect::StopWipe(Target::AllDrivers));
            self.startup = StartupWipe::Stopping { failures };
        }
        self.drivers.retain(|_, driver| driver.is_needed());
    }

    fn wiped(&mut self, name: &DriverName, result: Result<(), f64>, now: Time, effects: &mut Vec<Effect<I>>) {
        let Some(driver) = self.drivers.get_mut(name) else { return };
        if !driver.wipe.ended(result, now) {
            return;
        }
        let publication = std::mem::take(&mut driver.publication);
        if publication.has_slices() {
            effects.push(Effect::Forget(name.clone()));
        }
        // The resources are current if the driver is back, or if its stream is finished and sends no further message. Otherwise the next
        // stream begins with a message that has all resources.
        let is_current = driver.is_usable() || matches!(driver.stream, Stream::Finished { .. });
        if let Some(resources) = publication.into_resources().filter(|_| is_current) {
            driver.publication = Publication::Waiting(resources);
        }
        self.drivers.retain(|_, driver| driver.is_needed());
    }

    /// Starts what is due.
    fn start(&mut self, now: Time, effects: &mut Vec<Effect<I>>) {
        if let StartupWipe::Scheduled { due, failures } = self.startup
            && due <= now
        {
            if self.delays.startup_wipe.is_zero() && !self.is_any_usable() {
                self.startup = StartupWipe::Deleting { failures };
                effects.push(Effect::Wipe(Target::AllDrivers));
            } else {
                self.startup = StartupWipe::Listing { failures };
                effects.push(Effect::ListDrivers);
            }
        }
        for (name, driver) in &mut self.drivers {
            if driver.wipe.start(now) {
                effects.push(Effect::Wipe(Target::Driver(name.clone())));
            }
            if let Stream::Delayed { due, failure, .. } = driver.stream
                && due <= now
                && let Some(instance) = driver.chosen()
            {
                self.last_stream += 1;
                let stream = self.last_stream;
                driver.stream = Stream::Open { id: stream, instance: instance.clone(), failure: Some(failure) };
                effects.push(Effect::OpenStream { driver: name.clone(), stream, instance });
            }
        }
    }

    /// Begins, continues and interrupts to publish.
    fn publish(&mut self, effects: &mut Vec<Effect<I>>) {
        // A delayed deletion spares the drivers that are usable.
        let is_cleared = self.startup == StartupWipe::Done || !self.delays.startup_wipe.is_zero();
        for (name, driver) in &mut self.drivers {
            let may_write = self.has_node && is_cleared && driver.is_usable() && !driver.wipe.is_running();
            driver.publication = match std::mem::take(&mut driver.publication) {
                Publication::Waiting(resources) | Publication::Held(resources) if may_write => {
                    effects.push(Effect::Publish(name.clone(), resources.clone()));
                    Publication::Active(resources)
                }
                Publication::Active(resources) if !may_write => {
                    effects.push(Effect::Hold(name.clone()));
                    Publication::Held(resources)
                }
                unchanged => unchanged,
            };
        }
    }

    fn is_any_usable(&self) -> bool {
        self.drivers.values().any(DriverState::is_usable)
    }
}

impl<I> Default for DriverState<I> {
    fn default() -> Self {
        DriverState {
            instances: Vec::new(),
            wipe: Wipe::default(),
            stream: Stream::Closed,
            publication: Publication::Nothing,
        }
    }
}

impl<I: Clone + PartialEq> DriverState<I> {
    fn is_usable(&self) -> bool {
        self.instances.iter().any(|facts| facts.is_connected)
    }

    /// Whether the driver is registered, or has slices that will be deleted.
    fn is_needed(&self) -> bool {
        !self.instances.is_empty() || self.wipe != Wipe::Idle
    }

    /// The instance for a stream: the newest one that is connected, or the newest one if none is.
    fn chosen(&self) -> Option<I> {
        let mut publishers = self.instances.iter().rev().filter(|facts| facts.publishes);
        let connected = publishers.clone().find(|facts| facts.is_connected);
        connected.or(publishers.next()).map(|facts| facts.instance.clone())
    }

    /// Opens and closes the stream after the instances have changed. `newest` is an instance that has registered.
    fn move_stream(
        &mut self,
        name: &DriverName,
        newest: Option<I>,
        last_stream: &mut StreamId,
        effects: &mut Vec<Effect<I>>,
    ) {
        let reason = if newest.is_some() { CloseReason::Reregistered } else { CloseReason::Unregistered };
        let is_gone = |instance: &I| !self.instances.iter().any(|facts| facts.publishes && facts.instance == *instance);
        if newest.is_none() && !self.stream.instance().is_some_and(is_gone) {
            return;
        }
        if matches!(self.stream, Stream::Open { .. }) {
            effects.push(Effect::CloseStream { driver: name.clone(), reason });
        }
        match newest.or_else(|| self.chosen()) {
            Some(instance) => {
                *last_stream += 1;
                let stream = *last_stream;
                self.stream = Stream::Open { id: stream, instance: instance.clone(), failure: None };
                effects.push(Effect::OpenStream { driver: name.clone(), stream, instance });
            }
            None => self.stream = Stream::Closed,
        }
    }
}

impl Publication {
    /// Whether slices have been published.
    fn has_slices(&self) -> bool {
        match self {
            Publication::Nothing | Publication::Waiting(_) => false,
            Publication::Active(_) | Publication::Held(_) => true,
        }
    }

    fn into_resources(self) -> Option<Arc<DriverResources>> {
        match self {
            Publication::Nothing => None,
            Publication::Waiting(resources) | Publication::Active(resources) | Publication::Held(resources) => {
                Some(resources)
            }
        }
    }
}
