//! The bounded memory of a recorder: rings of segments. A segment can be read without the segments before it, so the oldest
//! one may be dropped at any time. Pure.

use std::collections::VecDeque;
use std::sync::Arc;

use super::FrameKind;
use crate::codec::Delta;
use crate::time::Time;

/// How many segments a full ring has.
const SEGMENTS: usize = 8;
/// The room in bytes that a segment has beyond its share, so that its buffer seldom grows.
const SPARE: usize = 4 * 1024;
/// The number of bytes that hold the length of a frame.
pub(crate) const LENGTH: usize = 3;

/// The frames of one ring, oldest first.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The most bytes of all segments. The frame that fills the last one may exceed it.
    size: usize,
    sealed: VecDeque<Arc<Segment>>,
    sealed_bytes: usize,
    open: Segment,
    /// How many frames were dropped.
    dropped: u64,
}

/// A run of frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segment {
    /// The first segment has number one.
    pub(crate) number: u32,
    pub(crate) frames: u32,
    pub(crate) bytes: Vec<u8>,
    /// The time of the last frame. The next frame has the difference to it.
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

    /// Whether a segment is kept and is in the newer half of the ring. Such a segment stays while three
    /// eighths of the ring are written.
    pub(crate) fn is_recent(&self, segment: u32) -> bool {
        let oldest = self.sealed.front().map_or(self.open.number, |oldest| oldest.number);
        let newer = self.sealed.iter().filter(|sealed| sealed.number >= segment);
        let bytes = newer.map(|sealed| sealed.bytes.len()).sum::<usize>() + self.open.bytes.len();
        segment >= oldest && bytes <= self.size / 2
    }

    /// Begins another segment if the present one is full. Returns whether the segment that the next frame goes into is empty.
    #[inline]
    pub(crate) fn rotate(&mut self) -> bool {
        if self.open.bytes.len() >= self.share() {
            self.begin_segment();
        }
        self.open.frames == 0
    }

    #[cold]
    fn begin_segment(&mut self) {
        let share = self.share();
        let mut spare = None;
        while self.sealed_bytes + self.open.bytes.len() + share > self.size
            && let Some(oldest) = self.sealed.pop_front()
        {
            self.sealed_bytes -= oldest.bytes.len();
            self.dropped += u64::from(oldest.frames);
            // The buffer is used again, unless the segment is just being saved.
            if let Ok(segment) = Arc::try_unwrap(oldest) {
                spare = Some(segment.bytes);
            }
        }
        // The whole capacity at once: pages take no memory before they are written to, and growing would copy them.
        let mut bytes = spare.unwrap_or_else(|| Vec::with_capacity(share + SPARE));
        bytes.clear();
        let next = Segment { number: self.open.number.wrapping_add(1).max(1), bytes, ..Segment::default() };
        let mut full = std::mem::replace(&mut self.open, next);
        // A buffer that grew may have twice the room of its content, which no limit would count.
        full.bytes.shrink_to(share + SPARE);
        self.sealed_bytes += full.bytes.len();
        self.sealed.push_back(Arc::new(full));
    }

    /// Begins a frame. The caller appends its content after kind and time.
    #[inline]
    pub(crate) fn begin(&mut self, kind: FrameKind, at: Time) -> Frame<'_> {
        let Segment { bytes, last, frames, .. } = &mut self.open;
        let start = bytes.len();
        bytes.extend_from_slice(&[0, 0, 0, kind as u8]);
        Delta::new(*last, at).put(bytes);
        Frame { bytes, start, at, last, frames }
    }

    /// Appends one frame. `write` appends its content after kind and time.
    pub(crate) fn frame(&mut self, kind: FrameKind, at: Time, write: impl FnOnce(&mut Vec<u8>)) {
        let frame = self.begin(kind, at);
        write(frame.bytes);
        frame.end();
    }

    /// The most bytes of an object in a frame: it must not fill more than a segment, and the length of its frame must fit in
    /// [`LENGTH`] bytes.
    pub(crate) fn largest_object(&self) -> usize {
        self.share().min(1 << (8 * LENGTH - 1))
    }

    /// The number of bytes after which the next segment begins.
    fn share(&self) -> usize {
        self.size / SEGMENTS
    }

    /// The present content. The sealed segments are shared, the open one is copied.
    pub(crate) fn saved(&self) -> Saved {
        let open = (self.open.frames > 0).then(|| Arc::new(self.open.clone()));
        Saved { segments: self.sealed.iter().cloned().chain(open).collect(), dropped: self.dropped }
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.sealed_bytes + self.open.bytes.len()
    }
}

/// A frame that is being written. If it is dropped before [`end`](Frame::end), as by a panic, nothing of it stays.
#[must_use]
pub(crate) struct Frame<'a> {
    pub(crate) bytes: &'a mut Vec<u8>,
    start: usize,
    at: Time,
    last: &'a mut Time,
    frames: &'a mut u32,
}

impl Frame<'_> {
    /// Completes the frame.
    #[inline]
    pub(crate) fn end(mut self) {
        let Frame { bytes, start, at, last, frames } = &mut self;
        let length = (bytes.len() - *start - LENGTH).to_le_bytes();
        if let Some(placeholder) = bytes.get_mut(*start..*start + LENGTH) {
            placeholder.copy_from_slice(&length[..LENGTH]);
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

/// The content of a ring at one time.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) segments: Vec<Arc<Segment>>,
    pub(crate) dropped: u64,
}

#[cfg(test)]
mod tests;
