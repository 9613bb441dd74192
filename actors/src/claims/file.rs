//! The record of a claim in the file, with the keys of the kubelet's checkpoint (upstream `ClaimInfoState`, kubelet 1.36).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::record::{ClaimRecord, DriverRecord, ReleaseDuty};
use crate::ids::{ClaimName, PodUid};
use crate::ports::PreparedDevice;

/// A claim in the file. Unknown keys are ignored, and missing ones are empty.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ClaimInfoState {
    #[serde(rename = "ClaimUID")]
    claim_uid: String,
    claim_name: String,
    namespace: String,
    #[serde(rename = "PodUIDs")]
    pod_uids: BTreeMap<String, Empty>,
    driver_state: BTreeMap<String, DriverState>,
    /// A record with this key takes the claim out of the file.
    #[serde(skip_serializing_if = "is_false")]
    removed: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Empty {}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct DriverState {
    devices: Option<Vec<DeviceState>>,
    /// Not a key of the kubelet.
    #[serde(skip_serializing_if = "is_false")]
    given_up: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct DeviceState {
    pool_name: String,
    device_name: String,
    #[serde(rename = "ShareID")]
    share_id: Option<String>,
    request_names: Option<Vec<String>>,
    #[serde(rename = "CDIDeviceIDs")]
    cdi_device_ids: Option<Vec<String>>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A record of the file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("a record of the file of claims is not valid")]
pub(super) struct InvalidRecord(#[from] serde_json::Error);

/// A record as one line of JSON; `None` takes the claim out of the file.
pub(super) fn write(name: &ClaimName, record: Option<&ClaimRecord>) -> String {
    let driver = |driver: &DriverRecord| DriverState {
        devices: Some(driver.devices.iter().map(device).collect()),
        given_up: driver.duty == ReleaseDuty::GivenUp,
    };
    let state = ClaimInfoState {
        claim_uid: record.map(|record| record.uid.to_string()).unwrap_or_default(),
        claim_name: name.name().to_owned(),
        namespace: name.namespace().to_owned(),
        pod_uids: record.iter().flat_map(|record| &record.pods).map(|pod| (pod.to_string(), Empty {})).collect(),
        driver_state: record
            .iter()
            .flat_map(|record| &record.drivers)
            .map(|(name, state)| (name.to_string(), driver(state)))
            .collect(),
        removed: record.is_none(),
    };
    serde_json::to_string(&state).expect("a record has only text keys")
}

fn device(device: &PreparedDevice) -> DeviceState {
    DeviceState {
        pool_name: device.pool.clone(),
        device_name: device.device.clone(),
        share_id: device.share_id.clone(),
        request_names: Some(device.requests.clone()),
        cdi_device_ids: Some(device.cdi_devices.clone()),
    }
}

/// The claims of all records; a later record of a claim replaces an earlier one. Drivers may have prepared each of them.
///
/// # Errors
/// [`InvalidRecord`] if a record is no JSON object of the expected form.
pub(super) fn read(records: &[String]) -> Result<BTreeMap<ClaimName, ClaimRecord>, InvalidRecord> {
    let mut claims = BTreeMap::new();
    for text in records {
        let state: ClaimInfoState = serde_json::from_str(text)?;
        let name = ClaimName::new(&state.namespace, &state.claim_name);
        if state.removed {
            claims.remove(&name);
            continue;
        }
        let mut record = ClaimRecord::new(state.claim_uid.into());
        record.pods = state.pod_uids.keys().map(|uid| PodUid::new(uid)).collect();
        record.drivers =
            state.driver_state.into_iter().map(|(driver, state)| (driver.into(), restored(state))).collect();
        claims.insert(name, record);
    }
    Ok(claims)
}

fn restored(state: DriverState) -> DriverRecord {
    let device = |device: DeviceState| PreparedDevice {
        pool: device.pool_name,
        device: device.device_name,
        share_id: device.share_id,
        requests: device.request_names.unwrap_or_default(),
        cdi_devices: device.cdi_device_ids.unwrap_or_default(),
    };
    DriverRecord {
        devices: state.devices.unwrap_or_default().into_iter().map(device).collect(),
        // Whether the driver was called before the restart is not known.
        duty: if state.given_up { ReleaseDuty::GivenUp } else { ReleaseDuty::Unprepare },
    }
}
