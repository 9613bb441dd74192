//! Runs a recording through the cores again: bytes in, states out.

mod line;
mod pods;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::containers::plan;
use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::time::Time;

use crate::codec::Reader;
use crate::recorder::file::{self, ReadError};
use crate::recorder::note::{Note, PLAN};
use crate::recorder::planned::{Recorded, canonical, describe};
use pods::Pods;

pub use line::Line;

/// Whose timeline to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// Nobody's.
    #[default]
    Nobody,
    /// Of every pod that had this name.
    Named(FullName),
    /// Of one pod.
    Uid(PodUid),
}

/// What a replay came to.
#[derive(Clone, Debug)]
#[must_use]
pub struct Replay {
    /// The build that made the recording.
    pub build: String,
    /// When it was saved.
    pub saved_at: Time,
    /// The times of the first and the last event; the time of saving if there is none.
    pub span: (Time, Time),
    /// Events that were run again, those that were only counted among them.
    pub events: u64,
    /// Plans that were made again.
    pub plans: u64,
    /// Pods that have an event.
    pub pods: usize,
    /// Older frames that were not kept.
    pub dropped: u64,
    /// The first state or plan that is another one now.
    pub difference: Option<Difference>,
    /// The names that pods had, for who mistyped one.
    pub names: Vec<FullName>,
    /// What happened to the pods that were picked, in order.
    pub timeline: Vec<Line>,
}

/// A replay did not come to what was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Which event, from one.
    pub number: u64,
    /// Where its frame ends, in bytes from the start of the file.
    pub offset: usize,
    /// When it was.
    pub at: Time,
    /// The pod.
    pub uid: PodUid,
    /// Its name, as far as it is known.
    pub pod: Option<FullName>,
    /// What happened.
    pub event: String,
    /// What the recording has.
    pub expected: String,
    /// What the core says now.
    pub got: String,
}

/// Runs a recording again. Takes memory in proportion to the pods and the timeline that is asked for; no input makes it
/// panic.
///
/// # Errors
/// [`ReadError`] if the bytes are not a recording of this format, or not a whole one.
pub fn replay(bytes: &[u8], pick: &Pick) -> Result<Replay, ReadError> {
    let file = file::read(bytes)?;
    let mut run = Run {
        replay: Replay {
            build: file.build,
            saved_at: file.saved_at,
            span: (file.saved_at, file.saved_at),
            events: 0,
            plans: 0,
            pods: 0,
            dropped: file.dropped,
            difference: None,
            names: Vec::new(),
            timeline: Vec::new(),
        },
        pick,
        number: 0,
        pods: Pods::new(*pick != Pick::Nobody),
        objects: HashMap::new(),
        names: HashMap::new(),
        seen: HashSet::new(),
    };
    // Events of all rings by time; those of one ring stay in their order.
    let mut cursors = Vec::new();
    for (ring, segments) in file.rings.into_iter().enumerate() {
        cursors.extend(Cursor::new(ring, segments)?);
    }
    let mut first = true;
    while let Some(next) = (0..cursors.len()).min_by_key(|place| cursors[*place].at) {
        let cursor = &mut cursors[next];
        let at = cursor.at;
        let (start, end) = run.replay.span;
        run.replay.span = if first { (at, at) } else { (start.min(at), end.max(at)) };
        first = false;
        run.frame(cursor.ring, at, cursor.kind, cursor.frame.clone())?;
        if !cursor.advance()? {
            cursors.swap_remove(next);
        }
    }
    run.replay.pods = run.seen.len();
    run.replay.names = run.names.into_values().collect();
    run.replay.names.sort();
    run.replay.names.dedup();
    Ok(run.replay)
}

/// The frames of one ring.
struct Cursor<'a> {
    ring: usize,
    segments: std::vec::IntoIter<Reader<'a>>,
    segment: Reader<'a>,
    at: Time,
    kind: u8,
    frame: Reader<'a>,
}

impl<'a> Cursor<'a> {
    /// At the first frame; nothing for a ring without any.
    fn new(ring: usize, segments: Vec<Reader<'a>>) -> Result<Option<Self>, ReadError> {
        let nothing = Reader::new(&[], 0);
        let segments = segments.into_iter();
        let mut cursor = Cursor { ring, segments, segment: nothing.clone(), at: Time::ZERO, kind: 0, frame: nothing };
        Ok(cursor.advance()?.then_some(cursor))
    }

    fn advance(&mut self) -> Result<bool, ReadError> {
        while self.segment.is_empty() {
            let Some(next) = self.segments.next() else { return Ok(false) };
            self.segment = next;
            self.at = Time::ZERO;
        }
        (self.kind, self.frame) = file::frame(&mut self.segment)?;
        self.at = self.frame.time(self.at, "the time of a frame")?;
        Ok(true)
    }
}

/// A replay under way.
struct Run<'a> {
    replay: Replay,
    pick: &'a Pick,
    number: u64,
    pods: Pods,
    /// The pods that plans are made for.
    objects: HashMap<PodUid, Arc<PodObject>>,
    names: HashMap<PodUid, FullName>,
    seen: HashSet<PodUid>,
}

impl Run<'_> {
    fn frame(&mut self, ring: usize, at: Time, kind: u8, mut frame: Reader<'_>) -> Result<(), ReadError> {
        let reader = &mut frame;
        if kind == PLAN {
            let recorded = Recorded::read(reader)?;
            self.plan(at, reader.offset(), recorded)?;
        } else if let Some(note) = Note::read(kind, reader)? {
            self.note(at, &note);
        } else {
            let Some(told) = self.pods.frame(ring, at, kind, reader)? else { return Ok(()) };
            self.number += u64::from(told.counts);
            self.replay.events += u64::from(told.counts);
            let name = told.name.or_else(|| self.names.get(&told.uid).cloned());
            if let Some(name) = &name {
                self.names.insert(told.uid.clone(), name.clone());
            }
            self.seen.insert(told.uid.clone());
            if let (None, Some((expected, got))) = (&self.replay.difference, told.differs) {
                self.differ(at, reader.offset(), &told.uid, name.clone(), told.event.clone(), expected, got);
            }
            if self.picks(&told.uid, name.as_ref()) {
                self.replay.timeline.push(Line {
                    number: self.number,
                    at,
                    uid: Some(told.uid),
                    event: told.event,
                    before: told.before,
                    after: told.after,
                    waits: told.waits,
                });
            }
        }
        if !reader.is_empty() {
            return reader.missing("the end of a frame").map_err(ReadError::from);
        }
        Ok(())
    }

    fn plan(&mut self, at: Time, offset: usize, recorded: Recorded) -> Result<(), ReadError> {
        let Recorded { uid, pod, seen, probes, plan: expected } = recorded;
        if let Some(pod) = pod {
            self.objects.insert(uid.clone(), pod);
        }
        let Some(pod) = self.objects.get(&uid).cloned() else {
            return Err(ReadError::Damaged { offset, what: "a plan of a pod that was written before it" });
        };
        let made = plan(&pod, &seen, &probes);
        self.number += 1;
        self.replay.plans += 1;
        self.replay.events += 1;
        let name = Some(pod.full_name().clone());
        let event = format!("plan: {}", describe(&made, &pod, &seen));
        let got = canonical(&made);
        if self.replay.difference.is_none() && got != expected {
            self.differ(at, offset, &uid, name.clone(), event.clone(), expected, got);
        }
        if self.picks(&uid, name.as_ref()) {
            self.tell(at, Some(uid), event);
        }
        Ok(())
    }

    fn note(&mut self, at: Time, note: &Note) {
        if let Note::Source { uid, pod, .. } = note {
            self.names.insert(uid.clone(), pod.clone());
        }
        match note.uid().cloned() {
            Some(uid) => {
                let name = self.names.get(&uid).cloned();
                if self.picks(&uid, name.as_ref()) {
                    self.tell(at, Some(uid), note.describe());
                }
            }
            None if *self.pick != Pick::Nobody => self.tell(at, None, note.describe()),
            None => {}
        }
    }

    fn tell(&mut self, at: Time, uid: Option<PodUid>, event: String) {
        let number = self.number;
        self.replay.timeline.push(Line { number, at, uid, event, before: None, after: None, waits: None });
    }

    fn picks(&self, uid: &PodUid, name: Option<&FullName>) -> bool {
        match self.pick {
            Pick::Nobody => false,
            Pick::Named(wanted) => name == Some(wanted),
            Pick::Uid(wanted) => uid == wanted,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "they are the fields of what it makes")]
    fn differ(
        &mut self,
        at: Time,
        offset: usize,
        uid: &PodUid,
        pod: Option<FullName>,
        event: String,
        expected: String,
        got: String,
    ) {
        let uid = uid.clone();
        self.replay.difference = Some(Difference { number: self.number, offset, at, uid, pod, event, expected, got });
    }
}
