//! The health of devices with its file, and the pods whose statuses it changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::health::{self, ChangedDevices, DeviceId, HealthTable, MAX_DEVICES, Reported};
use super::table::ClaimTable;
use crate::ids::{DriverName, PodUid};
use crate::ports::{Checkpoint, CheckpointWriter, Clock, DeviceReport};
use crate::text::error_chain;
use crate::time::Time;

/// The time between two writes of the file. A driver may report often, and the file has the devices of all drivers.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// The time between a failed write of the file and the next one.
const SAVE_RETRY: Duration = Duration::from_secs(5);
/// A report is valid until its age is greater than its timeout, so the timer fires a little later.
const AFTER_EXPIRY: Duration = Duration::from_millis(1);

/// The health of devices.
#[derive(Default)]
pub(super) struct HealthStore {
    health: Mutex<HealthTable>,
    /// The drivers whose last message had too many devices. Each is logged once.
    overfull: Mutex<BTreeSet<DriverName>>,
    /// The pods that hold devices whose health has changed, or whose operation may now succeed, until they are taken.
    to_refresh: Mutex<BTreeSet<PodUid>>,
    has_changed: Notify,
    /// Notified if the time of the next expiry may have changed.
    wake: Notify,
    /// Notified if the content of the file may have changed.
    save: Notify,
}

impl HealthStore {
    /// Takes over what an earlier agent recorded. `None` if the file cannot be used.
    pub(super) fn open(&self, file: &dyn Checkpoint, now: Time) -> Option<Box<dyn CheckpointWriter>> {
        let opened = file.open().inspect_err(|error| {
            tracing::warn!(
                error = %error_chain(error),
                "cannot open the file of device health: the agent will forget the health of devices at its next restart"
            );
        });
        let opened = opened.ok()?;
        match opened.records.first().map(|content| health::read(content)) {
            None => {}
            Some(Ok(devices)) => *self.health.lock() = HealthTable::restore(devices, now),
            Some(Err(error)) => {
                tracing::warn!(
                    error = %error_chain(&error),
                    "the file of device health is damaged: the health of a device is unknown until its driver reports it"
                );
            }
        }
        Some(opened.writer)
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&HealthTable) -> T) -> T {
        read(&self.health.lock())
    }

    pub(super) fn reported(
        &self,
        table: &Mutex<ClaimTable>,
        driver: &DriverName,
        devices: Vec<DeviceReport>,
        now: Time,
    ) {
        for device in devices.iter().filter(|device| device.timeout_seconds < 0) {
            let (pool, name, seconds) = (&device.pool, &device.device, device.timeout_seconds);
            tracing::warn!(%driver, pool, device = name, seconds, "the timeout of a device's health is negative: 30 s are used");
        }
        let Reported { changed, dropped } = self.health.lock().report(driver, devices, now);
        let mut overfull = self.overfull.lock();
        if dropped == 0 {
            overfull.remove(driver);
        } else if overfull.insert(driver.clone()) {
            tracing::warn!(
                %driver,
                dropped,
                "the driver reports the health of more than {MAX_DEVICES} devices, or of devices with longer names than the API allows: \
                 the health of some is not known"
            );
        }
        drop(overfull);
        self.publish(table, &changed);
    }

    pub(super) fn ended(&self, table: &Mutex<ClaimTable>, driver: &DriverName) {
        self.overfull.lock().remove(driver);
        let changed = self.health.lock().clear(driver);
        self.publish(table, &changed);
    }

    fn publish(&self, table: &Mutex<ClaimTable>, changed: &ChangedDevices) {
        self.wake.notify_one();
        self.changed(table, changed);
    }

    fn changed(&self, table: &Mutex<ClaimTable>, changed: &ChangedDevices) {
        self.save.notify_one();
        if changed.is_empty() {
            return;
        }
        self.refresh(pods_with(&table.lock(), changed));
    }

    /// Requests a sync of pods.
    pub(super) fn refresh(&self, pods: impl IntoIterator<Item = PodUid>) {
        let mut changed = self.to_refresh.lock();
        changed.extend(pods);
        if !changed.is_empty() {
            self.has_changed.notify_one();
        }
    }

    /// Waits until there are pods that have to be synced, and takes them. Cancel safe.
    pub(super) async fn changed_pods(&self) -> Vec<PodUid> {
        loop {
            let pods = std::mem::take(&mut *self.to_refresh.lock());
            if !pods.is_empty() {
                return pods.into_iter().collect();
            }
            self.has_changed.notified().await;
        }
    }

    /// Lets reports expire, and writes the file after changes. When `stop` fires, it writes the last change and ends.
    pub(super) async fn run(
        &self,
        table: &Mutex<ClaimTable>,
        clock: &dyn Clock,
        writer: Option<&dyn CheckpointWriter>,
        stop: &CancellationToken,
    ) {
        let save = async {
            if let Some(writer) = writer {
                self.save(writer, stop).await;
            }
        };
        join(stop.run_until_cancelled(self.expire(table, clock)), save).await;
    }

    async fn expire(&self, table: &Mutex<ClaimTable>, clock: &dyn Clock) {
        loop {
            let now = clock.now();
            let expiry = self.health.lock().next_expiry().map(|at| at.since(now) + AFTER_EXPIRY);
            let timer = async {
                match expiry {
                    Some(delay) => sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = timer => {}
            }
            let changed = self.health.lock().expire(clock.now());
            self.changed(table, &changed);
        }
    }

    /// Writes the newest state, one write at a time. All changes during a write and the interval after it lead to one write.
    async fn save(&self, writer: &dyn CheckpointWriter, stop: &CancellationToken) {
        loop {
            let is_last = stop.is_cancelled();
            let unsaved = self.health.lock().unsaved();
            let pause = match unsaved {
                Some((changes, devices)) => {
                    // Not under the lock: a driver may report 10,000 devices.
                    let content = health::write(&devices);
                    drop(devices);
                    match writer.save(vec![Arc::from(content)]).await {
                        Ok(()) => {
                            self.health.lock().saved(changes);
                            SAVE_INTERVAL
                        }
                        Err(error) => {
                            tracing::warn!(error = %error_chain(&error), "cannot write the file of device health");
                            SAVE_RETRY
                        }
                    }
                }
                None if is_last => return,
                None => {
                    stop.run_until_cancelled(self.save.notified()).await;
                    continue;
                }
            };
            if is_last {
                return;
            }
            stop.run_until_cancelled(sleep(pause)).await;
        }
    }
}

/// The pods that hold one of the devices.
fn pods_with(table: &ClaimTable, changed: &ChangedDevices) -> BTreeSet<PodUid> {
    let mut pods = BTreeSet::new();
    for record in table.records().values() {
        let is_changed = |(driver, devices): (&DriverName, &BTreeSet<DeviceId>)| {
            let prepared = record.drivers.get(driver).map(|driver| driver.devices.as_slice()).unwrap_or_default();
            prepared.iter().any(|prepared| {
                devices.contains(&DeviceId { pool: prepared.pool.clone(), device: prepared.device.clone() })
            })
        };
        if changed.iter().any(is_changed) {
            pods.extend(record.pods.iter().cloned());
        }
    }
    pods
}
