//! The statuses that the controller has written, until the watch shows them.

use std::collections::BTreeMap;

use podwright_model::resource_version::ResourceVersion;

use super::api::StatusEntry;
use super::cache::Core;
use super::owners::{Owner, OwnerId};

/// The last write of a status.
#[derive(Clone, Debug)]
pub(super) struct OwnWrite {
    /// All entries of the write.
    entries: Vec<StatusEntry>,
    /// The version of the object after the write. `None` while it is not known whether the server has performed the write.
    stored: Option<ResourceVersion>,
}

/// The last write of the status of each pod and group, until the watch shows it.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnWrites(BTreeMap<OwnerId, OwnWrite>);

impl OwnWrites {
    /// Records that a write is sent. Until the answer arrives, the controller assumes that the server may have performed it. Returns the
    /// write before it, if the watch does not show that one yet.
    pub(super) fn sent(&mut self, owner: OwnerId, entries: Vec<StatusEntry>) -> Option<OwnWrite> {
        self.0.insert(owner, OwnWrite { entries, stored: None })
    }

    /// The entries of the last write, even if the server may not have performed it.
    pub(super) fn entries(&self, owner: &OwnerId) -> &[StatusEntry] {
        self.0.get(owner).map_or(&[], |write| &write.entries)
    }

    /// The entries of the last write, if the server has performed it.
    fn stored(&self, owner: &OwnerId) -> &[StatusEntry] {
        self.0.get(owner).filter(|write| write.stored.is_some()).map_or(&[], |write| &write.entries)
    }

    /// The watch shows a state of the object.
    pub(super) fn shown(&mut self, owner: &Owner) {
        let id = owner.id();
        let is_shown = self.0.get(&id).is_some_and(|write| match (write.stored, owner.resource_version()) {
            (Some(stored), Some(shown)) => shown >= stored,
            (Some(_) | None, _) => {
                let statuses = owner.statuses();
                write.entries.iter().all(|entry| statuses.contains(entry))
            }
        });
        if is_shown {
            self.0.remove(&id);
        }
    }

    /// The object is gone.
    pub(super) fn owner_gone(&mut self, owner: &OwnerId) {
        self.0.remove(owner);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Core {
    /// The entries of the status, with those of a write of this controller that the watch does not show yet.
    pub(super) fn statuses(&self, owner: &Owner) -> Vec<StatusEntry> {
        let mut statuses = owner.statuses();
        for entry in self.own_writes.stored(&owner.id()) {
            match statuses.iter_mut().find(|status| status.name == entry.name) {
                Some(status) => status.clone_from(entry),
                None => statuses.push(entry.clone()),
            }
        }
        statuses
    }

    /// The server has performed the last write. `resource_version` is that of the object after the write.
    pub(super) fn status_stored(&mut self, owner: &Owner, resource_version: &str) {
        if let Some(write) = self.own_writes.0.get_mut(&owner.id()) {
            write.stored = ResourceVersion::parse(resource_version);
        }
        if let Some(current) = self.current(owner) {
            self.own_writes.shown(&current);
        }
    }

    /// The server has not performed the last write, so that the one before it counts again.
    pub(super) fn status_refused(&mut self, owner: &Owner, before: Option<OwnWrite>) {
        // The writes of an owner that is gone were forgotten with it.
        let Some(current) = self.current(owner) else { return };
        match before {
            Some(before) => self.own_writes.0.insert(current.id(), before),
            None => self.own_writes.0.remove(&current.id()),
        };
        self.own_writes.shown(&current);
    }
}
