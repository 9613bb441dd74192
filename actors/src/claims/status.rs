//! What the node reports about the devices of a pod: their health in the pod's status, and the devices of each container.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus, ResourceHealth, ResourceStatus};

use super::devices::{ClaimUse, DevicesError, claim_uses, extended_uses};
use super::health::{DeviceId, HealthTable};
use super::record::ClaimRecord;
use super::resolve::{ClaimFeatures, claim_of_entry};
use super::table::ClaimTable;
use crate::containers::definition::Definition;
use crate::ids::{ClaimName, DriverName};
use crate::pod::PodObject;
use crate::ports::{DeviceHealth, PreparedDevice};
use crate::time::Time;

/// The devices of a claim that a container uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerClaim {
    /// The claim.
    pub claim: ClaimName,
    /// The devices with their drivers, each once.
    pub devices: Vec<(DriverName, PreparedDevice)>,
}

/// The sources of the health in statuses.
pub(super) struct StatusSources<'a> {
    pub(super) table: &'a ClaimTable,
    pub(super) health: &'a HealthTable,
    pub(super) features: ClaimFeatures,
    pub(super) now: Time,
}

impl StatusSources<'_> {
    /// Fills `allocatedResourcesStatus` of regular and init containers.
    pub(super) fn fill(&self, pod: &PodObject, previous: Option<&PodStatus>, status: &mut PodStatus) {
        if !self.features.health {
            return;
        }
        let known = |list: fn(&PodStatus) -> &Option<Vec<ContainerStatus>>| previous.and_then(|p| list(p).as_deref());
        let lists = [
            (&mut status.container_statuses, known(|status| &status.container_statuses)),
            (&mut status.init_container_statuses, known(|status| &status.init_container_statuses)),
        ];
        for (list, known) in lists {
            for container in list.iter_mut().flatten() {
                let Some(definition) = Definition::find(pod, &container.name) else { continue };
                let known = known.unwrap_or_default().iter().find(|known| known.name == container.name);
                let known = known.and_then(|known| known.allocated_resources_status.as_deref()).unwrap_or_default();
                let entries = self.entries(pod, &definition, known);
                if !entries.is_empty() {
                    container.allocated_resources_status.get_or_insert_default().extend(entries);
                }
            }
        }
    }

    /// The entries of a container, in the order of its claims. An entry whose claim is released does not change.
    fn entries(&self, pod: &PodObject, container: &Definition<'_>, known: &[ResourceStatus]) -> Vec<ResourceStatus> {
        let mut entries: Vec<ResourceStatus> = Vec::new();
        for (name, uses) in named_uses(pod, container, self.features) {
            if entries.iter().any(|entry| entry.name == name) {
                continue;
            }
            let records: Vec<_> = uses.iter().filter_map(|used| Some((used, self.record(pod, &used.claim)?))).collect();
            if records.is_empty() {
                entries.extend(known.iter().find(|entry| entry.name == name).cloned());
                continue;
            }
            let resources = self.resources(&records);
            if !resources.is_empty() {
                entries.push(ResourceStatus { name, resources: Some(resources) });
            }
        }
        entries
    }

    fn record(&self, pod: &PodObject, claim: &ClaimName) -> Option<&ClaimRecord> {
        self.table.record(claim).filter(|record| record.pods.contains(pod.uid()))
    }

    /// The devices, ordered by driver, pool and name, each resource id once. Of several devices with one resource id, the status
    /// shows the worst health.
    fn resources(&self, uses: &[(&ClaimUse, &ClaimRecord)]) -> Vec<ResourceHealth> {
        let mut devices: Vec<_> = uses.iter().flat_map(|(used, record)| used.devices(record)).collect();
        devices.sort_by_key(|(driver, device)| (*driver, &device.pool, &device.device));
        let mut resources: Vec<(DeviceHealth, ResourceHealth)> = Vec::new();
        for (driver, device) in devices {
            let resource_id = match device.cdi_devices.first() {
                Some(id) => id.clone(),
                None => format!("{driver}/{}/{}", device.pool, device.device),
            };
            let id = DeviceId { pool: device.pool.clone(), device: device.device.clone() };
            let (health, message) = self.health.of(driver, &id, self.now);
            let message = Some(message).filter(|text| !text.is_empty() && self.features.health_message);
            let (name, message) = (Some(health.as_str().to_owned()), message.map(str::to_owned));
            let resource = ResourceHealth { resource_id, health: name, message };
            match resources.iter_mut().find(|(_, known)| known.resource_id == resource.resource_id) {
                Some(known) if severity(health) > severity(known.0) => *known = (health, resource),
                Some(_) => {}
                None => resources.push((health, resource)),
            }
        }
        resources.into_iter().map(|(_, resource)| resource).collect()
    }
}

fn severity(health: DeviceHealth) -> u8 {
    match health {
        DeviceHealth::Healthy => 0,
        DeviceHealth::Unknown => 1,
        DeviceHealth::Unhealthy => 2,
    }
}

/// The uses of claims by a container, with their names in its status. Entries of the pod without a claim are left out.
fn named_uses(pod: &PodObject, container: &Definition<'_>, features: ClaimFeatures) -> Vec<(String, Vec<ClaimUse>)> {
    let entries = container.resources().into_iter().flat_map(|resources| resources.claims.iter().flatten());
    let named = entries.filter_map(|entry| {
        let claim = claim_of_entry(pod, &entry.name).ok().flatten()?;
        let name = match &entry.request {
            Some(request) => format!("claim:{}/{request}", entry.name),
            None => format!("claim:{}", entry.name),
        };
        Some((name, vec![ClaimUse { claim, request: entry.request.clone() }]))
    });
    let mut by_resource: BTreeMap<String, Vec<ClaimUse>> = BTreeMap::new();
    for (resource, used) in extended_uses(pod, container, features) {
        by_resource.entry(resource.to_owned()).or_default().push(used);
    }
    named.chain(by_resource).collect()
}

/// The claims that a container uses, with their devices.
///
/// # Errors
/// [`DevicesError`].
pub(super) fn container_claims(
    table: &ClaimTable,
    pod: &PodObject,
    container: &Definition<'_>,
    features: ClaimFeatures,
) -> Result<Vec<ContainerClaim>, DevicesError> {
    let mut claims: Vec<ContainerClaim> = Vec::new();
    for used in claim_uses(pod, container, features)? {
        let record = table.record(&used.claim).filter(|record| record.pods.contains(pod.uid()));
        let record = record.ok_or_else(|| DevicesError::NotPrepared(used.claim.clone()))?;
        let index = claims.iter().position(|claim| claim.claim == used.claim).unwrap_or_else(|| {
            claims.push(ContainerClaim { claim: used.claim.clone(), devices: Vec::new() });
            claims.len() - 1
        });
        for (driver, device) in used.devices(record) {
            let device = (driver.clone(), device.clone());
            if !claims[index].devices.contains(&device) {
                claims[index].devices.push(device);
            }
        }
    }
    Ok(claims)
}
