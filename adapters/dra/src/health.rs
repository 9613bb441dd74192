//! The streams of device health, one per instance of a driver.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use podwright_dra_api::health::dra_resource_health_client::DraResourceHealthClient;
use podwright_dra_api::health::{self, HealthStatus, NodeWatchResourcesRequest};
use podwright_model::ids::DriverName;
use podwright_model::text::{error_text, plain};
use podwright_ports::{DeviceHealth, DeviceHealthSink, DeviceReport};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tracing::{Instrument, debug, info, info_span, warn};

use super::MAX_TEXT;
use super::driver_state::HealthStreams;
use super::registry::{Drivers, Instance};

/// The pause before the next stream after one has ended (upstream `healthStream` in `dra_manager.go`, kubelet 1.36).
const PAUSE: Duration = Duration::from_secs(5);

/// Watches the health of the devices of all drivers.
pub(super) struct HealthMonitor {
    sink: Arc<dyn DeviceHealthSink>,
    /// The streams of each registered driver.
    streams: Mutex<HashMap<DriverName, DriverStreams>>,
    stopping: CancellationToken,
}

/// The streams of a driver, one for each instance.
#[derive(Debug, Default)]
struct DriverStreams {
    open: usize,
    /// How the last one ended.
    end: Option<StreamEnd>,
}

/// How a stream ended.
#[derive(Clone, Debug)]
enum StreamEnd {
    /// The driver has no such service.
    NotOffered,
    /// With this text.
    Ended(String),
}

/// An open stream. When the last stream of a driver is dropped, the monitor clears the health of the driver's devices. It keeps the
/// health if the agent stops, because the end of the stream then says nothing about the devices.
struct OpenStream<'a> {
    monitor: &'a HealthMonitor,
    driver: &'a DriverName,
}

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        // The lock is held, so that the next stream of the driver does not report before the end of this one.
        let mut streams = self.monitor.streams.lock();
        let Some(streams) = streams.get_mut(self.driver) else { return };
        streams.open -= 1;
        if streams.open == 0 && !self.monitor.stopping.is_cancelled() {
            self.monitor.sink.ended(self.driver);
        }
    }
}

impl HealthMonitor {
    /// A monitor that runs until the token is cancelled.
    pub(super) fn new(sink: Arc<dyn DeviceHealthSink>, stopping: CancellationToken) -> Self {
        HealthMonitor { sink, streams: Mutex::default(), stopping }
    }

    /// The streams of a driver.
    pub(super) fn streams(&self, driver: &DriverName) -> HealthStreams {
        match self.streams.lock().get(driver) {
            Some(DriverStreams { open: 1.., .. }) => HealthStreams::Open,
            Some(DriverStreams { end: Some(StreamEnd::NotOffered), .. }) => HealthStreams::NotOffered,
            Some(DriverStreams { end: Some(StreamEnd::Ended(text)), .. }) => HealthStreams::Closed(Some(text.clone())),
            Some(DriverStreams { end: None, .. }) | None => HealthStreams::Closed(None),
        }
    }

    fn open<'a>(&'a self, driver: &'a DriverName) -> OpenStream<'a> {
        self.streams.lock().entry(driver.clone()).or_default().open += 1;
        OpenStream { monitor: self, driver }
    }

    fn ended(&self, driver: &DriverName, end: StreamEnd) {
        self.streams.lock().entry(driver.clone()).or_default().end = Some(end);
    }

    /// Watches each instance from its registration until it is removed. A panic of the sink ends all streams, and the caller starts
    /// again.
    pub(super) async fn run(self: Arc<Self>, mut drivers: watch::Receiver<Drivers>) {
        let mut watched: Vec<Arc<Instance>> = Vec::new();
        let mut streams = FuturesUnordered::new();
        loop {
            let now = drivers.borrow_and_update().clone();
            let instances = now.names().flat_map(|name| now.instances(name)).map(|state| state.instance.clone());
            let instances: Vec<_> = instances.collect();
            self.streams.lock().retain(|name, streams| streams.open > 0 || now.is_registered(name));
            for instance in &instances {
                if !watched.iter().any(|known| Arc::ptr_eq(known, instance)) {
                    let (monitor, instance) = (self.clone(), instance.clone());
                    let endpoint = instance.endpoint().display().to_string();
                    let span = info_span!("device_health", driver = %instance.driver(), endpoint);
                    streams.push(async move { monitor.watch(&instance).await }.instrument(span));
                }
            }
            watched = instances;
            tokio::select! {
                changed = drivers.changed() => if changed.is_err() {
                    return;
                },
                // The instance was removed, or does not have the service.
                Some(()) = streams.next(), if !streams.is_empty() => {}
            }
        }
    }

    /// Opens one stream after another until the instance is removed, or turns out not to have the service.
    async fn watch(&self, instance: &Instance) {
        let driver = instance.driver();
        // A driver may fail the same way for as long as it runs.
        let mut logged = None;
        while let Some(channel) = instance.connected().await {
            let ended = tokio::select! {
                ended = self.stream(driver, channel) => ended,
                () = instance.removed() => return,
            };
            match ended {
                Ok(()) => {
                    logged = None;
                    debug!("the driver ended the stream of device health");
                    self.ended(driver, StreamEnd::Ended("the driver ended it".to_owned()));
                }
                Err(status) if status.code() == Code::Unimplemented => {
                    if instance.services().health {
                        warn!("the driver announces a service for the health of its devices and does not implement it");
                    } else {
                        debug!("the driver does not report the health of its devices");
                    }
                    self.ended(driver, StreamEnd::NotOffered);
                    return;
                }
                Err(status) => {
                    let error = plain(&error_text(&status), MAX_TEXT).into_owned();
                    if logged.as_ref() != Some(&error) {
                        info!(error, "the stream of device health failed, trying again");
                        logged = Some(error.clone());
                    }
                    self.ended(driver, StreamEnd::Ended(error));
                }
            }
            tokio::select! {
                () = sleep(PAUSE) => {}
                () = instance.removed() => return,
            }
        }
    }

    /// Passes the messages of one stream on until the driver ends it.
    ///
    /// # Errors
    /// The status with which the stream failed, or was cancelled.
    async fn stream(&self, driver: &DriverName, channel: Channel) -> Result<(), Status> {
        let mut client = DraResourceHealthClient::new(channel);
        let mut messages = client.node_watch_resources(NodeWatchResourcesRequest {}).await?.into_inner();
        let _open = self.open(driver);
        while let Some(message) = messages.message().await? {
            let reports = message.devices.into_iter().filter_map(|device| {
                let report = report(device);
                if report.is_none() {
                    info!("the driver reported the health of a device without its name");
                }
                report
            });
            self.sink.reported(driver, reports.collect());
        }
        Ok(())
    }
}

/// A report on a device. `None` if it does not name the device.
fn report(device: health::DeviceHealth) -> Option<DeviceReport> {
    let id = device.device?;
    let health = match HealthStatus::try_from(device.health) {
        Ok(HealthStatus::Healthy) => DeviceHealth::Healthy,
        Ok(HealthStatus::Unhealthy) => DeviceHealth::Unhealthy,
        Ok(HealthStatus::Unknown) | Err(_) => DeviceHealth::Unknown,
    };
    Some(DeviceReport {
        pool: id.pool_name,
        device: id.device_name,
        health,
        timeout_seconds: device.health_check_timeout_seconds,
        message: device.message,
    })
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hyper_util::rt::TokioIo;
    use tokio::io::DuplexStream;
    use tokio::time::timeout;
    use tonic::transport::{Endpoint, Uri};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::super::registry::{ApiVersion, Services};
    use super::*;

    /// Counts the ends of streams.
    #[derive(Default)]
    struct FakeSink(AtomicUsize);

    impl DeviceHealthSink for FakeSink {
        fn reported(&self, _: &DriverName, _: Vec<DeviceReport>) {}

        fn ended(&self, _: &DriverName) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Another instance still reports during a rolling update, and a stop says nothing about devices.
    #[test]
    fn last_stream_of_a_driver_clears_its_health_unless_the_agent_stops() {
        let (sink, stop, driver) = (Arc::<FakeSink>::default(), CancellationToken::new(), DriverName::from("gpu"));
        let monitor = HealthMonitor::new(sink.clone(), stop.clone());
        let ends = || sink.0.load(Ordering::Relaxed);
        let (first, second) = (monitor.open(&driver), monitor.open(&driver));
        drop(first);
        assert_eq!((ends(), monitor.streams(&driver)), (0, HealthStreams::Open));
        drop(second);
        assert_eq!((ends(), monitor.streams(&driver)), (1, HealthStreams::Closed(None)));
        let third = monitor.open(&driver);
        stop.cancel();
        drop(third);
        assert_eq!(ends(), 1);
    }

    /// Counts the lines that this module logs for the operator.
    #[derive(Clone, Default)]
    struct LoggedLines(Arc<AtomicUsize>);

    impl Subscriber for LoggedLines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() <= Level::INFO && module_path!().starts_with(metadata.target())
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    /// A driver that announces the service and fails each stream is tried every five seconds for as long as it runs.
    #[tokio::test(start_paused = true)]
    async fn streams_that_fail_in_the_same_way_are_logged_once() {
        let (log, tries) = (LoggedLines::default(), Arc::<AtomicUsize>::default());
        let _guard = tracing::subscriber::set_default(log.clone());
        let tried = tries.clone();
        let connector = tower::service_fn(move |_: Uri| {
            // The second half of the tries fails in another way.
            let error = if tried.fetch_add(1, Ordering::Relaxed) < 6 { "broken" } else { "still broken" };
            ready(Err::<TokioIo<DuplexStream>, _>(io::Error::other(error)))
        });
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        let services = Services { api: ApiVersion::V1, health: true, node_resources: false };
        let instance = Instance::connected_by("gpu".into(), services, channel);
        let monitor = HealthMonitor::new(Arc::<FakeSink>::default(), CancellationToken::new());
        let watched = timeout(PAUSE * 11 + PAUSE / 2, monitor.watch(&instance)).await;
        assert!(watched.is_err(), "the instance is not removed");
        assert_eq!((tries.load(Ordering::Relaxed), log.0.load(Ordering::Relaxed)), (12, 2));
    }

    /// DRA-H7: an unknown status is not an error.
    #[test]
    fn statuses_are_converted() {
        for (status, health) in [
            (0, DeviceHealth::Unknown),
            (1, DeviceHealth::Healthy),
            (2, DeviceHealth::Unhealthy),
            (99, DeviceHealth::Unknown),
        ] {
            let device = Some(health::DeviceIdentifier { pool_name: "n7".into(), device_name: "g0".into() });
            let device = health::DeviceHealth { device, health: status, ..Default::default() };
            assert_eq!(report(device).unwrap().health, health);
        }
        assert_eq!(report(health::DeviceHealth::default()), None);
    }
}
