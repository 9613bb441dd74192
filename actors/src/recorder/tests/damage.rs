//! Files that are not what they should be.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use proptest::prelude::*;

use crate::codec::Put;
use crate::ids::PodUid;
use crate::recorder::capture::frame;
use crate::recorder::{Note, ReadError, Recorder, Ring, SourceChange};
use crate::replay::{Pick, replay};
use crate::testing::pod;
use crate::time::Time;

const NOW: Time = Time::from_secs(1_000);

/// A recording with every kind of frame, and where its parts begin.
fn file() -> Vec<u8> {
    use crate::containers::plan;
    use crate::pod_worker::step::{Event, Outcome, StepContext};
    use crate::pod_worker::{KillOptions, Update};
    use crate::ports::{Blame, Observed, PodRuntimeStatus, SyncRetry};
    use crate::probes::{ProbeKind, ProbeResult, ProbeSnapshot};
    use crate::recorder::capture::EventCapture;

    let recorder = Recorder::with_rings(64 * 1024, 2);
    let object = pod("a").static_pod().build();
    let uid = object.uid().clone();
    let mut now = Time::from_secs(1_000);
    let mut tick = || {
        now = now + Duration::from_secs(1);
        StepContext { now, jitter: 0.25, resync: Duration::from_secs(60), error_backoff: Duration::from_secs(10) }
    };
    let (mut capture, mut record, _effects) =
        EventCapture::birth(Some(&recorder), Update::create(object.clone()), Observed::Never, tick());
    let take = || Event::Take { may_start: true, observed: Observed::Running };
    let well = || Event::Done(Outcome::Continues { check_at: None });
    let failed = Outcome::Failed { error: "disk full".to_owned(), retry: SyncRetry::Backoff, blame: Blame::Nothing };
    let again = || Event::Update(Update::sync(object.clone()));
    let kill = Update::kill(object.clone()).with_options(KillOptions { evict: true, ..KillOptions::default() });
    for event in [take(), well(), again(), take(), well(), again(), take(), Event::Done(failed), Event::Update(kill)] {
        let _effects = capture.drive(Some(&recorder), &uid, &mut record, event, tick());
    }
    let (seen, probes) = (PodRuntimeStatus::default(), ProbeSnapshot::new());
    recorder.planned(now, &object, &seen, &probes, &plan(&object, &seen, &probes));
    let full_name = object.full_name().clone();
    let (kind, result) = (ProbeKind::Liveness, ProbeResult::Failure);
    recorder.note(now, &Note::AgentStarted { build: "b".to_owned(), node: "n".to_owned() });
    let source = "file".to_owned();
    recorder.note(now, &Note::Source { uid: uid.clone(), pod: full_name, source, change: SourceChange::Added });
    recorder.note(now, &Note::Probe { uid, container: "main".to_owned(), kind, result });
    let error = Some("silent".to_owned());
    recorder.note(now, &Note::Pass { desired: 1, known: 1, listed: 0, took: Duration::from_millis(2), error });
    recorder.save(now)
}

/// A file of one ring with what `write` puts into it; its checksums match.
fn forged(write: impl FnOnce(&mut Ring)) -> Vec<u8> {
    let mut ring = Ring::new(1 << 20);
    ring.frame(frame::SETTINGS, NOW, |bytes| {
        bytes.duration(Duration::from_secs(60));
        bytes.duration(Duration::from_secs(10));
    });
    write(&mut ring);
    crate::recorder::file::write(NOW, &[ring.saved()])
}

/// A keyframe of the record with this number: the pod stops, and so many wait for its end.
fn stopping(ring: &mut Ring, id: u64, waiters: u64) {
    ring.frame(frame::KEYFRAME, NOW, |bytes| {
        [id, 0, 0, 0].into_iter().for_each(|number| bytes.number(number));
        bytes.uid(&PodUid::new("a"));
        // Not started, without flags or a grace.
        [2, 0, 0, 0, 0, 0].into_iter().for_each(|byte| bytes.byte(byte));
        bytes.number(waiters);
        // No edit of the status, nothing pending, no hook that runs, no due time, no failure; one move.
        [0, 0, 0, 0, 0, 1, 0, 0].into_iter().for_each(|byte| bytes.byte(byte));
    });
}

// Each of them would be made by a replay, thousands for a few bytes.
#[test]
fn more_waiters_than_are_ever_told_of_are_refused() {
    let run = replay(&forged(|ring| stopping(ring, 1, 16)), &Pick::Nobody).unwrap();
    assert_eq!((run.difference, run.pods), (None, 1));
    let error = replay(&forged(|ring| stopping(ring, 1, 17)), &Pick::Nobody).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { what: "a believable number of waiters", .. }), "{error}");
}

// A text is kept and told with each event that repeats it.
#[test]
fn a_text_that_is_longer_than_any_that_is_written_is_refused() {
    let stops = |length| forged(|ring| ring.frame(33, NOW, |bytes| bytes.long_text(&"x".repeat(length))));
    assert!(replay(&stops(1024), &Pick::Nobody).is_ok());
    let error = replay(&stops(1025), &Pick::Nobody).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { what: "why the agent stops", .. }), "{error}");
}

#[test]
fn a_ring_beyond_those_of_a_recorder_is_refused() {
    let with = |rings| {
        let rings: Vec<_> = (0..rings)
            .map(|_| {
                let mut ring = Ring::new(1 << 20);
                ring.frame(33, NOW, |bytes| bytes.text("done"));
                ring.saved()
            })
            .collect();
        replay(&crate::recorder::file::write(NOW, &rings), &Pick::Nobody)
    };
    assert!(with(9).is_ok(), "eight for pods and one for notes");
    let error = with(10).unwrap_err();
    assert!(matches!(error, ReadError::Damaged { what: "a segment of a known ring", .. }), "{error}");
}

// What was kept before and after it can be replayed all the same.
#[test]
fn a_frame_that_a_panic_interrupts_leaves_nothing() {
    let file = forged(|ring| {
        let broken = catch_unwind(AssertUnwindSafe(|| {
            ring.frame(33, NOW + Duration::from_secs(9), |bytes| {
                bytes.text("half of it");
                panic!("as a core that fails");
            });
        }));
        assert!(broken.is_err());
        stopping(ring, 1, 0);
    });
    let run = replay(&file, &Pick::Nobody).unwrap();
    assert_eq!((run.pods, run.span), (1, (NOW, NOW)));
}

/// Makes all checksums match again, as far as the parts can be found.
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
    let run = replay(&file, &Pick::Nobody).unwrap();
    assert_eq!((run.difference, run.pods, run.plans, run.events), (None, 1, 1, 9));
}

#[test]
fn a_file_that_is_cut_off_says_where() {
    let file = file();
    for length in 0..file.len() {
        let error = replay(&file[..length], &Pick::Nobody).unwrap_err();
        match error {
            ReadError::Foreign => assert!(length < 8, "{length}"),
            ReadError::CutOff { offset, .. } => assert!(offset <= length, "{error} of {length}"),
            _ => panic!("{error} of {length}"),
        }
    }
}

#[test]
fn what_follows_the_end_is_refused() {
    let (file, length) = (file(), file().len());
    let error = replay(&[&file[..], &file].concat(), &Pick::Nobody).unwrap_err();
    assert_eq!(error, ReadError::Trailing { offset: length, more: length });
}

#[test]
fn a_changed_byte_is_found() {
    let file = file();
    for place in 0..file.len() {
        let mut changed = file.clone();
        changed[place] ^= 0x10;
        let error = replay(&changed, &Pick::Nobody).expect_err("a changed byte").to_string();
        assert!(error.starts_with("byte "), "{error}");
    }
}

#[test]
fn another_format_and_another_kind_of_file_are_told() {
    let mut newer = file();
    newer[8] = 3;
    let error = replay(&newer, &Pick::Nobody).unwrap_err().to_string();
    assert!(error.contains("has format 3, which podwright 0.1.0 wrote; this build reads format 2"), "{error}");
    for foreign in [&b""[..], b"{\"kind\":\"Pod\"}", &[0; 100]] {
        assert_eq!(replay(foreign, &Pick::Nobody).unwrap_err(), ReadError::Foreign);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    // With right checksums the damage reaches the frames: it is refused or makes a difference, and never panics.
    #[test]
    fn no_bytes_make_a_replay_panic(changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6)) {
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
