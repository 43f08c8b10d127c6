//! Frames at every split, blocks over several frames, and errors that are sent.

use super::*;

/// Lets this many streams pass, and all control frames, which it counts.
struct Counts {
    opens: usize,
    controls: usize,
}

impl FrameGate for Counts {
    fn may_open(&mut self) -> bool {
        let may_open = self.opens > 0;
        self.opens = self.opens.saturating_sub(1);
        may_open
    }

    fn may_control(&mut self) -> bool {
        self.controls += 1;
        true
    }
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let head = FrameHead {
        length: payload.len(),
        kind,
        flags,
        stream: [0, 0, 0, 1],
    };
    head.write(&mut out);
    out.extend(payload);
    out
}

/// The frames that pass of an input in pieces of this size, the number of control frames, and the rest of the input.
fn passed(input: &[u8], piece: usize, opens: usize) -> (Vec<u8>, usize, usize) {
    let mut counts = Counts { opens, controls: 0 };
    let (mut reader, mut out, mut raw) = (FrameReader::default(), Vec::new(), Vec::new());
    for piece in input.chunks(piece) {
        raw.extend(piece);
        let used = reader.read(&raw, &mut out, &mut counts);
        raw.drain(..used);
    }
    (out, counts.controls, raw.len())
}

const ISTIO: &[u8] = b"\x83\x01\x03a|b\x86";
const PLAIN: &[u8] = b"\x83\x01\x03aaa\x86";

#[test]
fn frames_pass_as_they_are_whatever_the_pieces() {
    let input = [
        vec![b'P'; PREFACE],
        frame(4, 0, &[0; 6]),
        frame(HEADERS, END_HEADERS, PLAIN),
        frame(DATA, END_STREAM, b"message"),
        frame(DATA, 0, b""),
        frame(6, 0, &[7; 8]),
    ]
    .concat();
    for piece in 1..=input.len() {
        assert_eq!(passed(&input, piece, 1), (input.clone(), 3, 0), "{piece}");
    }
}

#[test]
fn a_stream_beyond_the_turn_is_held_back_with_all_behind_it() {
    let first = [vec![b'P'; PREFACE], frame(HEADERS, END_HEADERS, PLAIN)].concat();
    let second = [frame(HEADERS, END_HEADERS, PLAIN), frame(6, 0, &[7; 8])].concat();
    let input = [&first[..], &second].concat();
    assert_eq!(passed(&input, input.len(), 1), (first, 0, second.len()));
}

#[test]
fn an_authority_is_replaced_in_one_frame_and_over_several() {
    let preface = [b'P'; PREFACE];
    let expected = [&preface[..], &frame(HEADERS, END_HEADERS, PLAIN)].concat();
    let padded = [&[2][..], ISTIO, &[0, 0]].concat();
    for input in [
        frame(HEADERS, END_HEADERS, ISTIO),
        frame(HEADERS, END_HEADERS | PADDED, &padded),
        [
            frame(HEADERS, 0, &ISTIO[..4]),
            frame(CONTINUATION, END_HEADERS, &ISTIO[4..]),
        ]
        .concat(),
        [
            frame(HEADERS, 0, b""),
            frame(CONTINUATION, 0, ISTIO),
            frame(CONTINUATION, END_HEADERS, b""),
        ]
        .concat(),
    ] {
        let input = [&preface[..], &input].concat();
        for piece in 1..=input.len() {
            assert_eq!(passed(&input, piece, 1).0, expected, "{piece}");
        }
    }
    let priority = [&[9; 5][..], ISTIO].concat();
    let input = [
        &preface[..],
        &frame(HEADERS, END_HEADERS | PRIORITY, &priority),
    ]
    .concat();
    let plain = [&[9; 5][..], PLAIN].concat();
    let expected = [
        &preface[..],
        &frame(HEADERS, END_HEADERS | PRIORITY, &plain),
    ]
    .concat();
    assert_eq!(passed(&input, 7, 1).0, expected);
}

#[test]
fn a_block_that_grows_beyond_a_frame_goes_on_in_another() {
    let long = [
        b"\x01\x03a|b\x00\x01x\x7f\xa0\x7e".to_vec(),
        vec![b'v'; 16_159],
        vec![b'w'; 16_384],
    ]
    .concat();
    let (first, second) = long.split_at(MAX_FRAME_BYTES);
    let input = [
        vec![b'P'; PREFACE],
        frame(HEADERS, 0, first),
        frame(CONTINUATION, END_HEADERS, second),
    ]
    .concat();
    let out = passed(&input, 1_000, 1).0;
    assert_eq!(out.len(), input.len());
    assert_eq!(
        out[PREFACE + HEAD..][..5],
        *b"\x01\x03a|b".as_slice(),
        "the rest is no block"
    );
}

#[test]
fn what_comes_in_a_wrong_order_is_left_to_h2() {
    let preface = [b'P'; PREFACE];
    for input in [
        frame(CONTINUATION, END_HEADERS, ISTIO),
        [frame(HEADERS, 0, ISTIO), frame(HEADERS, END_HEADERS, ISTIO)].concat(),
        frame(HEADERS, END_HEADERS | PADDED, &[9, 0x83]),
        frame(HEADERS, END_HEADERS, &vec![0; MAX_FRAME_BYTES + 1]),
    ] {
        let input = [&preface[..], &input].concat();
        assert_eq!(passed(&input, 5, 2).0, input);
    }
}

#[test]
fn errors_that_are_sent_are_found_whatever_the_pieces() {
    let sent = [
        frame(HEADERS, END_HEADERS, PLAIN),
        frame(RST_STREAM, 0, &8_u32.to_be_bytes()),
        frame(DATA, 0, &[3; 40]),
        frame(RST_STREAM, 0, &1_u32.to_be_bytes()),
        frame(GOAWAY, 0, &[0, 0, 0, 9, 0, 0, 0, 11, b'w', b'h', b'y']),
        frame(RST_STREAM, 0, &7_u32.to_be_bytes()),
    ]
    .concat();
    for piece in 1..=sent.len() {
        let (mut own, mut found) = (SentFrames::default(), Vec::new());
        for piece in sent.chunks(piece) {
            own.read(piece, |scope, code| found.push((scope, code)));
        }
        let expected = [
            (ErrorScope::Stream, 8),
            (ErrorScope::Stream, 1),
            (ErrorScope::Connection, 11),
            (ErrorScope::Stream, 7),
        ];
        assert_eq!(found, expected, "{piece}");
    }
}
