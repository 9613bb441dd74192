//! The flight recorder: it keeps the events of the pod workers in a bounded memory, so that a replay can run them again.
//!
//! ```text
//!  cell (locked) -- event, context --> step --> state       plain rounds: two counters in the cell
//!                          |             |
//!                          +-- frame: event, digest of the state --> ring of the cell         \
//!  plan, probes, sources, housekeeping, agent -- note ----------------> ring of the notes    > save -> file -> replay
//! ```
//!
//! A replay runs a recording through the same [`step`](crate::pod_worker::step::step) and `plan`
//! that made it, and compares the state after each event with the recorded one.
//!
//! # What is kept
//!
//! The memory is divided into rings, and each ring into segments. When a ring is full, its oldest segment is dropped. All
//! frames of one pod are in one ring, in the order of its steps, because they are written under the lock of its cell. The
//! first frame of a pod in a segment is a *keyframe* with its whole record, so the segments that are left can be replayed.
//! Of a pod's object, a recording has the version and the facts that the core reads. Events that repeat without end (a pod is
//! requeued and set up, and the setup succeeds, or fails with the same error as before) are counted in the pod's cell, and
//! one frame has the counts.
//!
//! Each ring has a lock, which is taken only for events that have a frame. With eight rings, a lock is shared by an eighth of
//! the pods. The notes have one ring. Its lock is taken for each plan and each note, to compare a hash and, if the plan is
//! new, to copy bytes that were encoded before.
//!
//! No lock is shared by the events of all pods. The recorder does no input or output: the caller writes the bytes of
//! [`Recorder::save`] to a file.
//!
//! # The format
//!
//! | bytes | content |
//! |---|---|
//! | 8 | `podrec\r\n` |
//! | 2 | format version, least significant byte first; [`FORMAT`] |
//! | ... | header: length (4), checksum (4), then version of the build, time of saving, frames dropped |
//! | ... | segments, by ring, oldest first: ring (2), length (4), checksum (4), frames |
//! | 6 | 65535 in place of a ring, and the number of segments (4) |
//!
//! A frame is its length (3), its kind (1), the nanoseconds since the frame before it, and the content of its kind. The
//! content of a pod's frame is the number of its record, the event, and a digest (8) of the state after it, of the objects it
//! acts on, and of the effects of the step. Checksums are CRC-32. All other values are in the format of postcard.

pub(crate) mod capture;
pub(crate) mod file;
pub(crate) mod note;
mod notes;
pub(crate) mod planned;
mod ring;
mod status;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::codec::put;
use crate::containers::plan::Plan;
use crate::ids::PodUid;
use crate::pod::PodObject;
use crate::pod_worker::step::StepContext;
use crate::ports::PodRuntimeStatus;
use crate::probes::ProbeSnapshot;
use crate::time::Time;

use planned::{EncodedPlan, PlanResult};

pub(crate) use ring::Ring;

pub use file::{FORMAT, ReadError};
pub use note::{AdmissionNote, Note, SourceChange};

/// The most rings of pods.
const RINGS: usize = 8;
/// The least size of a ring of pods in bytes, if the recorder is large enough.
const SMALLEST_RING: usize = 512 * 1024;
/// A quarter of the memory is for notes, which are long.
const NOTES_SHARE: usize = 4;

/// The kind of a frame, as its fourth byte has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// The resync interval and the backoff of the steps that follow.
    Settings = 1,
    /// A whole record.
    Keyframe = 2,
    /// The result of plain rounds.
    Rounds = 3,
    /// The first update of a record.
    NewRecord = 4,
    /// A later event of a record.
    Event = 5,
    /// A [`Note`].
    Note = 6,
    /// A plan and its inputs.
    Plan = 7,
}

impl FrameKind {
    pub(crate) fn from_byte(byte: u8) -> Option<Self> {
        use FrameKind::*;
        [Settings, Keyframe, Rounds, NewRecord, Event, Note, Plan].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// Keeps the newest events. All parts of an agent share one recorder.
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
    /// The resync interval and the backoff that the last settings frame has. An empty segment gets a settings frame anyway.
    settings: (Duration, Duration),
}

/// A locked ring of pods.
pub(crate) struct RingGuard<'a>(MutexGuard<'a, PodRing>);

impl std::ops::Deref for RingGuard<'_> {
    type Target = Ring;

    fn deref(&self) -> &Ring {
        &self.0.ring
    }
}

impl std::ops::DerefMut for RingGuard<'_> {
    fn deref_mut(&mut self) -> &mut Ring {
        &mut self.0.ring
    }
}

impl Recorder {
    /// The smallest size in bytes. A smaller recorder would hardly hold the life of one pod.
    pub const SMALLEST: usize = 64 * 1024;

    /// A recorder that keeps about `size` bytes, at least [`SMALLEST`](Self::SMALLEST). A segment may exceed its share by one
    /// frame. Memory is allocated as it is needed.
    pub fn new(size: usize) -> Self {
        let size = size.max(Recorder::SMALLEST);
        let rings = (size / SMALLEST_RING).clamp(1, RINGS);
        Recorder::with_rings(size, rings)
    }

    pub(crate) fn with_rings(size: usize, rings: usize) -> Self {
        let notes = size / NOTES_SHARE;
        let share = (size - notes) / rings;
        let ring = || Mutex::new(PodRing { ring: Ring::new(share), settings: Default::default() });
        Recorder {
            size,
            pods: (0..rings).map(|_| ring()).collect(),
            notes: Mutex::new(notes::Notes::new(notes)),
            next: AtomicU32::new(1),
        }
    }

    /// The number of the next record. Records with consecutive numbers are in different rings.
    pub(crate) fn next_id(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The ring of a record, ready for a frame. If the settings of the step are not those of the last settings frame, or the
    /// segment is new, a settings frame is written first.
    #[inline]
    pub(crate) fn ring(&self, id: u32, context: &StepContext) -> RingGuard<'_> {
        let mut guard = self.pods[id as usize % self.pods.len()].lock();
        let PodRing { ring, settings } = &mut *guard;
        let current = (context.resync, context.error_backoff);
        if ring.rotate() || *settings != current {
            *settings = current;
            ring.frame(FrameKind::Settings, context.now, |bytes| put(bytes, &current));
        }
        RingGuard(guard)
    }

    /// How many records may be flushed before a recording is saved. A flush takes about 160 bytes, so an eighth of the memory
    /// is enough. That is about a sixth of each ring, so no flush drops what the flush of another record relies on. Of the
    /// other pods, the recording lacks the plain rounds since their last frame, and pods whose frames were all dropped.
    pub(crate) fn most_flushed(&self) -> usize {
        self.size / (8 * 160)
    }

    /// Records a note.
    pub fn note(&self, at: Time, note: &Note) {
        self.notes.lock().put(at, note);
    }

    /// Records a plan with its inputs, unless both are the same as the last ones of the pod. The plans of a pod whose object
    /// would fill a segment are not recorded.
    pub fn planned(
        &self,
        at: Time,
        pod: &Arc<PodObject>,
        status: &PodRuntimeStatus,
        probes: &ProbeSnapshot,
        plan: &Plan,
    ) {
        // Most plans are the same as before, and all pods share this lock. So the plan is encoded before the lock is taken.
        let encoded = EncodedPlan::new(status, probes, plan);
        if self.notes.lock().put_plan(at, pod, &encoded, None) == PlanResult::NeedsObject
            && let Ok(json) = serde_json::to_string(pod.pod())
        {
            let _done = self.notes.lock().put_plan(at, pod, &encoded, Some(&json));
        }
    }

    /// Forgets the last plans of the pods for which `keep` returns false.
    pub fn retain(&self, keep: impl Fn(&PodUid) -> bool) {
        self.notes.lock().retain(keep);
    }

    /// The present content as the bytes of a file. Events may be recorded at the same time: the recording has all events of a
    /// pod up to some time, which may differ between pods.
    pub fn save(&self, now: Time) -> Vec<u8> {
        let mut rings: Vec<_> = self.pods.iter().map(|ring| ring.lock().ring.saved()).collect();
        rings.push(self.notes.lock().saved());
        file::write(now, &rings)
    }

    /// How many bytes the rings of pods have.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.pods.iter().map(|ring| ring.lock().ring.kept()).sum()
    }
}

#[cfg(test)]
mod tests;
