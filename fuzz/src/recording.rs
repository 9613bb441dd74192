//! Recordings of the flight recorder: files that come from anywhere.

use podwright::actors::replay::{Pick, Replay, replay};

/// As they are; and again with checksums that match, without which nearly all that is changed would stop at one.
pub fn check(bytes: &[u8]) {
    run(bytes);
    let mended = mended(bytes);
    if mended != bytes {
        run(&mended);
    }
}

fn run(file: &[u8]) {
    let told = match replay(file, &Pick::Nobody) {
        Ok(told) => told,
        Err(error) => {
            let text = error.to_string();
            super::assert_plain(&text, 400);
            let (place, rest) = text.strip_prefix("byte ").and_then(|rest| rest.split_once(": ")).expect(&text);
            assert!(place.parse::<usize>().expect(&text) <= file.len(), "{text} of {} bytes", file.len());
            let remedy = rest.split_once(": ").map(|(_, remedy)| remedy);
            assert!(remedy.is_some_and(|remedy| !remedy.is_empty()), "no remedy: {text}");
            return;
        }
    };
    assert!(told.span.0 <= told.span.1 && told.timeline.is_empty());
    if let Some(difference) = &told.difference {
        assert!(difference.offset <= file.len() && difference.number <= told.events);
    }
    // Whose timeline is told makes no difference to what is reached, and nothing else does.
    let named = told.names.iter().next_back().cloned().map(Pick::Named);
    let differing = told.difference.iter().map(|difference| Pick::Uid(difference.uid.clone()));
    for pick in [Pick::Nobody].into_iter().chain(named).chain(differing) {
        let mut again = replay(file, &pick).expect("what was read once is read again");
        assert!(again.timeline.len() <= file.len());
        again.timeline.clear();
        assert_eq!(said(&again), said(&told));
    }
}

fn said(told: &Replay) -> String {
    format!("{told:?}")
}

/// The file with lengths that are there, checksums that match, and an end. What does not look like a recording stays.
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

/// A length, a checksum and what they are of. What is longer than the rest is the rest.
fn part(file: &mut Vec<u8>, rest: &mut &[u8]) {
    let (head, after) = rest.split_at_checked(8).unwrap_or((&[0; 8], &[]));
    let said = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let length = after.len().min(said as usize);
    let (content, after) = after.split_at(length);
    file.extend_from_slice(&(length as u32).to_le_bytes());
    file.extend_from_slice(&crc32fast::hash(content).to_le_bytes());
    file.extend_from_slice(content);
    *rest = after;
}
