//! The bounded memory of a recorder: rings of segments. A segment can be read without any that came before it, so that the
//! oldest may be dropped at any time.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::time::Time;

use crate::codec::Put;

/// In so many parts a ring is dropped.
const SEGMENTS: usize = 8;
/// A segment has so much room beyond its share, in bytes, that its buffer seldom grows.
const SPARE: usize = 4 * 1024;
/// The length of a frame stands before it in so many bytes.
pub(crate) const LENGTH: usize = 3;

/// Frames of one ring, oldest first.
#[derive(Debug)]
pub(crate) struct Ring {
    /// How many bytes all segments may have; the frame that fills the last one may exceed it.
    size: usize,
    sealed: VecDeque<Arc<Segment>>,
    sealed_bytes: usize,
    open: Segment,
    /// Frames that were dropped.
    dropped: u64,
}

/// A run of frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segment {
    /// Counts up from one.
    pub(crate) number: u32,
    pub(crate) frames: u32,
    pub(crate) bytes: Vec<u8>,
    /// The time of the last frame, which the next one's is told from.
    last: Time,
}

impl Ring {
    pub(crate) fn new(size: usize) -> Self {
        let open = Segment { number: 1, bytes: Vec::with_capacity(size / SEGMENTS + SPARE), ..Segment::default() };
        Ring { size, sealed: VecDeque::new(), sealed_bytes: 0, open, dropped: 0 }
    }

    /// The number of the segment that the next frame goes into.
    pub(crate) fn segment(&self) -> u32 {
        self.open.number
    }

    /// The number of the oldest segment that is kept.
    pub(crate) fn oldest(&self) -> u32 {
        self.sealed.front().map_or(self.open.number, |segment| segment.number)
    }

    /// Begins another segment if the present one is full; answers with whether the one that the next frame goes into has
    /// none yet.
    pub(crate) fn turn(&mut self) -> bool {
        let share = self.share();
        if self.open.bytes.len() >= share {
            let mut spare = None;
            while self.sealed_bytes + self.open.bytes.len() + share > self.size
                && let Some(oldest) = self.sealed.pop_front()
            {
                self.sealed_bytes -= oldest.bytes.len();
                self.dropped += u64::from(oldest.frames);
                // The buffer is used again, unless somebody is saving it at this moment.
                if let Ok(segment) = Arc::try_unwrap(oldest) {
                    spare = Some(segment.bytes);
                }
            }
            // All of its room at once: it is not in memory before it is written to, and growing would copy it.
            let mut bytes = spare.unwrap_or_else(|| Vec::with_capacity(share + SPARE));
            bytes.clear();
            let next = Segment { number: self.open.number.wrapping_add(1).max(1), bytes, ..Segment::default() };
            let mut full = std::mem::replace(&mut self.open, next);
            // A buffer that did grow has up to twice of what is in it, which no limit would count.
            full.bytes.shrink_to(share + SPARE);
            self.sealed_bytes += full.bytes.len();
            self.sealed.push_back(Arc::new(full));
        }
        self.open.frames == 0
    }

    /// Begins a frame. What it says is appended behind kind and time.
    #[inline]
    pub(crate) fn begin(&mut self, kind: u8, at: Time) -> Frame<'_> {
        let Segment { bytes, last, frames, .. } = &mut self.open;
        let start = bytes.len();
        bytes.raw(&[0, 0, 0, kind]);
        bytes.time(*last, at);
        Frame { bytes, start, at, last, frames }
    }

    /// Appends one frame. `write` is given the buffer behind kind and time.
    pub(crate) fn frame(&mut self, kind: u8, at: Time, write: impl FnOnce(&mut Vec<u8>)) {
        let frame = self.begin(kind, at);
        write(frame.bytes);
        frame.end();
    }

    /// How many bytes an object may have that is written in one frame: it must not take the place of all else, and the
    /// length of its frame must be told in [`LENGTH`] bytes.
    pub(crate) fn most(&self) -> usize {
        self.share().min(1 << (8 * LENGTH - 1))
    }

    /// How many bytes a segment has before the next one begins.
    fn share(&self) -> usize {
        self.size / SEGMENTS
    }

    /// What is kept now: the sealed segments are shared, the open one is copied.
    pub(crate) fn saved(&self) -> Saved {
        let open = (self.open.frames > 0).then(|| Arc::new(self.open.clone()));
        Saved { segments: self.sealed.iter().cloned().chain(open).collect(), dropped: self.dropped }
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.sealed_bytes + self.open.bytes.len()
    }
}

/// A frame that is being written. Unless it is [ended](Frame::end), as when a panic goes through, nothing of it stays.
#[must_use]
pub(crate) struct Frame<'a> {
    pub(crate) bytes: &'a mut Vec<u8>,
    start: usize,
    at: Time,
    last: &'a mut Time,
    frames: &'a mut u32,
}

impl Frame<'_> {
    /// All of it is there.
    #[inline]
    pub(crate) fn end(mut self) {
        let Frame { bytes, start, at, last, frames } = &mut self;
        let length = (bytes.len() - *start - LENGTH).to_le_bytes();
        if let Some(place) = bytes.get_mut(*start..*start + LENGTH) {
            place.copy_from_slice(&length[..LENGTH]);
        }
        **last = *at;
        **frames += 1;
        *start = bytes.len();
    }
}

impl Drop for Frame<'_> {
    #[inline]
    fn drop(&mut self) {
        self.bytes.truncate(self.start);
    }
}

/// A ring as it stood at one instant.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) dropped: u64,
}
