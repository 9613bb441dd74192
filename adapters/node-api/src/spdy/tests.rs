//! The codec against recorded bytes, and connections over pipes in memory.

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;
use crate::streams::Activity;

/// `streamtype: error`, compressed by zlib at level 9 with the dictionary, as the first block of a connection.
const ERROR_BLOCK: &[u8] = &[
    0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2, 0x02, 0xa6, 0x23, 0x46, 0x70, 0x3a, 0x2b, 0x29, 0x4a, 0x4d, 0xcc, 0x85, 0x16,
    0x25, 0xac, 0xa9, 0xa0, 0x80, 0x06, 0x00, 0x00, 0x00, 0xff, 0xff,
];
/// `streamtype: stdout`, as the second block.
const STDOUT_BLOCK: &[u8] = &[0xc2, 0x2a, 0x05, 0x4c, 0xcc, 0x29, 0xf9, 0xa5, 0x25, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff];

/// A control frame with this content.
fn control(kind: u8, flags: u8, content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let length = u8::try_from(content.len()).unwrap();
    [&[0x80, 3, 0, kind, flags, 0, 0, length], &content[..]].concat()
}

fn decode(bytes: &[u8]) -> Result<Vec<Frame>, DecodeError> {
    let mut decoder = Decoder::default();
    decoder.feed(bytes);
    let mut frames = Vec::new();
    while let Some(frame) = decoder.next_frame()? {
        frames.push(frame);
    }
    Ok(frames)
}

fn encode(frames: &[Frame]) -> Vec<u8> {
    let (mut encoder, mut bytes) = (Encoder::default(), Vec::new());
    frames.iter().for_each(|frame| encoder.append(frame, &mut bytes));
    bytes
}

#[test]
fn recorded_frames_are_read() {
    let bytes = [
        control(1, 0, &[&[0, 0, 0, 1, 0, 0, 0, 0, 0, 0], ERROR_BLOCK]),
        control(1, 1, &[&[0, 0, 0, 3, 0, 0, 0, 0, 0x20, 0], STDOUT_BLOCK]),
        control(6, 0, &[&[0, 0, 0, 1]]),
        vec![0, 0, 0, 3, 0, 0, 0, 2, b'h', b'i'],
        vec![0, 0, 0, 3, 1, 0, 0, 0],
        control(3, 0, &[&[0, 0, 0, 1, 0, 0, 0, 5]]),
        control(4, 0, &[&[0, 0, 0, 0]]),
        control(7, 0, &[&[0, 0, 0, 3, 0, 0, 0, 0]]),
    ]
    .concat();
    let opened = |stream, kind, fin| Frame::SynStream { stream, headers: Headers::new([("streamtype", kind)]), fin };
    let expected = [
        opened(1, "error", false),
        opened(3, "stdout", true),
        Frame::Ping(1),
        Frame::Data { stream: 3, bytes: b"hi".to_vec(), fin: false },
        Frame::Data { stream: 3, bytes: Vec::new(), fin: true },
        Frame::Reset { stream: 1, status: 5 },
        Frame::Ignored,
        Frame::GoAway { last: 3, status: 0 },
    ];
    assert_eq!(decode(&bytes).unwrap(), expected);
    // The same frames arrive byte by byte. Only the data comes in smaller parts.
    let (mut decoder, mut found) = (Decoder::default(), Vec::new());
    for byte in &bytes {
        decoder.feed(&[*byte]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            found.push(frame);
        }
    }
    assert_eq!((found.len(), &found[..3], &found[5..]), (9, &expected[..3], &expected[4..]));
}

#[test]
fn written_frames_are_read_back() {
    let headers = |port: &str| Headers::new([("streamtype", "data"), ("port", port), ("requestid", "7")]);
    let frames = [
        Frame::SynStream { stream: 1, headers: headers("80"), fin: false },
        Frame::SynReply { stream: 1, headers: Headers::default(), fin: false },
        Frame::Headers { stream: 1, headers: headers("8080"), fin: true },
        Frame::Data { stream: 1, bytes: vec![7; 1000], fin: true },
        Frame::Data { stream: 1, bytes: Vec::new(), fin: false },
        Frame::Ping(2),
        Frame::Reset { stream: 1, status: 3 },
        Frame::GoAway { last: 1, status: 0 },
    ];
    assert_eq!(decode(&encode(&frames)).unwrap(), frames);
    assert_eq!(encode(&[Frame::Ping(2)]), control(6, 0, &[&[0, 0, 0, 2]]));
}

#[test]
fn a_long_data_frame_is_read_in_parts_and_never_kept_whole() {
    let mut decoder = Decoder::default();
    decoder.feed(&[0, 0, 0, 5, 1, 0xff, 0xff, 0xff]);
    let (mut total, mut ended) = (0, false);
    for _ in 0..0x100 {
        decoder.feed(&[0; 0x10000]);
        while !ended && let Some(Frame::Data { stream: 5, bytes, fin }) = decoder.next_frame().unwrap() {
            assert!(bytes.len() <= podwright_host::streaming::CHUNK_BYTES);
            total += bytes.len();
            ended = fin;
        }
    }
    assert_eq!((total, ended), (0x00ff_ffff, true));
}

#[test]
fn bytes_that_break_the_protocol_are_refused() {
    let long = [&[0x80, 3, 0, 6, 0, 0xff, 0xff, 0xff][..], &[0; 64]].concat();
    let bomb = {
        let headers = Headers(vec![("x".to_owned(), "a".repeat(MAX_BLOCK_BYTES))]);
        encode(&[Frame::SynReply { stream: 1, headers, fin: false }])
    };
    let many = Headers((0..65).map(|i| (format!("h{i}"), String::new())).collect());
    for (bytes, expected) in [
        (control(6, 0, &[&[0; 3]]), DecodeError::Length { kind: 6, length: 3 }),
        (control(3, 0, &[&[0, 0, 0, 1]]), DecodeError::Length { kind: 3, length: 4 }),
        (control(1, 0, &[&[0; 9]]), DecodeError::Length { kind: 1, length: 9 }),
        (control(3, 0, &[&[0; 8]]), DecodeError::NoStream),
        (vec![0; 8], DecodeError::NoStream),
        (vec![0x80, 2, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1], DecodeError::Version(2)),
        (long, DecodeError::TooLong(0x00ff_ffff)),
        (bomb, DecodeError::Headers("too many bytes after decompression")),
        (encode(&[Frame::SynReply { stream: 1, headers: many, fin: false }]), DecodeError::Headers("too many headers")),
        (
            control(2, 0, &[&[0, 0, 0, 1], b"not compressed"]),
            DecodeError::Headers("bytes that are not compressed headers"),
        ),
        (control(2, 0, &[&[0, 0, 0, 1], &ERROR_BLOCK[..12]]), DecodeError::Headers("a block that is too short")),
    ] {
        assert_eq!(decode(&bytes).unwrap_err(), expected);
    }
}

#[tokio::test]
async fn streams_carry_data_in_both_directions() {
    let (near, far) = duplex(1 << 16);
    let (client, client_copied) = Connection::new(near, Side::Client, Activity::new());
    let (mut server, server_copied) = Connection::new(far, Side::Server, Activity::new());
    let copied = tokio::spawn(async move { tokio::join!(client_copied, server_copied) });
    let mut near = client.open(1, Headers::new([("streamtype", "stdin")])).await.unwrap();
    let mut far = server.accepted.recv().await.unwrap();
    assert_eq!((far.id, far.headers.get("streamtype")), (1, Some("stdin")));
    near.writer.write(b"in".to_vec()).await;
    far.writer.write(b"out".to_vec()).await;
    assert_eq!(far.data.recv().await.as_deref(), Some(&b"in"[..]));
    assert_eq!(near.data.recv().await.as_deref(), Some(&b"out"[..]));
    near.writer.finish().await;
    assert_eq!(far.data.recv().await, None);
    assert!(!far.reset.is_cancelled());
    far.writer.reset().await;
    near.reset.cancelled().await;
    drop((client, server, near, far));
    copied.await.unwrap();
}

// The paused time passes only while the sender and both copies wait, so a slow machine cannot end the timeout early.
#[tokio::test(start_paused = true)]
async fn a_reader_that_does_not_read_stops_the_sender() {
    let (near, far) = duplex(1 << 10);
    let (client, client_copied) = Connection::new(near, Side::Client, Activity::new());
    let (mut server, server_copied) = Connection::new(far, Side::Server, Activity::new());
    let copied = tokio::spawn(async move { tokio::join!(client_copied, server_copied) });
    let near = client.open(1, Headers::default()).await.unwrap();
    let mut far = server.accepted.recv().await.unwrap();
    let (mut sent, mut received) = (0, 0);
    let sender = async {
        while sent < 100 {
            near.writer.write(vec![0; 1 << 10]).await;
            sent += 1;
        }
    };
    let stopped = tokio::time::timeout(std::time::Duration::from_millis(300), sender).await;
    assert!(stopped.is_err(), "{sent} parts were sent to a reader that does not read");
    drop(near);
    while received < sent << 10 {
        received += far.data.recv().await.unwrap().len();
    }
    drop((client, server, far));
    copied.await.unwrap();
}

#[tokio::test]
async fn the_open_streams_of_a_connection_are_limited() {
    let (mut peer, bytes) = duplex(1 << 20);
    let (mut server, copied) = Connection::new(bytes, Side::Server, Activity::new());
    let copied = tokio::spawn(copied);
    let opened = |number: u32| Frame::SynStream { stream: 2 * number + 1, headers: Headers::default(), fin: false };
    let streams: Vec<_> = (0..=512).map(opened).collect();
    peer.write_all(&encode(&streams)).await.unwrap();
    let kept = tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(stream) = server.accepted.recv().await {
            kept.push(stream);
        }
    });
    let (mut decoder, mut buffer, mut last) = (Decoder::default(), [0; 1024], None);
    while !matches!(last, Some(Frame::Reset { .. })) {
        let count = peer.read(&mut buffer).await.unwrap();
        decoder.feed(&buffer[..count]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            last = Some(frame);
        }
    }
    assert_eq!(last, Some(Frame::Reset { stream: 2 * 512 + 1, status: 3 }));
    kept.abort();
    drop(peer);
    copied.await.unwrap();
}

#[tokio::test]
async fn pings_are_answered_and_wrong_stream_numbers_are_reset() {
    let (mut peer, bytes) = duplex(1 << 16);
    let (server, copied) = Connection::new(bytes, Side::Server, Activity::new());
    let copied = tokio::spawn(copied);
    let opened = |stream| Frame::SynStream { stream, headers: Headers::default(), fin: false };
    peer.write_all(&encode(&[Frame::Ping(1), Frame::Ping(2), opened(2), opened(5), opened(3)])).await.unwrap();
    let mut decoder = Decoder::default();
    let mut buffer = [0; 1024];
    let mut frames = Vec::new();
    while frames.len() < 4 {
        let count = peer.read(&mut buffer).await.unwrap();
        decoder.feed(&buffer[..count]);
        while let Some(frame) = decoder.next_frame().unwrap() {
            frames.push(frame);
        }
    }
    let reset = |stream| Frame::Reset { stream, status: 1 };
    let reply = Frame::SynReply { stream: 5, headers: Headers::default(), fin: false };
    assert_eq!(frames, [Frame::Ping(1), reset(2), reply, reset(3)]);
    // Malformed bytes end the connection.
    peer.write_all(&[0xff; 8]).await.unwrap();
    copied.await.unwrap();
    drop(server);
}
