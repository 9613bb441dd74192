//! What the author of a driver implements.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, OpaqueDeviceConfiguration, ResourceClaim};
use podwright_model::ids::{ClaimName, ClaimUid, DriverName, base_request};
use podwright_ports::{ClaimRef, PreparedDevice};
use tokio::sync::watch;

use super::{DeviceMetadata, Failure};

/// Why a driver could not perform a call for all of its claims, or for one of them. The node shows the text, with its sources, in
/// an event of the pod.
pub type CallError = Box<dyn Error + Send + Sync>;

/// The result for each claim. The library reports a claim without an entry as failed.
pub type ClaimResults<T> = BTreeMap<ClaimUid, Result<T, CallError>>;

/// A DRA driver.
///
/// By default the methods [`prepare`](Driver::prepare) and [`unprepare`](Driver::unprepare) run one at a time. A call that the node
/// gives up after its time limit (45 s in the kubelet 1.36) still runs to its end, and the node calls again later. If a method
/// panics, that call fails, and the driver goes on.
pub trait Driver: Send + Sync + 'static {
    /// Makes the devices of claims ready for containers. The node prepares a claim again after its own restart, so return the
    /// same devices for a claim that is already prepared.
    ///
    /// Refuse a device that another claim holds, except if one of the two results has `adminAccess`, or their share ids differ.
    ///
    /// # Errors
    /// [`CallError`] if the call failed for all claims. Otherwise the returned map has a result for each claim.
    fn prepare(
        &self,
        claims: Vec<Claim>,
    ) -> impl Future<Output = Result<ClaimResults<Vec<PreparedDevice>>, CallError>> + Send;

    /// Gives the devices of claims back. The claims may already be deleted. Return success for a claim that the driver does not
    /// know.
    ///
    /// # Errors
    /// [`CallError`] if the call failed for all claims. Otherwise the returned map has a result for each claim.
    fn unprepare(&self, claims: Vec<ClaimRef>) -> impl Future<Output = Result<ClaimResults<()>, CallError>> + Send;

    /// What containers learn about a device that was just prepared for a claim, if the driver writes
    /// [metadata](super::DriverBuilder::device_metadata). The default is nothing but the names of the device.
    /// [`RunningDriver::update_metadata`](super::RunningDriver::update_metadata) changes it later.
    fn metadata(&self, claim: &Claim, device: &PreparedDevice) -> DeviceMetadata {
        let _ = (claim, device);
        DeviceMetadata::default()
    }

    /// Receives the failures of background work, which has no caller. A driver usually ends its program after a
    /// [fatal](Failure::is_fatal) failure, and logs the others.
    fn failed(&self, failure: Failure);

    /// The health of all devices, if the driver reports health. The node gets the newest list after each change. If a device is
    /// not reported again within its [timeout](DeviceHealth::timeout), its health becomes unknown to the node.
    fn health(&self) -> Option<watch::Receiver<Vec<DeviceHealth>>> {
        None
    }
}

/// A claim whose devices are to be prepared.
#[derive(Clone, Debug)]
pub struct Claim {
    reference: ClaimRef,
    driver: DriverName,
    object: Option<Arc<ResourceClaim>>,
}

impl Claim {
    pub(super) fn new(reference: ClaimRef, driver: DriverName, object: Option<Arc<ResourceClaim>>) -> Self {
        Claim { reference, driver, object }
    }

    /// The UID.
    pub fn uid(&self) -> &ClaimUid {
        &self.reference.uid
    }

    /// The namespace and name.
    pub fn name(&self) -> &ClaimName {
        &self.reference.name
    }

    /// The object of the API server. `None` if the driver runs [without claims](super::DriverBuilder::without_api).
    pub fn object(&self) -> Option<&Arc<ResourceClaim>> {
        self.object.as_ref()
    }

    /// The devices of this driver that are allocated to the claim.
    pub fn results(&self) -> impl Iterator<Item = &DeviceRequestAllocationResult> {
        let results = self.devices().and_then(|devices| devices.results.as_deref()).unwrap_or_default();
        results.iter().filter(|result| result.driver == self.driver.as_str())
    }

    /// The configurations of this driver that apply to an allocated device, in the order in which they are applied: those of the
    /// device class before those of the claim. A configuration applies if it names no request, the request of the device, or the
    /// base request of the device.
    pub fn configs(&self, result: &DeviceRequestAllocationResult) -> impl Iterator<Item = &OpaqueDeviceConfiguration> {
        let configs = self.devices().and_then(|devices| devices.config.as_deref()).unwrap_or_default();
        let applies = move |requests: &[String]| {
            requests.is_empty()
                || requests.iter().any(|name| *name == result.request || name == base_request(&result.request))
        };
        configs
            .iter()
            .filter(move |config| applies(config.requests.as_deref().unwrap_or_default()))
            .filter_map(|config| config.opaque.as_ref())
            .filter(|opaque| opaque.driver == self.driver.as_str())
    }

    fn devices(&self) -> Option<&k8s_openapi::api::resource::v1::DeviceAllocationResult> {
        self.object.as_ref()?.status.as_ref()?.allocation.as_ref()?.devices.as_ref()
    }
}

/// The health of one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceHealth {
    /// The pool of the device.
    pub pool: String,
    /// The name of the device in its pool.
    pub device: String,
    /// The health.
    pub health: Health,
    /// When the health was determined.
    pub updated: SystemTime,
    /// How long the report is valid, in whole seconds. The node uses 30 s if it is zero.
    pub timeout: Duration,
    /// Text for the user. The node shows at most 1024 bytes of it.
    pub message: String,
}

impl DeviceHealth {
    /// The health of a device as it is now.
    pub fn now(pool: impl Into<String>, device: impl Into<String>, health: Health) -> Self {
        DeviceHealth {
            pool: pool.into(),
            device: device.into(),
            health,
            updated: SystemTime::now(),
            timeout: Duration::ZERO,
            message: String::new(),
        }
    }
}

/// Whether a device works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Health {
    /// The driver does not know.
    Unknown,
    /// The device works.
    Healthy,
    /// The device does not work.
    Unhealthy,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn configs_of_a_result_are_those_for_all_requests_its_request_and_its_base_request() {
        let config = |name: &str, driver: &str, requests: &[&str]| {
            json!({"source": "FromClaim", "requests": requests,
                "opaque": {"driver": driver, "parameters": {"name": name}}})
        };
        let object = serde_json::from_value(json!({"status": {"allocation": {"devices": {
            "results": [
                {"request": "base/sub", "driver": "d", "pool": "p", "device": "g0"},
                {"request": "other", "driver": "e", "pool": "p", "device": "g1"},
            ],
            "config": [
                config("all", "d", &[]), config("sub", "d", &["x", "base/sub"]), config("base", "d", &["base"]),
                config("sibling", "d", &["base/other"]), config("driver", "e", &[]),
            ],
        }}}}))
        .unwrap();
        let reference = ClaimRef { name: ClaimName::new("shop", "cam"), uid: "c-1".into() };
        let claim = Claim::new(reference, "d".into(), Some(Arc::new(object)));
        let [result] = claim.results().collect::<Vec<_>>()[..] else { panic!("one result is of this driver") };
        let names: Vec<_> = claim.configs(result).map(|opaque| opaque.parameters.0["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["all", "sub", "base"]);
    }
}
