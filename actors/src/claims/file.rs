//! The record of a claim in the file, with the keys of the kubelet's checkpoint (upstream `ClaimInfoState`, kubelet 1.36).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::record::{AllocatedDevice, ClaimRecord, DriverRecord, ReleaseDuty};
use crate::ids::{ClaimName, PodUid};
use crate::ports::PreparedDevice;

/// A claim in the file. Unknown keys are ignored. A missing value, or `null`, reads as the empty value: a kubelet writes an empty
/// map or list as `null`, and accepts `null` for every value.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ClaimInfoState {
    #[serde(rename = "ClaimUID", deserialize_with = "or_empty")]
    claim_uid: String,
    #[serde(deserialize_with = "or_empty")]
    claim_name: String,
    #[serde(deserialize_with = "or_empty")]
    namespace: String,
    #[serde(rename = "PodUIDs", deserialize_with = "or_empty")]
    pod_uids: BTreeMap<String, Option<Empty>>,
    #[serde(deserialize_with = "or_empty")]
    driver_state: BTreeMap<String, Option<DriverState>>,
    /// The results of the allocation for which drivers were called last. Not a key of the kubelet.
    #[serde(skip_serializing_if = "Option::is_none")]
    results: Option<Vec<Option<ResultState>>>,
    /// A record with this key removes the claim from the file.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "or_empty")]
    removed: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Empty {}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct DriverState {
    devices: Option<Vec<Option<DeviceState>>>,
    /// Not a key of the kubelet.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "or_empty")]
    given_up: bool,
    /// Whether nothing was sent to the driver. Not a key of the kubelet.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "or_empty")]
    not_sent: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ResultState {
    #[serde(deserialize_with = "or_empty")]
    driver_name: String,
    #[serde(deserialize_with = "or_empty")]
    pool_name: String,
    #[serde(deserialize_with = "or_empty")]
    device_name: String,
    #[serde(rename = "ShareID", skip_serializing_if = "Option::is_none")]
    share_id: Option<String>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct DeviceState {
    #[serde(deserialize_with = "or_empty")]
    pool_name: String,
    #[serde(deserialize_with = "or_empty")]
    device_name: String,
    #[serde(rename = "ShareID")]
    share_id: Option<String>,
    request_names: Option<Vec<Option<String>>>,
    #[serde(rename = "CDIDeviceIDs")]
    cdi_device_ids: Option<Vec<Option<String>>>,
}

/// Reads `null` as the empty value.
fn or_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A record of the file cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("a record of the file of claims is not valid")]
pub(super) struct InvalidRecord(#[from] serde_json::Error);

/// A record as one line of JSON. `None` writes a record that removes the claim from the file.
pub(super) fn write(name: &ClaimName, record: Option<&ClaimRecord>) -> String {
    let driver = |driver: &DriverRecord| DriverState {
        devices: Some(driver.devices.iter().map(|found| Some(device(found))).collect()),
        given_up: driver.duty == ReleaseDuty::GivenUp,
        not_sent: driver.duty == ReleaseDuty::NotSent,
    };
    let result = |result: &AllocatedDevice| {
        Some(ResultState {
            driver_name: result.driver.to_string(),
            pool_name: result.pool.clone(),
            device_name: result.device.clone(),
            share_id: result.share_id.clone(),
        })
    };
    let results = record.and_then(|record| record.results.as_ref());
    let state = ClaimInfoState {
        claim_uid: record.map(|record| record.uid.to_string()).unwrap_or_default(),
        claim_name: name.name().to_owned(),
        namespace: name.namespace().to_owned(),
        pod_uids: record.iter().flat_map(|record| &record.pods).map(|pod| (pod.to_string(), Some(Empty {}))).collect(),
        driver_state: record
            .iter()
            .flat_map(|record| &record.drivers)
            .map(|(name, state)| (name.to_string(), Some(driver(state))))
            .collect(),
        results: results.map(|results| results.iter().map(result).collect()),
        removed: record.is_none(),
    };
    serde_json::to_string(&state).expect("a record has only text keys")
}

fn device(device: &PreparedDevice) -> DeviceState {
    DeviceState {
        pool_name: device.pool.clone(),
        device_name: device.device.clone(),
        share_id: device.share_id.clone(),
        request_names: Some(device.requests.iter().cloned().map(Some).collect()),
        cdi_device_ids: Some(device.cdi_devices.iter().cloned().map(Some).collect()),
    }
}

/// The claims of all records. A later record of a claim replaces an earlier one. Drivers may have prepared any of the claims.
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
        record.drivers = state
            .driver_state
            .into_iter()
            .map(|(driver, state)| (driver.into(), restored(state.unwrap_or_default())))
            .collect();
        let result = |result: ResultState| AllocatedDevice {
            driver: result.driver_name.into(),
            pool: result.pool_name,
            device: result.device_name,
            share_id: result.share_id,
        };
        record.results = state.results.map(|results| results.into_iter().flatten().map(result).collect());
        claims.insert(name, record);
    }
    Ok(claims)
}

fn restored(state: DriverState) -> DriverRecord {
    let texts = |list: Option<Vec<Option<String>>>| list.into_iter().flatten().map(Option::unwrap_or_default).collect();
    let device = |device: DeviceState| PreparedDevice {
        pool: device.pool_name,
        device: device.device_name,
        share_id: device.share_id,
        requests: texts(device.request_names),
        cdi_devices: texts(device.cdi_device_ids),
    };
    DriverRecord {
        devices: state.devices.into_iter().flatten().map(Option::unwrap_or_default).map(device).collect(),
        duty: match (state.given_up, state.not_sent) {
            (true, _) => ReleaseDuty::GivenUp,
            (false, true) => ReleaseDuty::NotSent,
            // The earlier agent may have called the driver after it had written the record.
            (false, false) => ReleaseDuty::Unprepare,
        },
    }
}
