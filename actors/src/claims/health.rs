//! The health of devices, as their drivers report it. Pure: time comes with each call.
//!
//! A driver sends all its devices in each message. A device that a message lacks keeps its health until its timeout has passed, and then
//! its health is unknown. The health changes nothing but the statuses of pods.
//!
//! A driver can name other devices in each message, so the table limits its size. It forgets a device some time after the health of the
//! device has become unknown: the statuses of pods stay the same. It keeps a limited number of devices of each driver.

mod file;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::ids::DriverName;
use crate::ports::{DeviceHealth, DeviceReport};
use crate::time::Time;

pub(super) use file::{read, write};

/// How long a report is valid if the driver gives no timeout (upstream `DefaultHealthTimeout`, kubelet 1.36).
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest timeout. The file stores nanoseconds in 64 bits.
const MAX_TIMEOUT: Duration = Duration::from_secs(9_000_000_000);
/// How long a device is kept after its timeout has passed.
const FORGET_AFTER: Duration = Duration::from_secs(10 * 60);
/// The most devices of a driver. The largest machines have some hundreds.
pub(super) const MAX_DEVICES: usize = 10_000;
/// The longest names of a pool and of a device, in bytes (API `PoolNameMaxLength` and `DNS1123LabelMaxLength`, Kubernetes 1.36).
const MAX_POOL: usize = 253;
const MAX_DEVICE: usize = 63;
/// The longest message, in bytes. A longer one is cut, and ends with [`CUT`].
const MAX_MESSAGE: usize = 1024;
/// The end of a message that was cut.
const CUT: &str = "...";

/// A device of a driver: its pool and its name. All shares of a device have one health.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DeviceId {
    pub(super) pool: String,
    pub(super) device: String,
}

/// The last report on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceState {
    pub(super) health: DeviceHealth,
    pub(super) message: String,
    pub(super) timeout: Duration,
    /// When the report arrived. The driver's own time is not used, because its clock may be wrong.
    pub(super) updated: Time,
}

/// The devices of each driver that has reported. A copy shares the devices of a driver until they change.
pub(super) type Devices = BTreeMap<DriverName, Arc<BTreeMap<DeviceId, DeviceState>>>;

/// Devices of a driver whose health has changed.
pub(super) type ChangedDevices = BTreeMap<DriverName, BTreeSet<DeviceId>>;

/// What a message has changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Reported {
    /// The devices whose health has changed.
    pub(super) changed: ChangedDevices,
    /// The number of devices that exceed the limit of the driver, or have no valid name.
    pub(super) dropped: usize,
}

/// The health of all devices.
#[derive(Debug, Default)]
pub(super) struct HealthTable {
    devices: Devices,
    /// The number of changes that the file must have.
    changes: u64,
    /// The number of those that it has.
    saved: u64,
}

impl DeviceState {
    fn of(report: DeviceReport, now: Time) -> Self {
        let timeout = match u64::try_from(report.timeout_seconds) {
            Ok(0) | Err(_) => DEFAULT_TIMEOUT,
            Ok(seconds) => Duration::from_secs(seconds).min(MAX_TIMEOUT),
        };
        DeviceState { health: report.health, message: cut(report.message), timeout, updated: now }
    }

    fn is_same(&self, other: &DeviceState) -> bool {
        self.health == other.health && self.message == other.message && self.timeout == other.timeout
    }

    /// Whether the report adds anything to a status.
    fn is_informative(&self) -> bool {
        self.health != DeviceHealth::Unknown || !self.message.is_empty()
    }

    fn is_outdated(&self, now: Time) -> bool {
        now.since(self.updated) > self.timeout
    }

    /// Whether the device can be forgotten: its health has been unknown for a while.
    fn is_obsolete(&self, now: Time) -> bool {
        now > self.obsolete_at()
    }

    fn obsolete_at(&self) -> Time {
        self.updated + self.timeout + FORGET_AFTER
    }

    /// The time after which the report changes by itself.
    fn due(&self) -> Time {
        if self.is_informative() { self.updated + self.timeout } else { self.obsolete_at() }
    }

    fn forget(&mut self) {
        self.health = DeviceHealth::Unknown;
        self.message.clear();
    }
}

/// Cuts a message to the longest length, on a character boundary.
fn cut(mut message: String) -> String {
    if message.len() > MAX_MESSAGE {
        message.truncate(message.floor_char_boundary(MAX_MESSAGE - CUT.len()));
        message.push_str(CUT);
    }
    message
}

impl HealthTable {
    /// A table of what an earlier agent recorded. If the clock was set back since then, a report counts from now on. It would
    /// otherwise be valid until the clock has caught up.
    pub(super) fn restore(mut devices: Devices, now: Time) -> Self {
        for device in devices.values_mut().flat_map(|devices| Arc::make_mut(devices).values_mut()) {
            device.updated = device.updated.min(now);
        }
        HealthTable { devices, ..HealthTable::default() }
    }

    /// A driver has sent a message. A message with too many devices replaces those of earlier messages, the oldest ones first.
    pub(super) fn report(&mut self, driver: &DriverName, reports: Vec<DeviceReport>, now: Time) -> Reported {
        let devices = Arc::make_mut(self.devices.entry(driver.clone()).or_default());
        let (mut changed, mut reported, mut dropped) = (BTreeSet::new(), BTreeSet::new(), 0);
        for report in reports {
            let id = DeviceId { pool: report.pool.clone(), device: report.device.clone() };
            let is_named = report.pool.len() <= MAX_POOL && report.device.len() <= MAX_DEVICE;
            if !is_named || (reported.len() == MAX_DEVICES && !reported.contains(&id)) {
                dropped += 1;
                continue;
            }
            let state = DeviceState::of(report, now);
            let before = devices.insert(id.clone(), state.clone());
            if before.is_none_or(|before| !before.is_same(&state)) {
                changed.insert(id.clone());
            }
            reported.insert(id);
        }
        if let Some(excess @ 1..) = devices.len().checked_sub(MAX_DEVICES) {
            dropped += excess;
            let earlier = devices.iter().filter(|(id, _)| !reported.contains(*id));
            let mut earlier: Vec<_> = earlier.map(|(id, state)| (state.updated, id.clone())).collect();
            earlier.sort();
            for (_, id) in earlier.into_iter().take(excess) {
                if devices.remove(&id).is_some_and(|state| state.is_informative()) {
                    changed.insert(id);
                }
            }
        }
        self.changes += u64::from(!changed.is_empty());
        let mut all = self.expire(now);
        if !changed.is_empty() {
            all.entry(driver.clone()).or_default().extend(changed);
        }
        Reported { changed: all, dropped }
    }

    /// No stream of the driver exists any more. Returns the devices whose health has changed.
    pub(super) fn clear(&mut self, driver: &DriverName) -> ChangedDevices {
        let Some(devices) = self.devices.remove(driver) else { return ChangedDevices::new() };
        self.changes += 1;
        let informative = devices.iter().filter(|(_, state)| state.is_informative());
        let changed: BTreeSet<_> = informative.map(|(id, _)| id.clone()).collect();
        if changed.is_empty() { ChangedDevices::new() } else { ChangedDevices::from([(driver.clone(), changed)]) }
    }

    /// Makes the health of devices unknown whose timeout has passed, and forgets those for which this was long ago. Returns the devices
    /// whose health has changed, each once.
    pub(super) fn expire(&mut self, now: Time) -> ChangedDevices {
        let mut all = ChangedDevices::new();
        for (driver, devices) in &mut self.devices {
            if !devices.values().any(|state| state.due() < now) {
                continue;
            }
            self.changes += 1;
            let devices = Arc::make_mut(devices);
            for (id, state) in devices.iter_mut() {
                if state.is_informative() && state.is_outdated(now) {
                    state.forget();
                    all.entry(driver.clone()).or_default().insert(id.clone());
                }
            }
            devices.retain(|_, state| !state.is_obsolete(now));
        }
        all
    }

    /// The time after which [`expire`](HealthTable::expire) has something to do.
    pub(super) fn next_expiry(&self) -> Option<Time> {
        self.devices.values().flat_map(|devices| devices.values()).map(DeviceState::due).min()
    }

    /// The health of a device at `now`, and the driver's message.
    pub(super) fn of(&self, driver: &DriverName, device: &DeviceId, now: Time) -> (DeviceHealth, &str) {
        let state = self.devices.get(driver).and_then(|devices| devices.get(device));
        match state.filter(|state| !state.is_outdated(now)) {
            Some(state) => (state.health, &state.message),
            None => (DeviceHealth::Unknown, ""),
        }
    }

    /// What the file must contain, if it lacks a change, with the number of changes that this includes.
    pub(super) fn unsaved(&self) -> Option<(u64, Devices)> {
        (self.saved < self.changes).then(|| (self.changes, self.devices.clone()))
    }

    /// The file has this number of changes.
    pub(super) fn saved(&mut self, changes: u64) {
        self.saved = changes;
    }
}
