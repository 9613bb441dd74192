//! The slices of systemd, over D-Bus (org.freedesktop.systemd1(5)). Everything here blocks, and must run on a thread for
//! blocking work of a tokio runtime.

use std::fmt;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use podwright_ports::CgroupError;
use tokio::runtime::Handle;
use zbus::{Connection, MatchRule, MessageStream, OwnedObjectPath, Variant, message};

use crate::config::limits::SliceProperty;

const SERVICE: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";

/// How long systemd may take to answer, or to start or stop a slice. The stop of a slice first stops the units in it, whose
/// processes have ended before.
const LIMIT: Duration = Duration::from_secs(30);

/// The slices of a machine. Every call is idempotent.
pub(super) trait Slices: fmt::Debug + Send + Sync {
    /// Connects to systemd.
    fn connect(&self) -> Result<(), SliceError>;

    /// Starts a slice with these properties. Changes the properties if the slice exists.
    fn start(&self, name: &str, properties: &[SliceProperty]) -> Result<(), SliceError>;

    /// Changes the properties of a slice.
    fn change(&self, name: &str, properties: &[SliceProperty]) -> Result<(), SliceError>;

    /// Stops a slice, with all units in it. A slice that does not exist is no error.
    fn stop(&self, name: &str) -> Result<(), SliceError>;
}

/// systemd cannot start, change or stop a slice.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum SliceError {
    /// The agent may not use systemd on this machine.
    #[error("systemd cannot be used over D-Bus")]
    Denied(#[source] zbus::Error),
    /// A call failed.
    #[error("systemd: {call} {slice}")]
    Call { call: &'static str, slice: String, source: zbus::Error },
    /// The connection failed.
    #[error("cannot connect to systemd over D-Bus: check whether dbus.service runs")]
    Connect(#[source] zbus::Error),
    /// systemd started the job, and it failed.
    #[error("systemd: {call} {slice} ended with the result {result}: see `journalctl --unit {slice}`")]
    Job { call: &'static str, slice: String, result: String },
    /// systemd did not answer in time.
    #[error("systemd: {call} {slice} did not end within {LIMIT:?}")]
    Late { call: &'static str, slice: String },
}

impl From<SliceError> for CgroupError {
    fn from(error: SliceError) -> Self {
        CgroupError::unknown(error)
    }
}

/// The slices of the systemd that runs this machine.
#[derive(Debug, Default)]
pub(super) struct Systemd {
    /// The connection. Replaced after an error of the connection.
    connection: Mutex<Option<Connection>>,
}

impl Slices for Systemd {
    fn connect(&self) -> Result<(), SliceError> {
        self.connection().map(drop)
    }

    fn start(&self, name: &str, properties: &[SliceProperty]) -> Result<(), SliceError> {
        // Units with default dependencies are stopped at shutdown before the runtime can stop their containers.
        let fixed = [
            ("Description", Variant::from(format!("Pods of podwright: {name}"))),
            ("DefaultDependencies", Variant::from(false)),
            ("CPUAccounting", Variant::from(true)),
            ("MemoryAccounting", Variant::from(true)),
            ("TasksAccounting", Variant::from(true)),
        ];
        let all: Vec<(&str, Variant<'_>)> = fixed.into_iter().chain(values(properties)).collect();
        let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = vec![];
        match self.job("StartTransientUnit", name, &(name, "replace", all, auxiliary)) {
            Err(SliceError::Call { source: zbus::Error::MethodError(error, ..), .. })
                if error.as_str() == "org.freedesktop.systemd1.UnitExists" =>
            {
                self.change(name, properties)
            }
            result => result,
        }
    }

    fn change(&self, name: &str, properties: &[SliceProperty]) -> Result<(), SliceError> {
        let connection = self.connection()?;
        // The change lasts as long as the slice.
        let body = (name, true, values(properties).collect::<Vec<_>>());
        let call =
            async { connection.call_method(Some(SERVICE), PATH, Some(MANAGER), "SetUnitProperties", &body).await };
        self.within("SetUnitProperties", name, call).map(drop)
    }

    fn stop(&self, name: &str) -> Result<(), SliceError> {
        match self.job("StopUnit", name, &(name, "replace")) {
            Err(SliceError::Call { source: zbus::Error::MethodError(error, ..), .. })
                if error.as_str() == "org.freedesktop.systemd1.NoSuchUnit" =>
            {
                Ok(())
            }
            result => result,
        }
    }
}

impl Systemd {
    /// Calls a method that starts a job, and waits until the job has ended.
    fn job<B>(&self, call: &'static str, name: &str, body: &B) -> Result<(), SliceError>
    where
        B: serde::Serialize + zbus::DynamicType + Sync,
    {
        let connection = self.connection()?;
        let result = self.within(call, name, async {
            let rule = MatchRule::builder()
                .msg_type(message::Type::Signal)
                .sender(SERVICE)
                .interface(MANAGER)
                .member("JobRemoved")
                .build()?;
            // Before the call, because the job may end before the answer arrives.
            let mut removed = MessageStream::for_match_rule(rule, &connection, None).await?;
            let answer = connection.call_method(Some(SERVICE), PATH, Some(MANAGER), call, body).await?;
            let job: OwnedObjectPath = answer.body().deserialize()?;
            while let Some(signal) = removed.next().await {
                let signal = signal?;
                let (_, ended, _, result): (u32, OwnedObjectPath, String, String) = signal.body().deserialize()?;
                if ended == job {
                    return Ok(result);
                }
            }
            Err(zbus::Error::from(io::Error::from(ErrorKind::ConnectionReset)))
        })?;
        match result.as_str() {
            "done" | "skipped" => Ok(()),
            _ => Err(SliceError::Job { call, slice: name.to_owned(), result }),
        }
    }

    /// The connection to the system bus, on which systemd sends its signals.
    fn connection(&self) -> Result<Connection, SliceError> {
        let mut kept = self.connection.lock();
        if let Some(connection) = &*kept {
            return Ok(connection.clone());
        }
        let connect = async {
            let connection = Connection::system().await?;
            connection.call_method(Some(SERVICE), PATH, Some(MANAGER), "Subscribe", &()).await?;
            Ok::<_, zbus::Error>(connection)
        };
        let connected = Handle::current().block_on(async { tokio::time::timeout(LIMIT, connect).await });
        let timed_out = |_| zbus::Error::from(io::Error::from(ErrorKind::TimedOut));
        let connection = connected.map_err(timed_out).flatten().map_err(|error| match is_denied(&error) {
            true => SliceError::Denied(error),
            false => SliceError::Connect(error),
        })?;
        Ok(kept.insert(connection).clone())
    }

    /// Runs a call within [`LIMIT`]. After an error of the connection the next call connects again.
    fn within<T>(
        &self,
        call: &'static str,
        name: &str,
        work: impl Future<Output = zbus::Result<T>>,
    ) -> Result<T, SliceError> {
        let slice = || name.to_owned();
        let done = Handle::current().block_on(async { tokio::time::timeout(LIMIT, work).await });
        match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) if is_denied(&error) => Err(SliceError::Denied(error)),
            Ok(Err(source)) => {
                if matches!(source, zbus::Error::InputOutput(_)) {
                    self.connection.lock().take();
                }
                Err(SliceError::Call { call, slice: slice(), source })
            }
            Err(_) => {
                self.connection.lock().take();
                Err(SliceError::Late { call, slice: slice() })
            }
        }
    }
}

fn values(properties: &[SliceProperty]) -> impl Iterator<Item = (&'static str, Variant<'static>)> {
    properties.iter().map(|property| (property.name, Variant::from(property.value)))
}

/// Whether another attempt cannot succeed: the machine has no system bus or no systemd, or the agent may not use it.
fn is_denied(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::InputOutput(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied),
        zbus::Error::MethodError(name, ..) => matches!(
            name.as_str(),
            "org.freedesktop.DBus.Error.AccessDenied"
                | "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"
                | "org.freedesktop.DBus.Error.ServiceUnknown"
        ),
        _ => false,
    }
}
