//! The drivers of ResourceClaims on this node.

use std::collections::BTreeMap;
use std::error::Error;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{ClaimRef, ErrorSource, PreparedDevice};
use podwright_model::ids::{ClaimUid, DriverName};

/// The result of a call to a driver: the driver's answer for each claim that it mentions.
pub type DriverFuture<'a, T> = BoxFuture<'a, Result<BTreeMap<ClaimUid, Result<T, String>>, DriverError>>;

/// The DRA drivers that are registered with this node.
///
/// Each call ends after 45 s at the latest (upstream `PluginClientTimeout`, kubelet 1.36). If a future is dropped, the driver may
/// still perform the call.
pub trait ClaimDrivers: Send + Sync + 'static {
    /// Whether the driver has registered. A driver that has registered may be unreachable.
    fn is_registered(&self, driver: &DriverName) -> bool;

    /// Whether a call could be sent now: connects if no connection exists. Called before a pod refers to a claim, so that a pod
    /// whose driver is not running can be deleted without the driver. The default implementation returns `Ok`.
    ///
    /// # Errors
    /// [`DriverError::NotRegistered`] and [`DriverError::Unreachable`].
    fn reach<'a>(&'a self, driver: &'a DriverName) -> BoxFuture<'a, Result<(), DriverError>> {
        let _ = driver;
        std::future::ready(Ok(())).boxed()
    }

    /// Makes the devices of claims ready (`NodePrepareResources`). A driver prepares a claim again if it is called again.
    ///
    /// # Errors
    /// [`DriverError`] if the whole call failed. An error text per claim if the driver could not prepare that claim.
    fn prepare<'a>(&'a self, driver: &'a DriverName, claims: &'a [ClaimRef]) -> DriverFuture<'a, Vec<PreparedDevice>>;

    /// Gives the devices of claims back (`NodeUnprepareResources`). A driver accepts claims that it does not know.
    ///
    /// # Errors
    /// [`DriverError`] if the whole call failed. An error text per claim if the driver could not unprepare that claim.
    fn unprepare<'a>(&'a self, driver: &'a DriverName, claims: &'a [ClaimRef]) -> DriverFuture<'a, ()>;
}

/// A call to a driver failed for all of its claims.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DriverError {
    /// The driver has not registered, or has deregistered.
    #[error("DRA driver {0} is not registered")]
    NotRegistered(DriverName),
    /// The driver cannot be reached, and nothing was sent to it. The text of the source names the driver.
    #[error("the driver cannot be reached")]
    Unreachable(#[source] ErrorSource),
    /// The call failed or timed out. The driver may have performed it. The text of the source names the driver.
    #[error("the call failed")]
    Failed(#[source] ErrorSource),
}

impl DriverError {
    /// A driver that cannot be reached because of `source`.
    pub fn unreachable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        DriverError::Unreachable(source.into().into())
    }

    /// A failed call because of `source`.
    pub fn failed(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        DriverError::Failed(source.into().into())
    }
}

/// Takes what drivers report on the health of their devices. Its methods return at once.
pub trait DeviceHealthSink: Send + Sync + 'static {
    /// A driver has sent a message. A driver sends all its devices in each message.
    fn reported(&self, driver: &DriverName, devices: Vec<DeviceReport>);

    /// No stream of the driver exists any more. The health of its devices is unknown until it reports again.
    fn ended(&self, driver: &DriverName);
}

/// What a message of a driver says about the health of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceReport {
    /// The pool of the device.
    pub pool: String,
    /// The name of the device in its pool.
    pub device: String,
    /// The health.
    pub health: DeviceHealth,
    /// How long the report is valid, in seconds. If it is zero or negative, the report is valid for 30 s.
    pub timeout_seconds: i64,
    /// The driver's text for users; may be empty.
    pub message: String,
}

/// The health of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum DeviceHealth {
    /// The device works.
    Healthy,
    /// The device does not work.
    Unhealthy,
    /// The driver does not know the health, or has not reported it within the timeout.
    #[default]
    Unknown,
}

impl DeviceHealth {
    /// The name in the status of a pod.
    pub fn as_str(self) -> &'static str {
        match self {
            DeviceHealth::Healthy => "Healthy",
            DeviceHealth::Unhealthy => "Unhealthy",
            DeviceHealth::Unknown => "Unknown",
        }
    }
}
