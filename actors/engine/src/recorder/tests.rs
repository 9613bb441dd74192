use super::*;

// A segment can be read without the segments before it, so each has the settings of its steps.
#[test]
fn a_ring_gets_the_settings_when_they_change_and_in_each_segment() {
    let recorder = Recorder::with_rings(Recorder::SMALLEST, 1);
    let context = |resync| StepContext {
        now: Time::from_secs(1),
        jitter: 0.0,
        resync: Duration::from_secs(resync),
        error_backoff: Duration::from_secs(10),
    };
    let frames = |resync| -> u32 {
        recorder.ring(1, &context(resync)).saved().segments.iter().map(|segment| segment.frames).sum()
    };
    assert_eq!([frames(60), frames(60), frames(90), frames(90)], [1, 1, 2, 2]);

    let first = recorder.ring(1, &context(90)).segment();
    let newest = loop {
        let mut ring = recorder.ring(1, &context(90));
        if ring.segment() != first {
            break ring.saved().segments.last().map(|segment| segment.frames);
        }
        ring.frame(FrameKind::Note, Time::from_secs(1), |bytes| bytes.extend_from_slice(&[7; 1_000]));
    };
    assert_eq!(newest, Some(1));
}

#[test]
fn records_with_consecutive_numbers_are_in_different_rings() {
    let recorder = Recorder::with_rings(Recorder::SMALLEST, 4);
    let numbers: Vec<usize> = (0..4).map(|_| recorder.next_id() as usize % 4).collect();
    assert_eq!(numbers.iter().collect::<std::collections::BTreeSet<_>>().len(), 4, "{numbers:?}");
}
