use proptest::prelude::*;

use super::*;

const PREFACE_BYTES: &[u8; PREFACE] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const PATH: &[u8] = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fgpu-reg.sock";

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
}

/// A field with a literal value.
fn literal(representation: &[u8], value: &[u8]) -> Vec<u8> {
    [representation, &[value.len() as u8], value].concat()
}

fn rewritten(frames: &[Vec<u8>]) -> Result<Vec<u8>, Malformed> {
    let mut output = Vec::new();
    Rewriter::new().push(&[PREFACE_BYTES, frames.concat().as_slice()].concat(), &mut output)?;
    assert_eq!(output.drain(..PREFACE).collect::<Vec<_>>(), PREFACE_BYTES);
    Ok(output)
}

fn block_after(block: &[u8]) -> Vec<u8> {
    rewritten(&[frame(HEADERS, END_HEADERS, block)]).unwrap().split_off(FRAME_HEAD)
}

#[test]
fn authority_is_replaced_in_each_representation() {
    let huffman = NAMES[1];
    for representation in [
        vec![0x41],
        vec![0x01],
        vec![0x11],
        [&[0x40], NAMES[0]].concat(),
        [&[0x00], huffman].concat(),
        [&[0x10], huffman].concat(),
    ] {
        let method = [0x83];
        let block = [&method, literal(&representation, PATH).as_slice(), &[0x86]].concat();
        let expected = [&method, literal(&representation, b"x").as_slice(), &[0x86]].concat();
        assert_eq!(block_after(&block), expected, "{representation:x?}");
    }
}

#[test]
fn other_fields_and_sizes_of_the_table_pass_unchanged() {
    let block = [
        vec![0x3f, 0xe1, 0x1f],
        vec![0x83, 0x86],
        literal(&[0x44], b"/pluginregistration.Registration/GetInfo"),
        literal(&[0x40, 2, b't', b'e'], b"trailers"),
        literal(&[0x0f, 0x2f], b"secret"),
        literal(&[0x41], b""),
    ]
    .concat();
    assert_eq!(block_after(&block), block);
}

#[test]
fn name_in_the_dynamic_table_is_found_by_its_position() {
    let first = [literal(&[0x41], PATH), literal(&[0x40, 1, b'a'], b"1")].concat();
    // Entry 62 is `a`, entry 63 is `:authority`.
    let second = [literal(&[0x7f, 0], PATH), literal(&[0x7e], PATH), vec![0xbf]].concat();
    let frames = [frame(HEADERS, END_HEADERS, &first), frame(HEADERS, END_HEADERS, &second)];
    let output = rewritten(&frames).unwrap();
    let expected = [
        frame(HEADERS, END_HEADERS, &[literal(&[0x41], b"x"), literal(&[0x40, 1, b'a'], b"1")].concat()),
        // After the first field, which is indexed, entry 62 is `:authority` again.
        frame(HEADERS, END_HEADERS, &[literal(&[0x7f, 0], b"x"), literal(&[0x7e], b"x"), vec![0xbf]].concat()),
    ];
    assert_eq!(output, expected.concat());
}

#[test]
fn headers_in_several_frames_with_padding_and_priority_become_one_frame() {
    let block = [literal(&[0x41], PATH), vec![0x83]].concat();
    let (head, tail) = block.split_at(20);
    let priority = [0, 0, 0, 0, 15];
    let padded = [&[3], &priority[..], head, &[0, 0, 0]].concat();
    let frames = [
        frame(4, 0, &[]),
        frame(HEADERS, PADDED | PRIORITY | 0x1, &padded),
        frame(CONTINUATION, END_HEADERS, tail),
        frame(0, 0x1, &[7; 40_000]),
    ];
    let expected = [
        frame(4, 0, &[]),
        frame(HEADERS, PRIORITY | END_HEADERS | 0x1, &[&priority[..], &literal(&[0x41], b"x"), &[0x83]].concat()),
        frame(0, 0x1, &[7; 40_000]),
    ];
    assert_eq!(rewritten(&frames).unwrap(), expected.concat());
}

#[test]
fn large_block_is_split_into_frames() {
    let field = literal(&[0x00, 1, b'a'], &[b'v'; 100]);
    let block = field.repeat(300);
    let (head, tail) = block.split_at(LARGEST_FRAME);
    let frames = [frame(HEADERS, 0, head), frame(CONTINUATION, END_HEADERS, tail)];
    assert_eq!(rewritten(&frames).unwrap(), frames.concat());
}

#[test]
fn malformed_headers_end_the_connection() {
    let cases: [(&str, Vec<Vec<u8>>); 7] = [
        ("a value beyond the block", vec![frame(HEADERS, END_HEADERS, &[0x41, 9, b'a'])]),
        ("an integer without its end", vec![frame(HEADERS, END_HEADERS, &[0x41, 0x7f, 0xff])]),
        ("an integer that is too large", vec![frame(HEADERS, END_HEADERS, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff])]),
        ("more padding than payload", vec![frame(HEADERS, END_HEADERS | PADDED, &[5, 0])]),
        ("a continuation of nothing", vec![frame(CONTINUATION, END_HEADERS, &[0x83])]),
        ("another frame inside the headers", vec![frame(HEADERS, 0, &[0x83]), frame(4, 0, &[])]),
        ("a frame that is too large", vec![frame(HEADERS, END_HEADERS, &[0x83; LARGEST_FRAME + 1])]),
    ];
    for (what, frames) in cases {
        assert_eq!(rewritten(&frames), Err(Malformed), "{what}");
    }
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    #[test]
    fn bytes_may_arrive_in_any_pieces(pieces in prop::collection::vec(1_usize..40, 1..60)) {
        let frames = [
            frame(4, 0, &[1; 12]),
            frame(HEADERS, END_HEADERS, &[vec![0x83], literal(&[0x41], PATH)].concat()),
            frame(0, 1, &[5; 300]),
            frame(HEADERS, END_HEADERS, &[0x83, 0xbe]),
        ];
        let bytes = [PREFACE_BYTES, frames.concat().as_slice()].concat();
        let mut whole = Vec::new();
        Rewriter::new().push(&bytes, &mut whole).unwrap();
        let (mut rewriter, mut output, mut rest) = (Rewriter::new(), Vec::new(), &bytes[..]);
        for piece in pieces.iter().cycle() {
            let (now, later) = rest.split_at((*piece).min(rest.len()));
            rewriter.push(now, &mut output).unwrap();
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(output, whole);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut output = Vec::new();
        let _ = Rewriter::new().push(&[PREFACE_BYTES, &bytes[..]].concat(), &mut output);
        let _ = Rewriter::new().rewrite(&bytes);
    }
}
