//! The flight recorder: the events that entered the cores, in a bounded memory, and their replay.
//!
//! ```text
//!  cell (locked) -- event, tick --> step --> state          plain rounds: two counters in the cell
//!                        |             |
//!                        +-- frame: event, tick, digest of the state --> ring of the cell   \
//!  plan, probes, sources, housekeeping, agent -- note ----------------> ring of the notes    > save -> file -> replay
//! ```
//!
//! A recording is replayed by the same [`step`](crate::pod_worker::step::step) and [`plan`](crate::containers::plan()) that
//! made it, and after each event the state is compared with the one that was reached then: see [`replay`].
//!
//! # What is kept
//!
//! The memory is divided into rings, and each ring into segments; the oldest segment goes when a ring is full. The frames of
//! one pod are all in one ring, in the order of its steps, because they are written under its cell's lock. The first frame
//! of a pod in a segment is a *keyframe*, its whole record, so that what is left can be replayed whatever was dropped.
//! Of a pod's object only those facts are kept that the core reads, and its version. Plain rounds (looked at again, taken,
//! set up well, or in vain for the same reason as before) are counted in the pod's cell and take one frame together.
//!
//! A ring's lock is taken only for events that are written, and a ring has an eighth of the pods. The notes have one ring: its
//! lock is taken once for each plan that is made and each note, for a look-up and, where something is new, to copy bytes that
//! are made before.
//!
//! What is deliberately absent: a lock that all pods share on the way of their events, and input or output: whoever wants a
//! file asks for its bytes.
//!
//! # The format
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `podrec\r\n` |
//! | 2 | format version, least byte first; [`FORMAT`] |
//! | ... | header: length (4), checksum (4), then version of the build, time of saving, frames dropped |
//! | ... | segments, by ring, oldest first: ring (2), length (4), checksum (4), frames |
//! | 6 | 65535 in place of a ring, and the number of segments (4) |
//!
//! A frame is its length (3), its kind (1), the time since the frame before it, and what its kind says: for a pod its
//! number, the event and a digest of the state after it, of the objects it acts on, and of what the step asks for. Numbers are
//! LEB128, checksums CRC-32.

pub(crate) mod capture;
pub(crate) mod file;
pub(crate) mod note;
mod notes;
pub(crate) mod planned;
mod ring;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::codec::Put;
use crate::containers::Plan;
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::pod_worker::step::StepContext;
use crate::ports::PodRuntimeStatus;
use crate::probes::ProbeSnapshot;
use crate::recorder::capture::frame;
use crate::time::Time;

use planned::{Body, Missing};

pub(crate) use ring::Ring;

pub use file::{FORMAT, ReadError};
pub use note::{Note, SourceChange};

/// The most rings that pods are spread over.
const RINGS: usize = 8;
/// A ring of pods has at least so many bytes, where the whole allows it.
const SMALLEST_RING: usize = 512 * 1024;
/// The fourth part is for notes, which are long.
const NOTES_SHARE: usize = 4;

/// Keeps events. Shared by all parts of an agent.
#[derive(Debug)]
pub struct Recorder {
    size: usize,
    pods: Box<[Mutex<PodRing>]>,
    notes: Mutex<notes::Notes>,
    next: AtomicU32,
}

#[derive(Debug)]
struct PodRing {
    ring: Ring,
    settings: Option<(Duration, Duration)>,
}

/// A ring that is written to.
pub(crate) struct Writing<'a>(MutexGuard<'a, PodRing>);

impl std::ops::Deref for Writing<'_> {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        &self.0.ring
    }
}

impl std::ops::DerefMut for Writing<'_> {
    fn deref_mut(&mut self) -> &mut Ring {
        &mut self.0.ring
    }
}

impl Recorder {
    /// The smallest size that makes sense, in bytes: below it, hardly a pod's life would be kept.
    pub const SMALLEST: usize = 64 * 1024;

    /// A recorder that keeps up to about `size` bytes; a segment may exceed its share by one frame. Memory is taken as it is
    /// needed.
    pub fn new(size: usize) -> Self {
        let size = size.max(Recorder::SMALLEST);
        let rings = (size / SMALLEST_RING).clamp(1, RINGS);
        Recorder::with_rings(size, rings)
    }

    fn with_rings(size: usize, rings: usize) -> Self {
        let notes = size / NOTES_SHARE;
        let share = (size - notes) / rings;
        let ring = || Mutex::new(PodRing { ring: Ring::new(share), settings: None });
        Recorder {
            size,
            pods: (0..rings).map(|_| ring()).collect(),
            notes: Mutex::new(notes::Notes::new(notes)),
            next: AtomicU32::new(1),
        }
    }

    /// What stands for the next record in frames. Neighbours go to different rings.
    pub(crate) fn next_id(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The ring of a record, ready for a frame. The settings of a tick are written where they are new.
    pub(crate) fn ring(&self, id: u32, tick: &StepContext) -> Writing<'_> {
        let mut guard = self.pods[id as usize % self.pods.len()].lock();
        let PodRing { ring, settings } = &mut *guard;
        let now = (tick.resync, tick.error_backoff);
        if ring.turn() || *settings != Some(now) {
            *settings = Some(now);
            ring.frame(frame::SETTINGS, tick.now, |bytes| {
                bytes.duration(now.0);
                bytes.duration(now.1);
            });
        }
        Writing(guard)
    }

    /// How many pods may be told of before a recording is saved, each in about 160 bytes, so that an eighth of the memory is
    /// enough. Of the others the recording has what was written of them: not the plain rounds since then, and nothing at all
    /// of one whose frames were all dropped.
    pub(crate) fn most_settled(&self) -> usize {
        self.size / (8 * 160)
    }

    /// Keeps what is told beside the pods' events.
    pub fn note(&self, at: Time, note: &Note) {
        self.notes.lock().put(at, note);
    }

    /// Keeps what a plan was made from and what it says. Nothing is written while both stay what they were, nor of a pod
    /// whose object would fill a segment.
    pub fn planned(
        &self,
        at: Time,
        pod: &Arc<PodObject>,
        seen: &PodRuntimeStatus,
        probes: &ProbeSnapshot,
        plan: &Plan,
    ) {
        // Most plans are the ones that were made before, and all pods share this lock: bytes are made before it is taken.
        let body = Body::new(seen, probes, plan);
        if self.notes.lock().planned(at, pod, &body, None) == Missing::Object
            && let Ok(json) = serde_json::to_string(pod.pod())
        {
            let _kept = self.notes.lock().planned(at, pod, &body, Some(&json));
        }
    }

    /// Forgets which plans were made for pods of which `keep` says no.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.notes.lock().retain(keep);
    }

    /// What is kept now, as the bytes of a file. Events go on meanwhile; of each pod the recording has all up to one instant.
    pub fn save(&self, now: Time) -> Vec<u8> {
        let mut rings: Vec<_> = self.pods.iter().map(|ring| ring.lock().ring.saved()).collect();
        rings.push(self.notes.lock().saved());
        file::write(now, &rings)
    }
}
