//! A node with a fake API server and fake drivers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use podwright_dra_api::node_resources::{NodeListAndWatchResourcesResponse, NodePool, NodeSlice};
use podwright_metrics::Metrics;
use podwright_model::ids::DriverName;
use podwright_slices::DriverResources;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

use super::super::ports::{Answer, ApiError, Publisher, SlicePorts};
use super::super::state::{Delays, InstanceFacts, Snapshot, Target};
use super::super::task::SlicesTask;

/// How a call to the API server ends.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Call {
    Works,
    Fails,
    /// Hangs before a deletion is sent.
    Hangs,
    /// Takes this many seconds after it was sent.
    Takes(u64),
}

/// What a driver does in its stream.
pub(super) enum Sent {
    /// Sends one device of this name.
    Device(&'static str),
    /// Sends what is no message.
    Nonsense,
    End,
    Break(Status),
    Panic,
}

/// What happened, with the second of its time.
type Log = Arc<Mutex<Vec<String>>>;

pub(super) struct Fake {
    log: Log,
    started: Instant,
    pub(super) has_node: Mutex<bool>,
    pub(super) calls: Mutex<Call>,
    /// The drivers that have slices.
    pub(super) with_slices: Mutex<BTreeSet<DriverName>>,
    sent: Mutex<HashMap<u32, mpsc::UnboundedReceiver<Sent>>>,
    /// Where the stream that ends puts the receiver back.
    returned: mpsc::UnboundedSender<(u32, mpsc::UnboundedReceiver<Sent>)>,
    returns: Mutex<mpsc::UnboundedReceiver<(u32, mpsc::UnboundedReceiver<Sent>)>>,
}

impl Fake {
    fn record(&self, what: &str) {
        record(&self.log, self.started, what);
    }

    fn answer<T: Send + 'static>(&self, value: T) -> Answer<'_, T> {
        match *self.calls.lock() {
            Call::Works => std::future::ready(Ok(value)).boxed(),
            Call::Fails => std::future::ready(Err(ApiError::Timeout)).boxed(),
            Call::Hangs => std::future::pending().boxed(),
            Call::Takes(seconds) => sleep(Duration::from_secs(seconds)).map(|()| Ok(value)).boxed(),
        }
    }
}

fn record(log: &Log, started: Instant, what: &str) {
    log.lock().push(format!("{} {what}", started.elapsed().as_secs()));
}

pub(super) struct FakePublisher {
    driver: DriverName,
    log: Log,
    started: Instant,
}

impl Publisher for FakePublisher {
    fn publish(&self, resources: DriverResources) {
        let devices = resources.pools.values().flat_map(|pool| &pool.slices).flat_map(|slice| &slice.devices);
        let devices: Vec<_> = devices.map(|device| device.name.as_str()).collect();
        record(&self.log, self.started, &format!("publish {} {}", self.driver, devices.join(",")));
    }

    fn hold(&self) {
        record(&self.log, self.started, &format!("hold {}", self.driver));
    }
}

impl Drop for FakePublisher {
    fn drop(&mut self) {
        record(&self.log, self.started, &format!("forget {}", self.driver));
    }
}

impl SlicePorts for Fake {
    type Instance = u32;
    type Publisher = FakePublisher;

    fn node(&self) -> Answer<'_, ()> {
        let answer = if *self.has_node.lock() { Ok(()) } else { Err(ApiError::NoNode("n7".into())) };
        std::future::ready(answer).boxed()
    }

    fn wipe<'a>(&'a self, target: &'a Target, stop: &'a CancellationToken) -> Answer<'a, bool> {
        match target {
            Target::AllDrivers => self.record("wipe all"),
            Target::Driver(driver) => self.record(&format!("wipe {driver}")),
        }
        if *self.calls.lock() == Call::Hangs {
            return stop.cancelled().map(|()| Ok(false)).boxed();
        }
        self.answer(true)
    }

    fn drivers(&self) -> Answer<'_, BTreeSet<DriverName>> {
        self.record("list");
        self.answer(self.with_slices.lock().clone())
    }

    fn stream(&self, instance: &u32) -> BoxStream<'static, Result<NodeListAndWatchResourcesResponse, Status>> {
        self.record(&format!("open {instance}"));
        while let Ok((instance, receiver)) = self.returns.lock().try_recv() {
            self.sent.lock().insert(instance, receiver);
        }
        let receiver = self.sent.lock().remove(instance);
        let reading = GiveBack { instance: *instance, receiver, to: self.returned.clone() };
        let messages = stream::unfold(reading, |mut reading| async {
            let sent = match &mut reading.receiver {
                Some(receiver) => receiver.recv().await?,
                None => std::future::pending().await,
            };
            let message = |devices: &[u8]| {
                let slice = NodeSlice { devices_json: devices.to_vec(), ..Default::default() };
                let pool = NodePool { slices: vec![slice], ..Default::default() };
                NodeListAndWatchResourcesResponse { pools: vec![pool] }
            };
            match sent {
                Sent::Device(name) => Some((Ok(message(format!("[{{\"name\":\"{name}\"}}]").as_bytes())), reading)),
                Sent::Nonsense => Some((Ok(message(b"{")), reading)),
                Sent::End => None,
                Sent::Break(status) => Some((Err(status), reading)),
                Sent::Panic => panic!("the library made a mistake"),
            }
        });
        messages.boxed()
    }

    fn publisher(&self, driver: &DriverName) -> FakePublisher {
        FakePublisher { driver: driver.clone(), log: self.log.clone(), started: self.started }
    }
}

/// Gives the messages of an instance to its next stream.
struct GiveBack {
    instance: u32,
    receiver: Option<mpsc::UnboundedReceiver<Sent>>,
    to: mpsc::UnboundedSender<(u32, mpsc::UnboundedReceiver<Sent>)>,
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            let _ended = self.to.send((self.instance, receiver));
        }
    }
}

/// A node that runs.
pub(super) struct Rig {
    pub(super) fake: Arc<Fake>,
    drivers: watch::Sender<Snapshot<u32>>,
    senders: Mutex<HashMap<u32, mpsc::UnboundedSender<Sent>>>,
    _stop: DropGuard,
}

pub(super) const DELAYS: Delays = Delays { wipe: super::super::WIPE_DELAY, startup_wipe: Duration::ZERO };

impl Rig {
    pub(super) async fn start() -> Self {
        let rig = Rig::start_with(DELAYS, |_| {});
        rig.until(0).await;
        assert_eq!(rig.log(), ["0 wipe all"]);
        rig
    }

    pub(super) fn start_with(delays: Delays, edit: impl FnOnce(&Fake)) -> Self {
        let (returned, returns) = mpsc::unbounded_channel();
        let fake = Fake {
            log: Log::default(),
            started: Instant::now(),
            has_node: Mutex::new(true),
            calls: Mutex::new(Call::Works),
            with_slices: Mutex::default(),
            sent: Mutex::default(),
            returned,
            returns: Mutex::new(returns),
        };
        edit(&fake);
        let (fake, stop) = (Arc::new(fake), CancellationToken::new());
        let (drivers, receiver) = watch::channel(Snapshot::new());
        let task = SlicesTask::new(fake.clone(), "n7", delays, Metrics::new().slices.clone());
        tokio::spawn(task.run(receiver, Snapshot::clone, stop.clone()));
        Rig { fake, drivers, senders: Mutex::default(), _stop: stop.drop_guard() }
    }

    /// Waits until this second, and until everything of it has happened.
    pub(super) async fn until(&self, second: u64) {
        sleep_until(self.fake.started + Duration::from_secs(second)).await;
        sleep(Duration::from_millis(100)).await;
    }

    /// The instances of a driver that are registered now, each with whether it is connected. They offer node resources.
    pub(super) fn set(&self, driver: &str, instances: &[(u32, bool)]) {
        self.set_all(
            driver,
            &instances.iter().map(|(instance, connected)| (*instance, *connected, true)).collect::<Vec<_>>(),
        );
    }

    /// As above, and whether each instance offers node resources.
    pub(super) fn set_all(&self, driver: &str, instances: &[(u32, bool, bool)]) {
        for (instance, ..) in instances {
            self.senders.lock().entry(*instance).or_insert_with(|| {
                let (sender, receiver) = mpsc::unbounded_channel();
                self.fake.sent.lock().insert(*instance, receiver);
                sender
            });
        }
        let facts = instances.iter().map(|(instance, is_connected, publishes)| InstanceFacts {
            instance: *instance,
            is_connected: *is_connected,
            publishes: *publishes,
        });
        let facts: Vec<_> = facts.collect();
        self.drivers.send_modify(|drivers| {
            if facts.is_empty() {
                drivers.remove(&DriverName::from(driver));
            } else {
                drivers.insert(driver.into(), facts);
            }
        });
    }

    pub(super) fn send(&self, instance: u32, sent: Sent) {
        self.senders.lock()[&instance].send(sent).unwrap();
    }

    /// What happened since the last question.
    pub(super) fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.fake.log.lock())
    }
}
