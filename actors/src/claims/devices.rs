//! Which prepared devices a container gets.

use std::collections::BTreeSet;

use super::record::ClaimRecord;
use super::resolve::{ClaimFeatures, ClaimRefused, claim_of_entry, extended_claim};
use super::table::ClaimTable;
use crate::containers::definition::Definition;
use crate::ids::{ClaimName, DriverName, base_request};
use crate::pod::PodObject;
use crate::ports::PreparedDevice;

/// The devices of a container cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DevicesError {
    /// The pod's claim cannot be determined.
    #[error(transparent)]
    Refused(#[from] ClaimRefused),
    /// The node has not prepared the claim.
    #[error("ResourceClaim {} is not prepared on this node", .0.name())]
    NotPrepared(ClaimName),
    /// The container names a claim that the pod does not have.
    #[error("the container uses the pod claim {0:?}, which the pod does not have")]
    Unknown(String),
}

/// The use of a claim by a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimUse {
    pub(crate) claim: ClaimName,
    /// The request of the claim; `None` for all of them.
    pub(crate) request: Option<String>,
}

impl ClaimUse {
    /// The devices of the claim that this use includes, in the order of drivers and devices.
    pub(crate) fn devices<'a>(
        &'a self,
        record: &'a ClaimRecord,
    ) -> impl Iterator<Item = (&'a DriverName, &'a PreparedDevice)> {
        let all =
            record.drivers.iter().flat_map(|(name, driver)| driver.devices.iter().map(move |device| (name, device)));
        all.filter(|(_, device)| self.request.as_deref().is_none_or(|request| serves(device, request)))
    }
}

/// Whether a device serves a request. A subrequest (`REQUEST/SUBREQUEST`) is served by the devices of its request.
fn serves(device: &PreparedDevice, request: &str) -> bool {
    device.requests.is_empty() || device.requests.iter().any(|name| name == request || name == base_request(request))
}

/// The claims that a container uses: those that it names, then the one that backs its extended resources.
///
/// # Errors
/// [`DevicesError::Refused`] and [`DevicesError::Unknown`].
pub(crate) fn claim_uses(
    pod: &PodObject,
    container: &Definition<'_>,
    features: ClaimFeatures,
) -> Result<Vec<ClaimUse>, DevicesError> {
    let mut uses = Vec::new();
    let named = container.resources().into_iter().flat_map(|resources| resources.claims.iter().flatten());
    for entry in named {
        let is_known = pod.spec().resource_claims.iter().flatten().any(|claim| claim.name == entry.name);
        if !is_known {
            return Err(DevicesError::Unknown(entry.name.clone()));
        }
        if let Some(claim) = claim_of_entry(pod, &entry.name)? {
            uses.push(ClaimUse { claim, request: entry.request.clone() });
        }
    }
    uses.extend(extended_uses(pod, container, features).into_iter().map(|(_, used)| used));
    Ok(uses)
}

/// The uses of the pod's extended claim by a container, with the names of the extended resources that they stand for.
pub(super) fn extended_uses<'a>(
    pod: &'a PodObject,
    container: &'a Definition<'_>,
    features: ClaimFeatures,
) -> Vec<(&'a str, ClaimUse)> {
    let Some(claim) = extended_claim(pod, features) else { return Vec::new() };
    let used = |request: &str| ClaimUse { claim: claim.clone(), request: Some(request.to_owned()) };
    extended_requests(pod, container).map(|(resource, request)| (resource, used(request))).collect()
}

/// The extended resources of the container that the pod's extended claim stands for, each with the request of the claim.
fn extended_requests<'a>(
    pod: &'a PodObject,
    container: &'a Definition<'_>,
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let status = pod.status().and_then(|status| status.extended_resource_claim_status.as_ref());
    let mappings = status.into_iter().flat_map(|status| &status.request_mappings);
    let requested = |resource: &str| {
        let resources = container.resources();
        let amount = resources.and_then(|resources| {
            let of = |list: &'a Option<std::collections::BTreeMap<String, _>>| list.as_ref()?.get(resource);
            of(&resources.requests).or_else(|| of(&resources.limits))
        });
        amount.is_some_and(|quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| {
            quantity.0.trim_start_matches(['+', '0', '.']).starts_with(|digit: char| digit.is_ascii_digit())
        })
    };
    let of_container = mappings.filter(move |mapping| mapping.container_name == container.name());
    let requested = of_container.filter(move |mapping| requested(&mapping.resource_name));
    requested.map(|mapping| (mapping.resource_name.as_str(), mapping.request_name.as_str()))
}

/// The names of the CDI devices of a container, each once, in the order of its uses.
///
/// # Errors
/// [`DevicesError`].
pub(crate) fn cdi_devices(
    table: &ClaimTable,
    pod: &PodObject,
    container: &Definition<'_>,
    features: ClaimFeatures,
) -> Result<Vec<String>, DevicesError> {
    let mut names = Vec::new();
    let mut known = BTreeSet::new();
    for used in claim_uses(pod, container, features)? {
        let record = table.record(&used.claim).filter(|record| record.pods.contains(pod.uid()));
        let record = record.ok_or_else(|| DevicesError::NotPrepared(used.claim.clone()))?;
        for name in used.devices(record).flat_map(|(_, device)| &device.cdi_devices) {
            if known.insert(name.clone()) {
                names.push(name.clone());
            }
        }
    }
    Ok(names)
}
