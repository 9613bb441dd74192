//! The map of all cells by UID.
//!
//! The map is sharded, so that pods share no lock. A shard's lock is held for reading while one of its cells is read or updated.
//! The holder of a cell's lock never takes a shard's lock.
//!
//! The other maps of this crate are `DashMap`s. A `DashMap` would keep each UID a second time, and each entry of a pass over the
//! map would count a reference to the shard's lock. Every update and query looks a cell up in this map, and every pass of
//! housekeeping walks through it.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::RwLock;

use crate::engine::cell::Cell;
use crate::ids::PodUid;

/// More than the cores that could contend for one shard. A power of two.
const SHARDS: usize = 128;

/// The capacity that an almost empty shard keeps.
const SPARE: usize = 32;

/// The map. An entry is a pointer to a cell, which knows its UID: a lookup reads the cache line of the cell that its caller reads
/// next anyway. A pass over all entries takes one lock for each shard and nothing for each entry, so that its cache misses
/// overlap.
#[derive(Debug)]
pub(super) struct Cells {
    shards: Box<[Shard]>,
    /// Seeded with the engine's seed, so that the order of the cells repeats with it.
    hasher: FixedState,
}

/// A shard. It has cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(RwLock<HashTable<Arc<Cell>>>);

impl Cells {
    pub(super) fn new(seed: u64) -> Self {
        Cells { shards: (0..SHARDS).map(|_| Shard::default()).collect(), hasher: FixedState::with_seed(seed) }
    }

    /// The hash of a UID and its shard. The table uses the lowest and the highest bits of the hash, so the shard is chosen by bits
    /// between them.
    #[inline]
    fn shard(&self, uid: &PodUid) -> (u64, &RwLock<HashTable<Arc<Cell>>>) {
        let hash = self.hasher.hash_one(uid);
        let shard = usize::try_from(hash >> 40).unwrap_or(0) % SHARDS;
        (hash, &self.shards[shard].0)
    }

    /// Calls `work` with a cell, under the lock of its shard; `None` if there is no such cell.
    #[inline]
    pub(super) fn with<T>(&self, uid: &PodUid, work: impl FnOnce(&Arc<Cell>) -> T) -> Option<T> {
        let (hash, shard) = self.shard(uid);
        shard.read().find(hash, |cell| cell.uid() == uid).map(work)
    }

    pub(super) fn find(&self, uid: &PodUid) -> Option<Arc<Cell>> {
        self.with(uid, Arc::clone)
    }

    /// Returns the cell of a UID. Inserts a new one if there is none.
    pub(super) fn find_or_insert(&self, uid: &PodUid, new: impl FnOnce() -> Arc<Cell>) -> Arc<Cell> {
        let (hash, shard) = self.shard(uid);
        let mut shard = shard.write();
        match shard.entry(hash, |cell| cell.uid() == uid, |cell| self.hasher.hash_one(cell.uid())) {
            Entry::Occupied(found) => found.get().clone(),
            Entry::Vacant(vacant) => vacant.insert(new()).get().clone(),
        }
    }

    /// Removes a cell, unless another cell of the same UID has replaced it.
    pub(super) fn remove(&self, cell: &Arc<Cell>) {
        let (hash, shard) = self.shard(cell.uid());
        let mut shard = shard.write();
        let removed = shard.find_entry(hash, |present| Arc::ptr_eq(present, cell)).ok().map(|found| found.remove().0);
        if shard.capacity() > SPARE + 8 * shard.len() {
            let len = shard.len();
            shard.shrink_to(2 * len, |cell| self.hasher.hash_one(cell.uid()));
        }
        drop(shard);
        // This may be the last reference to the cell. Its destructor runs without the lock.
        drop(removed);
    }

    /// Calls `visit` with every cell, under the lock of its shard, in no order.
    pub(super) fn for_each(&self, mut visit: impl FnMut(&Arc<Cell>)) {
        for shard in &self.shards {
            shard.0.read().iter().for_each(&mut visit);
        }
    }

    /// Whether `is_true` holds for any cell. Calls it under the lock of the cell's shard.
    pub(super) fn any(&self, mut is_true: impl FnMut(&Arc<Cell>) -> bool) -> bool {
        self.shards.iter().any(|shard| shard.0.read().iter().any(&mut is_true))
    }

    /// All cells, for work that must not run under the lock of a shard.
    pub(super) fn all(&self) -> Vec<Arc<Cell>> {
        let mut all = Vec::with_capacity(self.len());
        self.for_each(|cell| all.push(cell.clone()));
        all
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.read().len()).sum()
    }
}
