//! The replay of a recording: it runs the recorded events through the cores again and compares the states. Pure.

mod event_text;
mod pods;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::codec::{Delta, Reader};
use crate::containers::plan::plan;
use crate::ids::{FullName, PodUid};
use crate::pod::PodObject;
use crate::pod_worker::Lifecycle;
use crate::recorder::file::{self, ReadError};
use crate::recorder::planned::{Recorded, canonical, describe};
use crate::recorder::{FrameKind, Note};
use crate::time::Time;
use pods::{Pods, StateDifference};

/// The pods whose timeline is requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pick {
    /// No pod.
    #[default]
    None,
    /// Every pod that had this full name.
    Named(FullName),
    /// One pod.
    Uid(PodUid),
}

/// The result of a replay.
#[derive(Clone, Debug)]
#[must_use]
pub struct Replay {
    /// The build that made the recording.
    pub build: String,
    /// When the recording was saved.
    pub saved_at: Time,
    /// The times of the first and the last event; the time of saving if there are no events.
    pub span: (Time, Time),
    /// How many events were run again, with those that were only counted.
    pub events: u64,
    /// How many plans were made again.
    pub plans: u64,
    /// How many pods have an event.
    pub pods: usize,
    /// How many older frames were dropped.
    pub dropped: u64,
    /// The first state or plan that differs from the recorded one.
    pub difference: Option<Difference>,
    /// The full names of all pods, sorted. A caller that finds no pod can suggest one.
    pub names: Vec<FullName>,
    /// The events of the picked pods, in order.
    pub timeline: Vec<Line>,
}

/// A state or plan that differs from the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the event; the first one is 1.
    pub number: u64,
    /// The end of its frame, in bytes from the start of the file.
    pub offset: usize,
    /// The time of the event.
    pub at: Time,
    /// The pod's UID.
    pub uid: PodUid,
    /// The pod's full name, if the recording has it.
    pub pod: Option<FullName>,
    /// The event, as a phrase.
    pub event: String,
    /// The recorded state or plan.
    pub expected: String,
    /// The state or plan of the replay.
    pub got: String,
}

/// One event of a pod or of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The number of events up to this one.
    pub number: u64,
    /// When it happened.
    pub at: Time,
    /// The pod's UID; `None` for an event of the agent.
    pub uid: Option<PodUid>,
    /// The event with its reason and effects, as a phrase.
    pub event: String,
    /// The pod's lifecycle before the event.
    pub before: Option<Lifecycle>,
    /// The pod's lifecycle after the event.
    pub after: Option<Lifecycle>,
    /// What the pod waits for after the event, as a phrase.
    pub waits: Option<String>,
}

/// Runs a recording again. Memory use is in proportion to the number of pods and the length of the requested timeline. No
/// input makes it panic.
///
/// # Errors
/// [`ReadError`] if the bytes are not a complete recording of this format.
pub fn replay(bytes: &[u8], pick: &Pick) -> Result<Replay, ReadError> {
    let file = file::read(bytes)?;
    let mut run = ReplayRun {
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
        pods: Pods::new(*pick != Pick::None),
        objects: HashMap::new(),
        names: HashMap::new(),
        seen: HashSet::new(),
    };
    // The events of all rings are merged by time. The events of one ring keep their order.
    let mut cursors = Vec::new();
    for (ring, segments) in file.rings.into_iter().enumerate() {
        cursors.extend(Cursor::new(ring, segments)?);
    }
    let mut first = true;
    while let Some(next) = (0..cursors.len()).min_by_key(|index| cursors[*index].at) {
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

/// A position in the frames of one ring.
struct Cursor<'a> {
    ring: usize,
    segments: std::vec::IntoIter<Reader<'a>>,
    segment: Reader<'a>,
    at: Time,
    kind: FrameKind,
    frame: Reader<'a>,
}

impl<'a> Cursor<'a> {
    /// The first frame of a ring; `None` if the ring has no frames.
    fn new(ring: usize, segments: Vec<Reader<'a>>) -> Result<Option<Self>, ReadError> {
        let (segment, frame) = (Reader::new(&[], 0), Reader::new(&[], 0));
        let (segments, kind) = (segments.into_iter(), FrameKind::Settings);
        let mut cursor = Cursor { ring, segments, segment, at: Time::ZERO, kind, frame };
        Ok(cursor.advance()?.then_some(cursor))
    }

    fn advance(&mut self) -> Result<bool, ReadError> {
        while self.segment.is_empty() {
            let Some(next) = self.segments.next() else { return Ok(false) };
            self.segment = next;
            self.at = Time::ZERO;
        }
        (self.kind, self.frame) = file::frame(&mut self.segment)?;
        self.at = self.frame.take::<Delta>("the time of a frame")?.after(self.at);
        Ok(true)
    }
}

/// A running replay.
struct ReplayRun<'a> {
    replay: Replay,
    pick: &'a Pick,
    number: u64,
    pods: Pods,
    /// The objects that plans are made for.
    objects: HashMap<PodUid, Arc<PodObject>>,
    names: HashMap<PodUid, FullName>,
    seen: HashSet<PodUid>,
}

impl ReplayRun<'_> {
    fn frame(&mut self, ring: usize, at: Time, kind: FrameKind, mut frame: Reader<'_>) -> Result<(), ReadError> {
        let reader = &mut frame;
        match kind {
            FrameKind::Plan => {
                let recorded = Recorded::read(reader)?;
                self.plan(at, reader.offset(), recorded)?;
            }
            FrameKind::Note => {
                let note = reader.take("a note")?;
                self.note(at, &note);
            }
            FrameKind::Settings | FrameKind::Keyframe | FrameKind::Rounds | FrameKind::NewRecord | FrameKind::Event => {
                self.pod(ring, at, kind, reader)?
            }
        }
        if !reader.is_empty() {
            return reader.missing("the end of a frame").map_err(ReadError::from);
        }
        Ok(())
    }

    fn pod(&mut self, ring: usize, at: Time, kind: FrameKind, reader: &mut Reader<'_>) -> Result<(), ReadError> {
        let Some(result) = self.pods.frame(ring, at, kind, reader)? else { return Ok(()) };
        self.number += u64::from(result.events);
        self.replay.events += u64::from(result.events);
        let name = result.name.or_else(|| self.names.get(&result.uid).cloned());
        if let Some(name) = &name {
            self.names.insert(result.uid.clone(), name.clone());
        }
        self.seen.insert(result.uid.clone());
        if let Some(difference) = result.difference {
            self.differ(at, reader.offset(), &result.uid, name.clone(), &result.event, difference);
        }
        if self.picks(&result.uid, name.as_ref()) {
            self.replay.timeline.push(Line {
                number: self.number,
                at,
                uid: Some(result.uid),
                event: result.event,
                before: result.before,
                after: result.after,
                waits: result.waits,
            });
        }
        Ok(())
    }

    fn plan(&mut self, at: Time, offset: usize, recorded: Recorded) -> Result<(), ReadError> {
        let Recorded { uid, pod, status, probes, plan: expected } = recorded;
        if let Some(pod) = pod {
            self.objects.insert(uid.clone(), pod);
        }
        let Some(pod) = self.objects.get(&uid).cloned() else {
            return Err(ReadError::Damaged { offset, what: "a plan whose pod an earlier frame has" });
        };
        let made = plan(&pod, &status, &probes);
        self.number += 1;
        self.replay.plans += 1;
        self.replay.events += 1;
        let name = Some(pod.full_name().clone());
        let event = format!("plan: {}", describe(&made, &pod, &status));
        let got = canonical(&made);
        if got != expected {
            self.differ(at, offset, &uid, name.clone(), &event, StateDifference { expected, got });
        }
        if self.picks(&uid, name.as_ref()) {
            self.push(at, Some(uid), event);
        }
        Ok(())
    }

    fn note(&mut self, at: Time, note: &Note) {
        if let Note::Source { uid, pod, .. } | Note::Admission { uid, pod, .. } = note {
            self.names.insert(uid.clone(), pod.clone());
        }
        match note.uid().cloned() {
            Some(uid) => {
                let name = self.names.get(&uid).cloned();
                if self.picks(&uid, name.as_ref()) {
                    self.push(at, Some(uid), note.describe());
                }
            }
            None if *self.pick != Pick::None => self.push(at, None, note.describe()),
            None => {}
        }
    }

    fn push(&mut self, at: Time, uid: Option<PodUid>, event: String) {
        let number = self.number;
        self.replay.timeline.push(Line { number, at, uid, event, before: None, after: None, waits: None });
    }

    fn picks(&self, uid: &PodUid, name: Option<&FullName>) -> bool {
        match self.pick {
            Pick::None => false,
            Pick::Named(picked) => name == Some(picked),
            Pick::Uid(picked) => uid == picked,
        }
    }

    /// Keeps the first difference.
    fn differ(
        &mut self,
        at: Time,
        offset: usize,
        uid: &PodUid,
        pod: Option<FullName>,
        event: &str,
        StateDifference { expected, got }: StateDifference,
    ) {
        let (uid, event) = (uid.clone(), event.to_owned());
        let difference = Difference { number: self.number, offset, at, uid, pod, event, expected, got };
        self.replay.difference.get_or_insert(difference);
    }
}
