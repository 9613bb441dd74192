//! Files that are not what they should be.

use proptest::prelude::*;

use crate::recorder::{Note, Pick, ReadError, Recorder, SourceChange, replay};
use crate::testing::pod;
use crate::time::Time;

/// A recording with every kind of frame, and where its parts begin.
fn file() -> Vec<u8> {
    use crate::containers::plan;
    use crate::pod_worker::step::{Event, Outcome, Tick};
    use crate::pod_worker::tape::Tape;
    use crate::pod_worker::{KillOptions, Update};
    use crate::ports::{Observed, PodRuntimeStatus, SyncRetry};
    use crate::probes::{ProbeKind, ProbeResult, ProbeSnapshot};
    use std::time::Duration;

    let recorder = Recorder::with_rings(64 * 1024, 2);
    let object = pod("a").static_pod().build();
    let uid = object.uid().clone();
    let mut now = Time::from_secs(1_000);
    let mut tick = || {
        now = now + Duration::from_secs(1);
        Tick { now, jitter: 0.25, resync: Duration::from_secs(60), error_backoff: Duration::from_secs(10) }
    };
    let (mut tape, mut record, _effects) =
        Tape::birth(Some(&recorder), Update::create(object.clone()), Observed::Never, tick());
    let take = || Event::Take { may_start: true, observed: Observed::Running };
    let well = || Event::Done(Outcome::Continues { check_at: None });
    let failed = Outcome::Failed { error: "disk full".to_owned(), retry: SyncRetry::Backoff };
    let again = || Event::Update(Update::sync(object.clone()));
    let kill = Update::kill(object.clone()).with_options(KillOptions { evict: true, ..KillOptions::default() });
    for event in [take(), well(), again(), take(), well(), again(), take(), Event::Done(failed), Event::Update(kill)] {
        let _effects = tape.drive(Some(&recorder), &uid, &mut record, event, tick());
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
