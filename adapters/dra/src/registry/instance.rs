//! One instance of a driver, and the connection to it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_model::ids::DriverName;
use podwright_model::text::error_text;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tracing::{debug, info, warn};

use super::state::Services;
use crate::transport::{ConnectError, Connection};

/// The delay after the first failed attempt to connect, the factor with each further failure, and the fraction by which a delay
/// varies (`google.golang.org/grpc/backoff`, `DefaultConfig`).
const FIRST_DELAY: Duration = Duration::from_secs(1);
const FACTOR: f64 = 1.6;
const JITTER: f64 = 0.2;
/// The longest delay. With the 120 s of gRPC, a pod could wait that long for a driver that is already back.
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// The time limit of an attempt. The socket is on this machine.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// A connection that ends earlier is a failed attempt, so that the agent does not connect in a loop to a driver that closes each
/// connection at once.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// An instance of a driver: a process that registered one endpoint.
///
/// It has one connection, which is opened at its registration and again when it ends, until the instance is removed.
pub struct Instance {
    driver: DriverName,
    endpoint: PathBuf,
    services: Services,
    link: watch::Sender<Link>,
    /// Notified by callers that need a connection now.
    needed: Notify,
    removed: CancellationToken,
}

/// The connection of an instance.
#[derive(Clone, Debug, Default)]
struct Link {
    /// `None` while there is no connection.
    channel: Option<Channel>,
    /// The number of attempts to connect that have ended.
    attempts: u64,
    /// Why the last attempt failed.
    error: Option<String>,
}

/// The channel of an instance for a call.
#[derive(Debug)]
pub(crate) enum CurrentChannel {
    /// The instance is connected.
    Connected(Channel),
    /// The instance cannot be reached, for this reason.
    Unreachable(String),
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Instance({} at {})", self.driver, self.endpoint.display())
    }
}

impl Instance {
    /// An instance without a connection. The token is cancelled when the instance is removed.
    pub(super) fn new(driver: DriverName, endpoint: PathBuf, services: Services, removed: CancellationToken) -> Self {
        Instance { driver, endpoint, services, link: watch::Sender::default(), needed: Notify::new(), removed }
    }

    /// The name of the driver.
    pub fn driver(&self) -> &DriverName {
        &self.driver
    }

    /// The path of the socket that serves the driver.
    pub fn endpoint(&self) -> &Path {
        &self.endpoint
    }

    /// The services that the driver announced.
    pub fn services(&self) -> Services {
        self.services
    }

    /// Waits until the instance is connected, and returns a channel on that connection. `None` if the instance is removed first.
    /// Calls and streams on the channel fail when the connection ends. Cancel safe.
    pub async fn connected(&self) -> Option<Channel> {
        let mut link = self.link.subscribe();
        let connected = async {
            let link = link.wait_for(|link| link.channel.is_some()).await.ok()?;
            link.channel.clone()
        };
        self.removed.run_until_cancelled(connected).await.flatten()
    }

    /// Waits until the instance is removed, because its socket is gone or the node stops. Cancel safe.
    pub async fn removed(&self) {
        self.removed.cancelled().await;
    }

    /// A channel for a call now. Without a connection, waits for an attempt that begins at once, and returns its result.
    pub(crate) async fn current(&self) -> CurrentChannel {
        let mut link = self.link.subscribe();
        let attempts = {
            let link = link.borrow_and_update();
            if let Some(channel) = &link.channel {
                return CurrentChannel::Connected(channel.clone());
            }
            link.attempts
        };
        self.needed.notify_one();
        let tried = link.wait_for(|link| link.channel.is_some() || link.attempts > attempts);
        match self.removed.run_until_cancelled(tried).await {
            Some(Ok(link)) => match &link.channel {
                Some(channel) => CurrentChannel::Connected(channel.clone()),
                None => CurrentChannel::Unreachable(link.error.clone().unwrap_or_default()),
            },
            Some(Err(_)) | None => CurrentChannel::Unreachable("the driver has deregistered".to_owned()),
        }
    }

    /// Removes the instance: the connection closes, and all calls and streams on it fail.
    pub(super) fn remove(&self) {
        self.removed.cancel();
    }

    /// Keeps one connection until the instance is removed. `report` is called with each change.
    pub(super) async fn keep_connected(&self, report: impl Fn(bool)) {
        let work = self.reconnect(&report);
        self.removed.run_until_cancelled(work).await;
        self.link.send_modify(|link| link.channel = None);
        report(false);
    }

    async fn reconnect(&self, report: &impl Fn(bool)) {
        let mut failures = 0;
        // Connections that accept no further calls, but whose running calls and streams go on.
        let mut leaving: Vec<Connection> = Vec::new();
        loop {
            leaving.retain(|connection| !connection.is_closed());
            match self.connect().await {
                Ok(connection) => {
                    info!("connected to the driver");
                    let start = Instant::now();
                    self.attempted(Some(connection.channel()), None);
                    report(true);
                    connection.ended().await;
                    self.link.send_modify(|link| link.channel = None);
                    report(false);
                    info!("the connection to the driver ended");
                    leaving.push(connection);
                    if start.elapsed() >= STABLE_AFTER {
                        failures = 0;
                    }
                    self.pause(failures).await;
                    failures += 1;
                }
                Err(error) => {
                    if self.link.borrow().error.as_ref() == Some(&error) {
                        debug!(error, "cannot connect to the driver");
                    } else {
                        warn!(error, "cannot connect to the driver, trying again");
                    }
                    self.attempted(None, Some(error));
                    failures += 1;
                    self.pause(failures).await;
                }
            }
        }
    }

    async fn connect(&self) -> Result<Connection, String> {
        match timeout(CONNECT_LIMIT, Connection::open(&self.endpoint)).await {
            Ok(connection) => connection.map_err(|error: ConnectError| error_text(&error)),
            Err(_) => Err(format!("cannot connect to {} within {CONNECT_LIMIT:?}", self.endpoint.display())),
        }
    }

    fn attempted(&self, channel: Option<Channel>, error: Option<String>) {
        self.link.send_modify(|link| {
            link.attempts += 1;
            link.channel = channel;
            link.error = error;
        });
    }

    /// Waits before the next attempt, or until a caller needs a connection.
    async fn pause(&self, failures: u32) {
        let delay = delay_after(failures, fastrand::f64());
        tokio::select! {
            () = sleep(delay) => {}
            () = self.needed.notified() => {}
        }
    }
}

#[cfg(test)]
impl Instance {
    /// An instance that is connected by this channel.
    pub(crate) fn connected_by(driver: DriverName, services: Services, channel: Channel) -> Self {
        let instance = Instance::new(driver, PathBuf::new(), services, CancellationToken::new());
        instance.attempted(Some(channel), None);
        instance
    }
}

/// The delay after this many failures in a row. `draw` is a random number from 0 to 1.
fn delay_after(failures: u32, draw: f64) -> Duration {
    let Some(further) = failures.checked_sub(1) else { return Duration::ZERO };
    let exponent = i32::try_from(further.min(100)).unwrap_or(100);
    let delay = (FIRST_DELAY.as_secs_f64() * FACTOR.powi(exponent)).min(LONGEST_DELAY.as_secs_f64());
    Duration::from_secs_f64(delay * (1.0 + JITTER * (2.0 * draw - 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_their_limit_with_jitter() {
        let expected = [0.0, 1.0, 1.6, 2.56, 4.096, 6.5536, 10.0, 10.0];
        for (failures, seconds) in (0..).zip(expected) {
            for (draw, share) in [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2)] {
                let delay = delay_after(failures, draw).as_secs_f64();
                assert!((delay - seconds * share).abs() < 1e-6, "{failures} {draw}: {delay}");
            }
        }
        assert_eq!(delay_after(u32::MAX, 0.5), LONGEST_DELAY);
    }
}
