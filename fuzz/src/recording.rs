//! Parsing recordings of the flight recorder, which may come from untrusted sources.

use podwright_engine::replay::{Pick, Replay, replay};

/// The input is a recording. It is replayed as it is, and again with corrected checksums. Otherwise nearly every changed
/// input would fail at a checksum.
pub fn check(bytes: &[u8]) {
    run(bytes);
    let mended = mended(bytes);
    if mended != bytes {
        run(&mended);
    }
}

fn run(file: &[u8]) {
    let replayed = match replay(file, &Pick::None) {
        Ok(replayed) => replayed,
        Err(error) => {
            let text = error.to_string();
            super::assert_plain(&text, 400);
            let (offset, rest) = text.strip_prefix("byte ").and_then(|rest| rest.split_once(": ")).expect(&text);
            assert!(offset.parse::<usize>().expect(&text) <= file.len(), "{text} of {} bytes", file.len());
            let remedy = rest.split_once(": ").map(|(_, remedy)| remedy);
            assert!(remedy.is_some_and(|remedy| !remedy.is_empty()), "no remedy: {text}");
            return;
        }
    };
    assert!(replayed.span.0 <= replayed.span.1 && replayed.timeline.is_empty());
    if let Some(difference) = &replayed.difference {
        assert!(difference.offset <= file.len() && difference.number <= replayed.events);
    }
    // The selection of a pod changes only the timeline.
    let named = replayed.names.iter().next_back().cloned().map(Pick::Named);
    let differing = replayed.difference.iter().map(|difference| Pick::Uid(difference.uid.clone()));
    for pick in [Pick::None].into_iter().chain(named).chain(differing) {
        let mut again = replay(file, &pick).expect("the file can be replayed again");
        assert!(again.timeline.len() <= file.len());
        again.timeline.clear();
        assert_eq!(debug_text(&again), debug_text(&replayed));
    }
}

fn debug_text(replayed: &Replay) -> String {
    format!("{replayed:?}")
}

/// The file with correct lengths and checksums, and an end. An input that is no recording is unchanged.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let Some((start, mut rest)) = bytes.split_at_checked(10) else { return bytes.to_vec() };
    let mut file = start.to_vec();
    part(&mut file, &mut rest);
    let mut count = 0u32;
    while let Some((ring, after)) = rest.split_at_checked(2).filter(|(ring, _)| *ring != [0xff, 0xff]) {
        rest = after;
        file.extend_from_slice(ring);
        part(&mut file, &mut rest);
        count += 1;
    }
    file.extend_from_slice(&[0xff, 0xff]);
    file.extend_from_slice(&count.to_le_bytes());
    file
}

/// Copies one part: length, checksum and content. A length beyond the end of the input becomes the rest of the input.
fn part(file: &mut Vec<u8>, rest: &mut &[u8]) {
    let (head, after) = rest.split_at_checked(8).unwrap_or((&[0; 8], &[]));
    let stated = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let length = after.len().min(stated as usize);
    let (content, after) = after.split_at(length);
    file.extend_from_slice(&(length as u32).to_le_bytes());
    file.extend_from_slice(&crc32fast::hash(content).to_le_bytes());
    file.extend_from_slice(content);
    *rest = after;
}
