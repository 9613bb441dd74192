use super::*;

const SIZE: usize = 8 * 1024;

/// Writes a frame of about a hundred bytes, as a recorder does.
fn write(ring: &mut Ring, second: u64) {
    ring.rotate();
    ring.frame(FrameKind::Note, Time::from_secs(second), |bytes| bytes.extend_from_slice(&[7; 100]));
}

fn frames(saved: &Saved) -> u64 {
    saved.segments.iter().map(|segment| u64::from(segment.frames)).sum()
}

#[test]
fn a_full_ring_drops_its_oldest_segments_and_counts_their_frames() {
    let mut ring = Ring::new(SIZE);
    for second in 1..=1_000 {
        write(&mut ring, second);
        // The frame that fills a segment may exceed the size.
        assert!(ring.kept() <= SIZE + 200, "{} bytes after {second} frames", ring.kept());
    }
    assert!(ring.kept() > SIZE / 2, "{} bytes", ring.kept());

    let saved = ring.saved();
    let numbers: Vec<u32> = saved.segments.iter().map(|segment| segment.number).collect();
    assert!(numbers[0] > 1 && numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
    assert_eq!(numbers.last(), Some(&ring.segment()));
    assert_eq!(frames(&saved) + saved.dropped, 1_000);
}

// A panic while a frame is written must not damage the recording.
#[test]
fn nothing_stays_of_a_frame_that_is_not_completed() {
    let (mut ring, mut other) = (Ring::new(SIZE), Ring::new(SIZE));
    write(&mut ring, 1);
    write(&mut other, 1);
    let frame = ring.begin(FrameKind::Event, Time::from_secs(2));
    frame.bytes.extend_from_slice(b"half of an event");
    drop(frame);
    write(&mut ring, 3);
    write(&mut other, 3);

    let (saved, expected) = (ring.saved(), other.saved());
    assert_eq!(saved.segments[0].bytes, expected.segments[0].bytes);
    assert_eq!((frames(&saved), saved.segments.len()), (2, 1));
}

#[test]
fn a_segment_is_recent_in_the_newer_half_of_the_ring() {
    let mut ring = Ring::new(SIZE);
    (1..=200).for_each(|second| write(&mut ring, second));
    let recent: Vec<u32> = (0..=ring.segment()).filter(|segment| ring.is_recent(*segment)).collect();
    assert_eq!(recent.last(), Some(&ring.segment()));

    let saved = ring.saved();
    let bytes: usize =
        saved.segments.iter().filter(|kept| recent.contains(&kept.number)).map(|kept| kept.bytes.len()).sum();
    assert!(SIZE / 4 < bytes && bytes <= SIZE / 2, "{bytes} bytes in {recent:?}");
    assert!(recent.len() < saved.segments.len(), "{recent:?}");
}
