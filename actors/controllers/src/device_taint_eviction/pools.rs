//! The devices of ResourceSlices with their NoExecute taints, by pool.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use podwright_model::time::Time;

use super::eviction::SliceTaint;
use super::taints::Taint;

/// A pool of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolKey {
    /// The driver.
    pub driver: Box<str>,
    /// The name of the pool.
    pub pool: Box<str>,
}

impl PoolKey {
    pub(super) fn new(driver: &str, pool: &str) -> Self {
        PoolKey { driver: driver.into(), pool: pool.into() }
    }

    pub(super) fn of(slice: &ResourceSlice) -> Self {
        PoolKey::new(&slice.spec.driver, &slice.spec.pool.name)
    }
}

/// Prints `DRIVER/POOL`.
impl fmt::Display for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.driver, self.pool)
    }
}

/// A NoExecute taint of a device, and where it is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PublishedTaint {
    pub(super) taint: Taint,
    pub(super) source: Arc<SliceTaint>,
}

/// A slice of a pool.
#[derive(Clone, Debug)]
struct PoolSlice {
    generation: i64,
    /// All devices. Most have no NoExecute taint.
    devices: BTreeMap<Box<str>, Vec<PublishedTaint>>,
}

/// The slices of a pool, by name. An older generation is kept, because it becomes the newest one when the newer slices go.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    slices: BTreeMap<Box<str>, PoolSlice>,
}

impl Pool {
    /// The slices of the newest generation.
    fn current(&self) -> impl Iterator<Item = &PoolSlice> {
        let newest = self.slices.values().map(|slice| slice.generation).max();
        self.slices.values().filter(move |slice| Some(slice.generation) == newest)
    }

    /// The NoExecute taints of a device.
    pub(super) fn taints(&self, device: &str) -> &[PublishedTaint] {
        self.current().find_map(|slice| slice.devices.get(device)).map_or(&[], Vec::as_slice)
    }

    /// The names of the current devices.
    pub(super) fn devices(&self) -> impl Iterator<Item = &str> {
        self.current_devices().into_keys()
    }

    /// The current devices with their taints. If two slices have a device, the first one counts.
    fn current_devices(&self) -> BTreeMap<&str, &[PublishedTaint]> {
        let mut devices = BTreeMap::new();
        for (device, taints) in self.current().flat_map(|slice| &slice.devices) {
            devices.entry(&**device).or_insert(taints.as_slice());
        }
        devices
    }

    /// Replaces or removes a slice. Returns the devices whose NoExecute taints have changed. Only the devices of this slice are compared,
    /// unless another generation becomes the newest one.
    fn replace(&mut self, name: &str, new: Option<PoolSlice>) -> Vec<Box<str>> {
        let others = self.slices.iter().filter(|(other, _)| ***other != *name).map(|(_, slice)| slice.generation).max();
        let newest = self.slices.values().map(|slice| slice.generation).max();
        if others.max(new.as_ref().map(|slice| slice.generation)) != newest {
            let before = self.tainted();
            self.set(name, new);
            return changed(&before, &self.tainted());
        }
        let none = BTreeMap::new();
        let current = |slice: Option<&PoolSlice>| slice.is_some_and(|slice| Some(slice.generation) == newest);
        let devices = |slice| if current(slice) { slice.map_or(&none, |slice| &slice.devices) } else { &none };
        let (before, after) = (devices(self.slices.get(name)), devices(new.as_ref()));
        let names = before.keys().chain(after.keys().filter(|device| !before.contains_key(*device)));
        // Another slice may have the device too, so what counts is the first slice that has it.
        let differing = names.filter(|device| before.get(*device) != after.get(*device));
        let differing: Vec<_> = differing.map(|device| (device.clone(), self.taints(device).to_vec())).collect();
        self.set(name, new);
        let changed = differing.into_iter().filter(|(device, before)| self.taints(device) != before.as_slice());
        changed.map(|(device, _)| device).collect()
    }

    fn set(&mut self, name: &str, slice: Option<PoolSlice>) {
        match slice {
            Some(slice) => drop(self.slices.insert(name.into(), slice)),
            None => drop(self.slices.remove(name)),
        }
    }

    fn tainted(&self) -> Tainted {
        let devices = self.current_devices().into_iter().filter(|(_, taints)| !taints.is_empty());
        devices.map(|(device, taints)| (device.into(), taints.to_vec())).collect()
    }
}

/// The devices that have NoExecute taints.
type Tainted = BTreeMap<Box<str>, Vec<PublishedTaint>>;

/// All pools.
#[derive(Clone, Debug, Default)]
pub(super) struct Pools(HashMap<PoolKey, Pool>);

impl Pools {
    pub(super) fn get(&self, driver: &str, pool: &str) -> Option<&Pool> {
        // A lookup without this allocation would need a key of another type. Claims are evaluated too rarely for that to matter.
        self.0.get(&PoolKey::new(driver, pool))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&PoolKey, &Pool)> {
        self.0.iter()
    }

    /// The number of slices of each pool, sorted.
    pub(super) fn sizes(&self) -> BTreeMap<PoolKey, usize> {
        self.0.iter().map(|(key, pool)| (key.clone(), pool.slices.len())).collect()
    }

    /// Adds or replaces a slice. Returns the devices whose NoExecute taints have changed.
    pub(super) fn put(&mut self, slice: &ResourceSlice, now: Time) -> Vec<Box<str>> {
        let pool = self.0.entry(PoolKey::of(slice)).or_default();
        let name = slice.metadata.name.as_deref().unwrap_or_default();
        let devices = slice.spec.devices.iter().flatten();
        let devices = devices.map(|device| (device.name.as_str().into(), taints(slice, name, device, pool, now)));
        let devices = devices.collect();
        pool.replace(name, Some(PoolSlice { generation: slice.spec.pool.generation, devices }))
    }

    /// Removes a slice. Returns the devices whose NoExecute taints have changed.
    pub(super) fn remove(&mut self, slice: &ResourceSlice) -> Vec<Box<str>> {
        let key = PoolKey::of(slice);
        let Some(pool) = self.0.get_mut(&key) else { return Vec::new() };
        let changed = pool.replace(slice.metadata.name.as_deref().unwrap_or_default(), None);
        if pool.slices.is_empty() {
            self.0.remove(&key);
        }
        changed
    }
}

fn taints(slice: &ResourceSlice, name: &str, device: &Device, pool: &Pool, now: Time) -> Vec<PublishedTaint> {
    let known = |key: &str, value: &str| {
        let of_device = pool.slices.values().filter_map(|slice| slice.devices.get(device.name.as_str())).flatten();
        of_device.filter_map(|published| published.taint.first_received(key, value)).min()
    };
    let published = device.taints.iter().flatten().enumerate().filter_map(|(index, taint)| {
        let added = taint.time_added.as_ref().map(|added| Time::from_timestamp(added.0));
        let taint = Taint::no_execute(&taint.key, taint.value.as_deref(), &taint.effect, added, known, now)?;
        let source = SliceTaint {
            driver: slice.spec.driver.as_str().into(),
            pool: slice.spec.pool.name.as_str().into(),
            device: device.name.as_str().into(),
            index,
            slice: name.into(),
        };
        Some(PublishedTaint { taint, source: Arc::new(source) })
    });
    published.collect()
}

fn changed(before: &Tainted, after: &Tainted) -> Vec<Box<str>> {
    let mut changed: Vec<_> =
        before.iter().filter(|(device, taints)| after.get(*device) != Some(taints)).map(|(device, _)| device).collect();
    changed.extend(after.keys().filter(|device| !before.contains_key(*device)));
    changed.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, generation: i64, devices: &[(usize, bool)]) -> ResourceSlice {
        let taint = json!({ "key": "k", "effect": "NoExecute", "timeAdded": "2000-01-01T00:00:00Z" });
        let device = |(number, is_tainted): &(usize, bool)| {
            let taints = if *is_tainted { vec![&taint] } else { Vec::new() };
            json!({ "name": format!("d{number}"), "taints": taints })
        };
        let devices: Vec<_> = devices.iter().map(device).collect();
        let pool = json!({ "name": "w", "generation": generation, "resourceSliceCount": 1 });
        let spec = json!({ "driver": "d", "pool": pool, "devices": devices });
        serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
    }

    /// The changed devices are those of a comparison of the whole pool, also with devices in two slices and changes of the generation.
    #[test]
    fn changed_devices_are_those_of_the_whole_pool() {
        let mut random = fastrand::Rng::with_seed(podwright_random::seed());
        let mut pools = Pools::default();
        for _ in 0..podwright_random::times(5_000) {
            let tainted = |pools: &Pools| pools.get("d", "w").map(Pool::tainted).unwrap_or_default();
            let before = tainted(&pools);
            let name = format!("s{}", random.u8(..4));
            let devices: Vec<_> = (0..random.usize(..4)).map(|_| (random.usize(..5), random.bool())).collect();
            let slice = slice(&name, i64::from(random.u8(..8) / 6), &devices);
            let changed_devices =
                if random.u8(..4) == 0 { pools.remove(&slice) } else { pools.put(&slice, Time::ZERO) };
            let sorted = |mut devices: Vec<Box<str>>| {
                devices.sort();
                devices
            };
            assert_eq!(sorted(changed_devices), sorted(changed(&before, &tainted(&pools))));
        }
    }
}
