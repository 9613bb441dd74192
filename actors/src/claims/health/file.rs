//! The form of the file of device health (upstream `healthinfo.go`, kubelet 1.36).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{DEFAULT_TIMEOUT, DeviceId, DeviceState, Devices};
use crate::ids::DriverName;
use crate::ports::DeviceHealth;
use crate::time::Time;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct StoredDriver {
    #[serde(default)]
    devices: BTreeMap<String, StoredDevice>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct StoredDevice {
    pool_name: String,
    device_name: String,
    health: String,
    last_updated: String,
    /// In nanoseconds.
    #[serde(default)]
    health_check_timeout: i64,
    #[serde(default)]
    message: String,
}

/// The file of device health is not valid.
#[derive(Debug, thiserror::Error)]
pub(in crate::claims) enum DamagedHealth {
    #[error("the content is not valid")]
    Form(#[from] serde_json::Error),
    #[error("device {0} has no valid time")]
    Time(String, #[source] jiff::Error),
}

/// Reads the content of the file.
pub(in crate::claims) fn read(content: &str) -> Result<Devices, DamagedHealth> {
    let stored: BTreeMap<String, StoredDriver> = serde_json::from_str(content)?;
    let mut all = Devices::new();
    for (driver, StoredDriver { devices }) in stored {
        let mut known = BTreeMap::new();
        for (key, device) in devices {
            let updated = device.last_updated.parse().map_err(|error| DamagedHealth::Time(key, error))?;
            let timeout = match u64::try_from(device.health_check_timeout) {
                Ok(0) | Err(_) => DEFAULT_TIMEOUT,
                Ok(nanoseconds) => Duration::from_nanos(nanoseconds),
            };
            let health = match &*device.health {
                "Healthy" => DeviceHealth::Healthy,
                "Unhealthy" => DeviceHealth::Unhealthy,
                _ => DeviceHealth::Unknown,
            };
            let updated = Time::from_timestamp(updated);
            let id = DeviceId { pool: device.pool_name, device: device.device_name };
            known.insert(id, DeviceState { health, message: device.message, timeout, updated });
        }
        all.insert(DriverName::from(&*driver), Arc::new(known));
    }
    Ok(all)
}

/// The content of the file.
pub(in crate::claims) fn write(devices: &Devices) -> String {
    let stored = |(id, state): (&DeviceId, &DeviceState)| {
        let device = StoredDevice {
            pool_name: id.pool.clone(),
            device_name: id.device.clone(),
            health: state.health.as_str().to_owned(),
            last_updated: state.updated.to_timestamp().to_string(),
            health_check_timeout: i64::try_from(state.timeout.as_nanos()).unwrap_or(i64::MAX),
            message: state.message.clone(),
        };
        (format!("{}/{}", id.pool, id.device), device)
    };
    let drivers: BTreeMap<&str, StoredDriver> = devices
        .iter()
        .map(|(driver, devices)| (driver.as_str(), StoredDriver { devices: devices.iter().map(stored).collect() }))
        .collect();
    serde_json::to_string(&drivers).expect("maps with text keys can be written")
}
