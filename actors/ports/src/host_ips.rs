//! The addresses of the node, which may change while it runs.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::RwLock;

/// The addresses of the node, the primary one first. A machine may get its addresses after the agent has started, and may get others
/// later. Clones share the addresses.
#[derive(Clone, Debug, Default)]
pub struct HostIps(Arc<RwLock<Vec<IpAddr>>>);

impl HostIps {
    /// The present addresses.
    pub fn get(&self) -> Vec<IpAddr> {
        self.0.read().clone()
    }

    /// The primary address.
    pub fn first(&self) -> Option<IpAddr> {
        self.0.read().first().copied()
    }

    /// Replaces the addresses. Statuses that are written from now on have the new ones. Returns whether they differ.
    pub fn set(&self, addresses: Vec<IpAddr>) -> bool {
        let mut present = self.0.write();
        if *present == addresses {
            return false;
        }
        *present = addresses;
        true
    }
}

impl From<Vec<IpAddr>> for HostIps {
    fn from(addresses: Vec<IpAddr>) -> Self {
        HostIps(Arc::new(RwLock::new(addresses)))
    }
}
