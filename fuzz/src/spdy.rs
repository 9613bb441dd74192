//! Frames of SPDY, as clients of the node API send them.

use podwright::agent::spdy::{DecodeError, Decoder, Encoder, Frame, MAX_BLOCK_BYTES, MAX_CONTROL_BYTES};

/// The most bytes in one part of a data frame.
const MAX_PART: usize = 32 << 10;

/// Frames are bounded, do not depend on how the bytes arrive, and are read back as they are written.
pub fn check(bytes: &[u8]) {
    let (whole, error) = decode(bytes, bytes.len().max(1));
    for frame in &whole {
        match frame {
            Frame::Data { bytes, .. } => assert!(bytes.len() <= MAX_PART),
            Frame::SynStream { headers, .. } | Frame::SynReply { headers, .. } | Frame::Headers { headers, .. } => {
                let size: usize = headers.0.iter().map(|(name, value)| name.len() + value.len()).sum();
                assert!(size <= MAX_BLOCK_BYTES);
            }
            _ => {}
        }
    }
    if let Some(DecodeError::TooLong(length)) = error {
        assert!(length > MAX_CONTROL_BYTES);
    }
    let step = usize::from(bytes.first().copied().unwrap_or(1)).max(1);
    let (parts, parts_error) = decode(bytes, step);
    assert_eq!((joined(&whole), error), (joined(&parts), parts_error), "in steps of {step}");

    let (mut encoder, mut written) = (Encoder::default(), Vec::new());
    whole.iter().for_each(|frame| encoder.append(frame, &mut written));
    let (read, error) = decode(&written, written.len().max(1));
    assert_eq!(error, None);
    let sent: Vec<Frame> = whole.into_iter().filter(|frame| *frame != Frame::Ignored).collect();
    assert_eq!(read, sent);
}

/// The frames that arrive in steps, up to the first error.
fn decode(bytes: &[u8], step: usize) -> (Vec<Frame>, Option<DecodeError>) {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for part in bytes.chunks(step) {
        decoder.feed(part);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

/// The frames with the parts of each data frame as one.
fn joined(frames: &[Frame]) -> Vec<Frame> {
    let mut joined: Vec<Frame> = Vec::new();
    for frame in frames {
        match (joined.last_mut(), frame) {
            (
                Some(Frame::Data { stream: last, bytes, fin: fin @ false }),
                Frame::Data { stream, bytes: more, fin: ends },
            ) if last == stream => {
                bytes.extend(more);
                *fin = *ends;
            }
            _ => joined.push(frame.clone()),
        }
    }
    joined
}
