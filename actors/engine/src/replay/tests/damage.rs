//! Files that are damaged, cut off, or forged.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use proptest::prelude::*;

use crate::codec::put;
use crate::ids::PodUid;
use crate::pod_worker::state::{Flags, Record, State, Stop, Terminating, Work};
use crate::pod_worker::{Cause, History, Notifier};
use crate::recorder::capture::{Keyframe, RoundCounts};
use crate::recorder::{AdmissionNote, FrameKind, Note, ReadError, Recorder, Ring, SourceChange};
use crate::replay::{Pick, replay};
use crate::testing::pod;
use crate::time::{Grace, Time};

const NOW: Time = Time::from_secs(1_000);

/// A recording with every kind of frame.
fn file() -> Vec<u8> {
    use crate::containers::plan::plan;
    use crate::pod_worker::step::{Event, Outcome, StepContext};
    use crate::pod_worker::{KillOptions, Update};
    use crate::ports::{FailureCause, Observed, PodRuntimeStatus, SyncRetry};
    use crate::probes::{ProbeKind, ProbeResult, ProbeSnapshot};
    use crate::recorder::capture::EventCapture;

    let recorder = Recorder::with_rings(64 * 1024, 2);
    let object = pod("a").static_pod().build();
    let uid = object.uid().clone();
    let mut now = Time::from_secs(1_000);
    let mut context = || {
        now = now + Duration::from_secs(1);
        StepContext { now, jitter: 0.25, resync: Duration::from_secs(60), error_backoff: Duration::from_secs(10) }
    };
    let (mut capture, mut record, _effects) =
        EventCapture::new_record(Some(&recorder), Update::create(object.clone()), Observed::Never, context());
    let take = || Event::Take { may_start: true, observed: Observed::Running };
    let well = || Event::Done(Outcome::Continues { check_at: None });
    let failed =
        Outcome::Failed { error: "disk full".to_owned(), retry: SyncRetry::Backoff, cause: FailureCause::Unknown };
    let again = || Event::Update(Update::sync(object.clone()));
    let kill = Update::kill(object.clone()).with_options(KillOptions { evict: true, ..KillOptions::default() });
    for event in [take(), well(), again(), take(), well(), again(), take(), Event::Done(failed), Event::Update(kill)] {
        let _effects = capture.drive(Some(&recorder), &uid, &mut record, event, &context());
    }
    let (seen, probes) = (PodRuntimeStatus::default(), ProbeSnapshot::new());
    recorder.planned(now, &object, &seen, &probes, &plan(&object, &seen, &probes));
    let full_name = object.full_name().clone();
    let (kind, result) = (ProbeKind::Liveness, ProbeResult::Failure);
    recorder.note(now, &Note::AgentStarted { build: "b".to_owned(), node: "n".to_owned() });
    for decision in [
        AdmissionNote::Admitted,
        AdmissionNote::Waits { lack: "cpu".to_owned(), victims: 1 },
        AdmissionNote::Preempted { by: full_name.clone() },
        AdmissionNote::Rejected { reason: "OutOfcpu".to_owned(), message: "too much".to_owned() },
    ] {
        recorder.note(now, &Note::Admission { uid: uid.clone(), pod: full_name.clone(), decision });
    }
    let source = "file".to_owned();
    recorder.note(now, &Note::Source { uid: uid.clone(), pod: full_name, source, change: SourceChange::Added });
    recorder.note(now, &Note::Probe { uid, container: "main".to_owned(), kind, result });
    let error = Some("silent".to_owned());
    recorder.note(now, &Note::Pass { desired: 1, known: 1, listed: 0, took: Duration::from_millis(2), error });
    recorder.save(now)
}

/// A file of one ring with the frames of `write`. Its checksums match.
fn forged(write: impl FnOnce(&mut Ring)) -> Vec<u8> {
    let mut ring = Ring::new(1 << 20);
    ring.frame(FrameKind::Settings, NOW, |bytes| put(bytes, &(Duration::from_secs(60), Duration::from_secs(10))));
    write(&mut ring);
    crate::recorder::file::write(NOW, &[ring.saved()])
}

/// A keyframe of a record with this number that is terminating and has so many waiters.
fn stopping(ring: &mut Ring, id: u32, waiters: u8) {
    let terminating = Terminating {
        stop: Stop::Unstarted { observed_runtime: false },
        flags: Flags::default(),
        grace: Grace::MIN,
        forced: false,
        notifiers: vec![Notifier::new().0],
        status_fn: None,
    };
    let record = Record {
        state: State::Terminating(Box::new(terminating)),
        pending: None,
        work: Work::Resting { due: None },
        failure: None,
        history: History::begin(NOW, Cause::FirstUpdate),
    };
    let uid = PodUid::new("a");
    let frame = |record: &Record| {
        let mut bytes = Vec::new();
        put(&mut bytes, &Keyframe::new(RoundCounts::default(), false, &uid, record, NOW));
        bytes
    };
    let (one, none) = (frame(&record), {
        let mut record = record;
        if let State::Terminating(t) = &mut record.state {
            t.notifiers.clear();
        }
        frame(&record)
    });
    // The number of waiters is the only byte in which the two differ.
    let mut bytes = one.clone();
    let at = one.iter().zip(&none).position(|(one, none)| one != none).unwrap();
    assert_eq!((bytes[at], one.len()), (1, none.len()));
    bytes[at] = waiters;
    ring.frame(FrameKind::Keyframe, NOW, |frame| {
        put(frame, &id);
        frame.extend_from_slice(&bytes);
    });
}

// A replay makes a notifier for each waiter, thousands for a few bytes.
#[test]
fn a_keyframe_with_too_many_waiters_is_refused() {
    let run = replay(&forged(|ring| stopping(ring, 1, 16)), &Pick::None).unwrap();
    assert_eq!((run.difference, run.pods), (None, 1));
    let error = replay(&forged(|ring| stopping(ring, 1, 17)), &Pick::None).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { what: "at most 16 waiters", .. }), "{error}");
}

/// A frame of a note that the agent stops.
fn agent_stops(ring: &mut Ring, why: &str) {
    ring.frame(FrameKind::Note, NOW, |bytes| put(bytes, &(1u32, why)));
}

// A replay keeps a text and prints it with each event that has it.
#[test]
fn a_recording_with_a_text_that_is_too_long_is_refused() {
    let stops = |length| forged(|ring| agent_stops(ring, &"x".repeat(length)));
    assert!(replay(&stops(1024), &Pick::None).is_ok());
    let error = replay(&stops(1025), &Pick::None).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { what: "a note", .. }), "{error}");
}

// Each count is larger than the rest of the file.
#[test]
fn a_recording_with_a_list_longer_than_the_file_is_refused() {
    let error = replay(
        &forged(|ring| ring.frame(FrameKind::Plan, NOW, |bytes| put(bytes, &(2u8, "a", None::<&str>, u64::MAX)))),
        &Pick::None,
    );
    let error = error.unwrap_err();
    assert!(matches!(error, ReadError::Damaged { what: "the status of a pod in the runtime", .. }), "{error}");
}

#[test]
fn a_recording_with_an_unknown_ring_is_refused() {
    let with = |rings| {
        let rings: Vec<_> = (0..rings)
            .map(|_| {
                let mut ring = Ring::new(1 << 20);
                agent_stops(&mut ring, "done");
                ring.saved()
            })
            .collect();
        replay(&crate::recorder::file::write(NOW, &rings), &Pick::None)
    };
    assert!(with(9).is_ok(), "eight for pods and one for notes");
    let error = with(10).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { what: "a segment of a known ring", .. }), "{error}");
}

// The frames before and after it can be replayed.
#[test]
fn a_frame_that_a_panic_interrupts_leaves_no_bytes() {
    let file = forged(|ring| {
        let broken = catch_unwind(AssertUnwindSafe(|| {
            ring.frame(FrameKind::Note, NOW + Duration::from_secs(9), |bytes| {
                put(bytes, "half of it");
                panic!("as a core that fails");
            });
        }));
        assert!(broken.is_err());
        stopping(ring, 1, 0);
    });
    let run = replay(&file, &Pick::None).unwrap();
    assert_eq!((run.pods, run.span), (1, (NOW, NOW)));
}

/// Makes the checksums of all parts match that can be found.
fn sealed(mut file: Vec<u8>) -> Vec<u8> {
    let word = |file: &[u8], at: usize| Some(u32::from_le_bytes(file.get(at..at + 4)?.try_into().ok()?) as usize);
    let mut at = 10;
    loop {
        let (Some(length), start) = (word(&file, at), at + 8) else { return file };
        let Some(content) = file.get(start..start.saturating_add(length)) else { return file };
        let sum = crc32fast::hash(content).to_le_bytes();
        file[at + 4..at + 8].copy_from_slice(&sum);
        at = start + length + 2;
        if at + 8 > file.len() {
            return file;
        }
    }
}

#[test]
fn an_undamaged_file_is_replayed() {
    let file = file();
    assert_eq!(sealed(file.clone()), file, "the checksums of this test are those of the format");
    let run = replay(&file, &Pick::None).unwrap();
    assert_eq!((run.difference, run.pods, run.plans, run.events), (None, 1, 1, 9));
}

#[test]
fn the_error_of_a_truncated_recording_has_its_offset() {
    let file = file();
    for length in 0..file.len() {
        let error = replay(&file[..length], &Pick::None).unwrap_err();
        match error {
            ReadError::Foreign => assert!(length < 8, "{length}"),
            ReadError::CutOff { offset, .. } => assert!(offset <= length, "{error} of {length}"),
            _ => panic!("{error} of {length}"),
        }
    }
}

#[test]
fn bytes_after_the_end_are_refused() {
    let (file, length) = (file(), file().len());
    let error = replay(&[&file[..], &file].concat(), &Pick::None).unwrap_err();
    assert_eq!(error, ReadError::Trailing { offset: length, more: length });
}

#[test]
fn a_changed_byte_is_found() {
    let file = file();
    for place in 0..file.len() {
        let mut changed = file.clone();
        changed[place] ^= 0x10;
        let error = replay(&changed, &Pick::None).expect_err("a changed byte").to_string();
        assert!(error.starts_with("byte "), "{error}");
    }
}

#[test]
fn other_recording_formats_and_other_files_are_refused() {
    let mut newer = file();
    newer[8] = 4;
    let error = replay(&newer, &Pick::None).unwrap_err().to_string();
    assert!(error.contains("has format 4, which podwright 0.1.0 wrote; this build reads format 3"), "{error}");
    for foreign in [&b""[..], b"{\"kind\":\"Pod\"}", &[0; 100]] {
        assert_eq!(replay(foreign, &Pick::None).unwrap_err(), ReadError::Foreign);
    }
}

proptest! {
    #![proptest_config(podwright_random::cases(3_000))]

    // The checksums match, so the damage reaches the frames. It is refused or makes a difference, and never panics.
    #[test]
    fn a_damaged_recording_never_panics_a_replay(changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6)) {
        let mut file = file();
        for (place, byte) in changes {
            let place = place.index(file.len());
            file[place] = byte;
        }
        if let Err(error) = replay(&sealed(file), &Pick::Uid("a".into())) {
            prop_assert!(error.to_string().starts_with("byte "), "{error}");
        }
    }
}
