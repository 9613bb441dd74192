//! All cells by UID.
//!
//! In shards, so that no lock is shared by all pods. A shard's lock is held for reading while its cells are asked or told
//! something; who holds a cell's lock never asks for a shard's.
//!
//! The other maps of this crate are `DashMap`s. This one is looked into by every update and query and walked through by every
//! pass, and a `DashMap` would keep each UID a second time and count a reference to the shard's lock for each entry of a
//! pass.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::RwLock;

use crate::engine::cell::Cell;
use crate::ids::PodUid;

/// More than cores that could meet in one; a power of two.
const SHARDS: usize = 128;

/// Room that a shard keeps.
const SPARE: usize = 32;

/// The map. A cell knows its UID, so an entry is a pointer, and who looks one up reads the cache line that it is about to
/// read anyway. A pass over all entries takes one lock for each shard and nothing for each entry, so that its cache misses
/// overlap.
#[derive(Debug)]
pub(super) struct Cells {
    shards: Box<[Shard]>,
    /// With the engine's seed, so that the order of the cells repeats with it.
    hasher: FixedState,
}

/// On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(RwLock<HashTable<Arc<Cell>>>);

impl Cells {
    pub(super) fn new(seed: u64) -> Self {
        Cells { shards: (0..SHARDS).map(|_| Shard::default()).collect(), hasher: FixedState::with_seed(seed) }
    }

    /// The hash and its shard. The table uses the lowest and the highest bits of the hash.
    fn place(&self, uid: &PodUid) -> (u64, &RwLock<HashTable<Arc<Cell>>>) {
        let hash = self.hasher.hash_one(uid);
        let shard = usize::try_from(hash >> 40).unwrap_or(0) % SHARDS;
        (hash, &self.shards[shard].0)
    }

    /// Does something with a cell, under the lock of its shard; `None` if there is none.
    pub(super) fn with<T>(&self, uid: &PodUid, work: impl FnOnce(&Arc<Cell>) -> T) -> Option<T> {
        let (hash, shard) = self.place(uid);
        shard.read().find(hash, |cell| cell.uid() == uid).map(work)
    }

    pub(super) fn find(&self, uid: &PodUid) -> Option<Arc<Cell>> {
        self.with(uid, Arc::clone)
    }

    /// The cell of that UID, made if there is none.
    pub(super) fn find_or_make(&self, uid: &PodUid, make: impl FnOnce() -> Arc<Cell>) -> Arc<Cell> {
        let (hash, shard) = self.place(uid);
        let mut shard = shard.write();
        match shard.entry(hash, |cell| cell.uid() == uid, |cell| self.hasher.hash_one(cell.uid())) {
            Entry::Occupied(found) => found.get().clone(),
            Entry::Vacant(vacant) => vacant.insert(make()).get().clone(),
        }
    }

    /// Takes a cell out, unless another one took its place.
    pub(super) fn remove(&self, cell: &Arc<Cell>) {
        let (hash, shard) = self.place(cell.uid());
        let mut shard = shard.write();
        let removed = shard.find_entry(hash, |present| Arc::ptr_eq(present, cell)).ok().map(|found| found.remove().0);
        if shard.capacity() > SPARE + 8 * shard.len() {
            // What many pods needed is given back.
            let len = shard.len();
            shard.shrink_to(2 * len, |cell| self.hasher.hash_one(cell.uid()));
        }
        drop(shard);
        // Perhaps the last of the cell, and what is in it: not under the lock.
        drop(removed);
    }

    /// Shows every cell, under the lock of its shard, in no order.
    pub(super) fn for_each(&self, mut look: impl FnMut(&Arc<Cell>)) {
        for shard in &self.shards {
            shard.0.read().iter().for_each(&mut look);
        }
    }

    /// Whether something is true of any cell.
    pub(super) fn any(&self, mut is_true: impl FnMut(&Arc<Cell>) -> bool) -> bool {
        self.shards.iter().any(|shard| shard.0.read().iter().any(&mut is_true))
    }

    /// All cells, to be worked on without a lock.
    pub(super) fn all(&self) -> Vec<Arc<Cell>> {
        let mut all = Vec::with_capacity(self.len());
        self.for_each(|cell| all.push(cell.clone()));
        all
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.read().len()).sum()
    }
}
