//! The delay of a shutdown of the machine, by systemd-logind over D-Bus (org.freedesktop.login1(5)).
//!
//! ```text
//!   allow_delay() -> logind may delay a shutdown for as long as pods need
//!   shutdowns()   -> true when the machine begins to shut down, false when the shutdown was cancelled
//!   delay()       -> a lock: logind waits until it is released, at most for the allowed delay
//! ```
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use futures_util::StreamExt;
//! use podwright_logind::{Logind, LogindError};
//!
//! # async fn example() -> Result<(), LogindError> {
//! let logind = Logind::connect().await?;
//! logind.allow_delay(Duration::from_secs(30)).await?;
//! let mut shutdowns = logind.shutdowns().await?;
//! let lock = logind.delay().await?;
//! if shutdowns.next().await == Some(true) {
//!     // Pods stop here.
//!     drop(lock);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! - [`Logind`]: the connection, and what it allows, announces and locks.
//! - [`LogindError`]: why a shutdown cannot be delayed.
//!
//! # Arrows
//!
//! The crate uses `podwright-host`, to write the settings of logind. The agent uses the crate.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use podwright_host::record::{Durability, replace};
use zbus::{Connection, MatchRule, Message, MessageStream, OwnedFd, OwnedVariant, message};

const SERVICE: &str = "org.freedesktop.login1";
const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
/// The signal that a shutdown begins or was cancelled.
const SIGNAL: &str = "PrepareForShutdown";

/// The directory for settings of logind. The kubelet writes `99-kubelet.conf` in it.
const DROP_INS: &str = "/etc/systemd/logind.conf.d";
const DROP_IN: &str = "99-podwright.conf";

/// How long logind may take to answer, and to read its settings again.
const LIMIT: Duration = Duration::from_secs(5);
/// The pause between two checks whether logind has read its settings.
const POLL: Duration = Duration::from_millis(100);

/// A shutdown of the machine cannot be delayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogindError {
    /// There is no system bus.
    #[error("cannot connect to the system bus: check whether dbus.service runs")]
    Connect(#[source] zbus::Error),
    /// A call failed.
    #[error("systemd-logind: {call}")]
    Call {
        /// What was called.
        call: &'static str,
        /// Why it failed.
        source: zbus::Error,
    },
    /// The settings of logind cannot be written.
    #[error("cannot write {}: run the agent as root, or set InhibitDelayMaxSec={seconds} in logind.conf(5)", .path.display())]
    DropIn {
        /// The file.
        path: PathBuf,
        /// The necessary delay in seconds.
        seconds: u64,
        /// Why it cannot be written.
        source: io::Error,
    },
    /// logind keeps a shorter delay.
    #[error(
        "systemd-logind allows a delay of {allowed:?}, and pods need {needed:?}: remove settings of InhibitDelayMaxSec that come \
         after {DROP_IN}"
    )]
    TooShort {
        /// The delay that logind allows.
        allowed: Duration,
        /// The delay that pods need.
        needed: Duration,
    },
}

/// A connection to logind.
#[derive(Debug)]
pub struct Logind {
    connection: Connection,
    /// The directory for settings of logind.
    drop_ins: PathBuf,
}

/// Delays a shutdown of the machine until it is dropped.
#[derive(Debug)]
pub struct DelayLock {
    _inhibitor: OwnedFd,
}

impl Logind {
    /// Connects to the logind of this machine.
    ///
    /// # Errors
    /// [`LogindError::Connect`].
    pub async fn connect() -> Result<Self, LogindError> {
        let connection = within(Connection::system()).await.map_err(LogindError::Connect)?;
        Ok(Logind::over(connection, DROP_INS))
    }

    /// A logind that is reached over `connection` and reads its settings from `drop_ins`.
    pub fn over(connection: Connection, drop_ins: impl Into<PathBuf>) -> Self {
        Logind { connection, drop_ins: drop_ins.into() }
    }

    /// Makes logind allow a delay of at least `needed`. If it allows less, this writes `99-podwright.conf` and makes logind read
    /// its settings again (upstream `OverrideInhibitDelay`, kubelet 1.36).
    ///
    /// # Errors
    /// [`LogindError`] if logind allows less after that.
    pub async fn allow_delay(&self, needed: Duration) -> Result<(), LogindError> {
        if self.allowed_delay().await? >= needed {
            return Ok(());
        }
        let seconds = needed.as_secs() + u64::from(needed.subsec_nanos() > 0);
        let path = self.drop_ins.join(DROP_IN);
        write_drop_in(&path, seconds).map_err(|source| LogindError::DropIn { path, seconds, source })?;
        // SIGHUP makes logind read its settings.
        let body = ("systemd-logind.service", "all", 1_i32);
        let systemd = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager");
        self.call(systemd, "KillUnit", &body).await?;
        let end = tokio::time::Instant::now() + LIMIT;
        loop {
            let allowed = self.allowed_delay().await?;
            if allowed >= needed {
                return Ok(());
            }
            if tokio::time::Instant::now() >= end {
                return Err(LogindError::TooShort { allowed, needed });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Takes a lock that delays a shutdown of the machine.
    ///
    /// # Errors
    /// [`LogindError::Call`].
    pub async fn delay(&self) -> Result<DelayLock, LogindError> {
        const CALL: &str = "Inhibit";
        let body = ("shutdown", "podwright", "Pods need time to stop", "delay");
        let answer = self.call((SERVICE, PATH, MANAGER), CALL, &body).await?;
        let inhibitor = answer.body().deserialize().map_err(|source| LogindError::Call { call: CALL, source })?;
        Ok(DelayLock { _inhibitor: inhibitor })
    }

    /// A stream of `true` each time the machine begins to shut down, and `false` each time the shutdown was cancelled. Begins with
    /// `true` if a shutdown is under way. Ends with the connection.
    ///
    /// # Errors
    /// [`LogindError::Call`].
    pub async fn shutdowns(&self) -> Result<impl Stream<Item = bool> + Unpin + use<>, LogindError> {
        let failed = |source| LogindError::Call { call: SIGNAL, source };
        let subscribe = async {
            let rule = MatchRule::builder()
                .msg_type(message::Type::Signal)
                .sender(SERVICE)
                .path(PATH)
                .interface(MANAGER)
                .member(SIGNAL)
                .build()?;
            MessageStream::for_match_rule(rule, &self.connection, None).await
        };
        let signals = within(subscribe).await.map_err(failed)?;
        // Another program may send a signal of this name to this connection.
        let owner = self.owner().await?;
        let is_of_logind = move |signal: &Message| {
            owner.is_none() || signal.header().sender().map(|sender| sender.as_str()) == owner.as_deref()
        };
        let signals = signals.filter_map(move |signal| {
            let begins = signal.ok().filter(|signal| is_of_logind(signal));
            std::future::ready(begins.and_then(|signal| signal.body().deserialize::<bool>().ok()))
        });
        let is_under_way = self.property::<bool>("PreparingForShutdown").await.unwrap_or(false);
        Ok(futures_util::stream::iter(is_under_way.then_some(true)).chain(signals))
    }

    /// The address of logind on the bus. `None` on a connection without a bus.
    async fn owner(&self) -> Result<Option<String>, LogindError> {
        const CALL: &str = "GetNameOwner";
        if !self.connection.is_bus() {
            return Ok(None);
        }
        let bus = ("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus");
        let answer = self.call(bus, CALL, &SERVICE).await?;
        let owner = answer.body().deserialize().map_err(|source| LogindError::Call { call: CALL, source })?;
        Ok(Some(owner))
    }

    async fn allowed_delay(&self) -> Result<Duration, LogindError> {
        self.property("InhibitDelayMaxUSec").await.map(Duration::from_micros)
    }

    async fn property<T>(&self, name: &'static str) -> Result<T, LogindError>
    where
        T: TryFrom<OwnedVariant, Error = zbus::Error>,
    {
        let properties = (SERVICE, PATH, "org.freedesktop.DBus.Properties");
        let answer = self.call(properties, "Get", &(MANAGER, name)).await?;
        let value = answer.body().deserialize::<OwnedVariant>().and_then(T::try_from);
        value.map_err(|source| LogindError::Call { call: name, source })
    }

    /// Calls a method of a service, object and interface.
    async fn call<B>(&self, of: (&str, &str, &str), call: &'static str, body: &B) -> Result<Message, LogindError>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        let (service, path, interface) = of;
        let answer = self.connection.call_method(Some(service), path, Some(interface), call, body);
        within(answer).await.map_err(|source| LogindError::Call { call, source })
    }
}

async fn within<T>(work: impl Future<Output = zbus::Result<T>>) -> zbus::Result<T> {
    let late = |_| zbus::Error::from(io::Error::from(io::ErrorKind::TimedOut));
    tokio::time::timeout(LIMIT, work).await.map_err(late)?
}

/// Writes the settings. Readable for all, as the other settings of logind.
fn write_drop_in(path: &Path, seconds: u64) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let text =
        format!("# Written by podwright, so that pods have time to stop.\n[Login]\nInhibitDelayMaxSec={seconds}\n");
    replace(path, text.as_bytes(), Durability::Disk)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}
