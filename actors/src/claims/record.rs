//! What the node knows about a claim. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{ClaimName, ClaimUid, DriverName, PodUid};
use crate::ports::PreparedDevice;

/// A claim that pods of this node refer to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClaimRecord {
    /// The UID. A claim of the same name with another UID waits until this one is released.
    pub uid: ClaimUid,
    /// The pods for which the claim is prepared, or will be. The last one releases it.
    pub pods: BTreeSet<PodUid>,
    /// The drivers of the allocation, including those that prepared no device.
    pub drivers: BTreeMap<DriverName, DriverRecord>,
    /// Whether all drivers have prepared the claim in the lifetime of this agent. After a restart, the next pod that needs the
    /// claim calls the drivers again, because CDI files may not outlive a reboot.
    pub is_prepared: bool,
    /// The results of the allocation for which drivers were called last; `None` if a kubelet wrote the record.
    pub results: Option<BTreeSet<AllocatedDevice>>,
}

/// A result of an allocation: a device that the control plane has given to a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllocatedDevice {
    /// The driver of the device.
    pub driver: DriverName,
    /// The pool of the device.
    pub pool: String,
    /// The name of the device in its pool.
    pub device: String,
    /// Distinguishes several allocations of one device.
    pub share_id: Option<String>,
}

/// What one driver has done for a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DriverRecord {
    /// The devices of the last successful call.
    pub devices: Vec<PreparedDevice>,
    /// Whether the driver must be called to unprepare the claim.
    pub duty: ReleaseDuty,
}

/// Whether a driver must be called before its part of a claim is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReleaseDuty {
    /// No call to prepare the claim was sent since the last release. The file does not distinguish this from
    /// [`Unprepare`](ReleaseDuty::Unprepare): a call may follow the write at once, so a restarted agent must call the driver.
    #[default]
    None,
    /// The driver could not be reached, so the call was not sent, and nor was an earlier one. No call follows before the file
    /// lacks this, so a restarted agent need not call the driver either.
    NotSent,
    /// The driver may have prepared the claim.
    Unprepare,
    /// An operator gave the driver up. Its devices may still be prepared. Lasts until the driver prepares the claim again.
    GivenUp,
}

/// A claim that a pod needs, as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NeededClaim {
    /// The namespace and name.
    pub name: ClaimName,
    /// The UID.
    pub uid: ClaimUid,
    /// The drivers of the allocation.
    pub drivers: BTreeSet<DriverName>,
    /// The results of the allocation.
    pub results: BTreeSet<AllocatedDevice>,
}

impl ClaimRecord {
    /// A claim that no pod refers to yet.
    pub fn new(uid: ClaimUid) -> Self {
        ClaimRecord { uid, pods: BTreeSet::new(), drivers: BTreeMap::new(), is_prepared: false, results: None }
    }

    /// The drivers that must be called before the claim is released.
    pub fn drivers_to_unprepare(&self) -> impl Iterator<Item = &DriverName> {
        let called = self.drivers.iter().filter(|(_, driver)| driver.duty == ReleaseDuty::Unprepare);
        called.map(|(name, _)| name)
    }
}
