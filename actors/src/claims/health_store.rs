//! The health of devices with its file, and the pods whose statuses it changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::health::{self, ChangedDevices, DeviceId, HealthTable, MAX_DEVICES, Reported};
use super::table::ClaimTable;
use crate::ids::{DriverName, PodUid};
use crate::ports::{Checkpoint, CheckpointWriter, Clock, DeviceReport};
use crate::text::error_chain;
use crate::time::Time;

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
    /// The pods that hold devices whose health has changed, or whose driver is back, until they are taken.
    changed: Mutex<BTreeSet<PodUid>>,
    has_changed: Notify,
    /// Notified if the time of the next expiry or the content of the file may have changed.
    wake: Notify,
}

impl HealthStore {
    /// Takes over what an earlier agent recorded. `None` if the file cannot be used.
    pub(super) fn open(&self, file: &dyn Checkpoint) -> Option<Box<dyn CheckpointWriter>> {
        let opened = file.open().inspect_err(|error| {
            tracing::warn!(error = %error_chain(error), "cannot open the file of device health: it is not kept");
        });
        let opened = opened.ok()?;
        match opened.records.first().map(|content| health::read(content)) {
            None => {}
            Some(Ok(devices)) => *self.health.lock() = HealthTable::restore(devices),
            Some(Err(error)) => {
                tracing::warn!(error = %error_chain(&error), "the file of device health is damaged: no health is known");
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
        if changed.is_empty() {
            return;
        }
        self.refresh(pods_with(&table.lock(), changed));
    }

    /// Requests a sync of pods.
    pub(super) fn refresh(&self, pods: impl IntoIterator<Item = PodUid>) {
        let mut changed = self.changed.lock();
        changed.extend(pods);
        if !changed.is_empty() {
            self.has_changed.notify_one();
        }
    }

    /// Waits until there are pods that have to be synced, and takes them. Cancel safe.
    pub(super) async fn changed_pods(&self) -> Vec<PodUid> {
        loop {
            let pods = std::mem::take(&mut *self.changed.lock());
            if !pods.is_empty() {
                return pods.into_iter().collect();
            }
            self.has_changed.notified().await;
        }
    }

    /// Lets reports expire, and writes the file after each change.
    pub(super) async fn run(
        &self,
        table: &Mutex<ClaimTable>,
        clock: &dyn Clock,
        writer: Option<Box<dyn CheckpointWriter>>,
    ) {
        let mut has_failed = false;
        loop {
            let now = clock.now();
            let expiry = self.health.lock().next_expiry().map(|at| at.since(now) + AFTER_EXPIRY);
            let retry = has_failed.then_some(SAVE_RETRY);
            let timer = async {
                match expiry.into_iter().chain(retry).min() {
                    Some(delay) => sleep(delay).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = timer => {}
            }
            let changed = self.health.lock().expire(clock.now());
            if !changed.is_empty() {
                self.publish(table, &changed);
            }
            let Some(writer) = &writer else { continue };
            let content = self.health.lock().take_unsaved().map(health::write);
            let Some(content) = content else { continue };
            let saved = writer.save(vec![Arc::from(content)]).await;
            has_failed = saved.is_err();
            if let Err(error) = saved {
                tracing::warn!(error = %error_chain(&error), "cannot write the file of device health");
                self.health.lock().not_saved();
            }
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
