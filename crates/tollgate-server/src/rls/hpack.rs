//! Header blocks of HTTP/2 (HPACK), as far as `:authority` is concerned.
//!
//! This service ignores `:authority`, but h2 resets a stream whose authority isn't valid in a URI, and clients send
//! such: Envoy the name of a cluster, Istio `outbound|8081||limits.default`, gRPC on a UNIX socket an encoded path.
//! Such a value is replaced by one of the same length. So the dynamic tables of both sides stay alike, and no table is
//! kept here.

use std::borrow::Cow;

use http::uri::Authority;

/// The index of `:authority` in the static table.
const AUTHORITY: usize = 1;
const NAME: &[u8] = b":authority";
/// The byte that replaces each byte of an invalid authority.
const STAND_IN: u8 = b'a';

/// A string literal of a block.
struct HpackString<'b> {
    bytes: &'b [u8],
    is_huffman: bool,
}

/// The representation of a field.
enum FieldForm {
    /// The whole field is in a table.
    Indexed,
    /// A literal that both sides add to their dynamic tables.
    Added,
    /// A literal that isn't added.
    Literal,
    /// No field, but a change of the table's size.
    Size,
}

/// A block with a valid `:authority`; `None` if it is valid already, or the block is malformed.
pub(super) fn with_valid_authority(block: &[u8]) -> Option<Vec<u8>> {
    let mut edited: Option<Vec<u8>> = None;
    // The end of the part of the block that is copied to `edited`.
    let mut copied = 0;
    let mut rest = block;
    while let Some(first) = rest.first() {
        let start = block.len() - rest.len();
        let (form, prefix) = match first {
            0x80.. => (FieldForm::Indexed, 7),
            0x40.. => (FieldForm::Added, 6),
            0x20.. => (FieldForm::Size, 5),
            _ => (FieldForm::Literal, 4),
        };
        let index = integer(&mut rest, prefix)?;
        let (is_authority, is_added) = match form {
            FieldForm::Size => continue,
            FieldForm::Indexed => {
                if index == AUTHORITY {
                    // The static table has `:authority` without a value, which is invalid, so the field is left out.
                    let out = edited.get_or_insert_default();
                    out.extend_from_slice(&block[copied..start]);
                    copied = block.len() - rest.len();
                }
                continue;
            }
            form => {
                let is_named = index == 0 && text(&mut rest)?.is(NAME);
                (
                    is_named || index == AUTHORITY,
                    matches!(form, FieldForm::Added),
                )
            }
        };
        let value_at = block.len() - rest.len();
        let value = text(&mut rest)?;
        if !is_authority {
            continue;
        }
        let value = value.decoded()?;
        if Authority::try_from(&*value).is_ok() || (value.is_empty() && is_added) {
            // An empty value that is added can't be replaced at the same length. h2 resets the stream, which is
            // counted.
            continue;
        }
        let out = edited.get_or_insert_default();
        if value.is_empty() {
            out.extend_from_slice(&block[copied..start]);
        } else {
            out.extend_from_slice(&block[copied..value_at]);
            write_integer(out, value.len(), 7);
            out.resize(out.len() + value.len(), STAND_IN);
        }
        copied = block.len() - rest.len();
    }
    let out = edited.as_mut()?;
    out.extend_from_slice(&block[copied..]);
    edited
}

impl HpackString<'_> {
    fn is(&self, other: &[u8]) -> bool {
        // No code is shorter than 5 bits or longer than 30, so at most 4 bytes stand for one.
        let may_be = !self.is_huffman || self.bytes.len() <= other.len() * 4;
        may_be && self.decoded().is_some_and(|own| *own == *other)
    }

    fn decoded(&self) -> Option<Cow<'_, [u8]>> {
        if self.is_huffman {
            decode_huffman(self.bytes).map(Cow::Owned)
        } else {
            Some(Cow::Borrowed(self.bytes))
        }
    }
}

/// An integer behind the first bits of a byte (RFC 7541, 5.1).
fn integer(rest: &mut &[u8], prefix: u32) -> Option<usize> {
    let (first, mut after) = rest.split_first()?;
    let most = (1_usize << prefix) - 1;
    let mut value = usize::from(*first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (byte, behind) = after.split_first()?;
            after = behind;
            value = value.checked_add(usize::from(byte & 0x7f) << shift)?;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            // More than 28 bits: longer than any block.
            if shift > 21 {
                return None;
            }
        }
    }
    *rest = after;
    Some(value)
}

fn write_integer(out: &mut Vec<u8>, value: usize, prefix: u32) {
    let most = (1_usize << prefix) - 1;
    if value < most {
        out.push(low_byte(value));
        return;
    }
    out.push(low_byte(most));
    let mut left = value - most;
    while left >= 0x80 {
        out.push(low_byte(left & 0x7f | 0x80));
        left >>= 7;
    }
    out.push(low_byte(left));
}

fn low_byte(value: usize) -> u8 {
    u8::try_from(value & 0xff).unwrap_or(u8::MAX)
}

fn text<'b>(rest: &mut &'b [u8]) -> Option<HpackString<'b>> {
    let is_huffman = rest.first()? & 0x80 != 0;
    let length = integer(rest, 7)?;
    let (bytes, after) = rest.split_at_checked(length)?;
    *rest = after;
    Some(HpackString { bytes, is_huffman })
}

/// The code length in bits of each byte (RFC 7541, appendix B). The codes of one length are consecutive in the order of
/// their bytes, and begin where the codes of the shorter length end.
#[rustfmt::skip]
const BITS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
const LONGEST: usize = 30;

/// All codes of one length.
#[derive(Clone, Copy)]
struct HuffmanCodes {
    first: u32,
    count: u32,
    /// The index of their first byte.
    at: usize,
}

static CODES: ([HuffmanCodes; LONGEST + 1], [u8; 256]) = codes();

#[allow(clippy::cast_possible_truncation)] // A loop over 256 bytes in a constant, where nothing else can convert.
const fn codes() -> ([HuffmanCodes; LONGEST + 1], [u8; 256]) {
    let none = HuffmanCodes {
        first: 0,
        count: 0,
        at: 0,
    };
    let (mut lengths, mut bytes) = ([none; LONGEST + 1], [0; 256]);
    let (mut bits, mut at, mut code) = (1, 0, 0);
    while bits <= LONGEST {
        // A canonical code: the first code of a length continues the last one of the shorter length.
        code <<= 1;
        lengths[bits].first = code;
        lengths[bits].at = at;
        let mut byte = 0;
        while byte < 256 {
            if BITS[byte] as usize == bits {
                bytes[at] = byte as u8;
                at += 1;
                code += 1;
                lengths[bits].count += 1;
            }
            byte += 1;
        }
        bits += 1;
    }
    (lengths, bytes)
}

/// Decodes Huffman-coded bytes; `None` if they are malformed.
fn decode_huffman(coded: &[u8]) -> Option<Vec<u8>> {
    let (lengths, bytes) = &CODES;
    let mut out = Vec::with_capacity(coded.len() * 8 / 5);
    let (mut code, mut bits) = (0_u32, 0_usize);
    for byte in coded {
        for shift in (0..8).rev() {
            code = code << 1 | u32::from(byte >> shift & 1);
            bits += 1;
            let own = lengths.get(bits)?;
            if code.wrapping_sub(own.first) < own.count {
                out.push(bytes[own.at + usize::try_from(code - own.first).ok()?]);
                (code, bits) = (0, 0);
            }
        }
    }
    // The last byte is padded with ones (RFC 7541, 5.2), by less than a byte.
    (bits < 8 && code == (1 << bits) - 1).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(first: &[u8], value: &[u8]) -> Vec<u8> {
        let mut block = first.to_vec();
        write_integer(&mut block, value.len(), 7);
        block.extend(value);
        block
    }

    #[test]
    fn strings_are_decoded_as_the_standard_does() {
        // RFC 7541, C.4.
        let cases: [(&[u8], &[u8]); 4] = [
            (
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ],
                b"www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], b"no-cache"),
            (
                &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf],
                b"custom-value",
            ),
            (&[], b""),
        ];
        for (coded, text) in cases {
            assert_eq!(decode_huffman(coded).as_deref(), Some(text));
        }
        // The end-of-string code, and a last byte whose padding isn't all ones, or is a whole byte.
        for broken in [&[0xff; 4][..], &[0x00], &[0xff]] {
            assert_eq!(decode_huffman(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn integers_are_read_as_they_are_written() {
        for value in [0, 1, 126, 127, 128, 254, 255, 300, 16_384, 2_000_000] {
            let mut block = Vec::new();
            write_integer(&mut block, value, 7);
            let mut rest = &block[..];
            assert_eq!(integer(&mut rest, 7), Some(value));
            assert!(rest.is_empty());
        }
        for endless in [&[0xff; 8][..], &[0x7f], &[]] {
            assert_eq!(integer(&mut &*endless, 7), None);
        }
    }

    #[test]
    fn only_an_authority_that_is_none_is_replaced_by_one_of_its_length() {
        let named = [&[0x40, 10][..], NAME].concat();
        for first in [&[0x01][..], &[0x11], &[0x41], &named] {
            for (value, is_replaced) in [
                (&b"limits.example:8081"[..], false),
                (b"rate_limit_service", false),
                (b"outbound|8081||limits.default", true),
                (b"%2Ftmp%2Flimits.sock", true),
                (b"\xff\xfe", true),
            ] {
                let before = [&[0x83, 0x86][..], &literal(&[0x04], b"/a")].concat();
                let after = literal(&[0x40, 1, b'x'], b"y|z");
                let block = [&before[..], &literal(first, value), &after].concat();
                let stand_in = literal(first, &vec![STAND_IN; value.len()]);
                let expected = [&before[..], &stand_in, &after].concat();
                let expected = is_replaced.then_some(expected);
                assert_eq!(with_valid_authority(&block), expected, "{value:?}");
            }
        }
    }

    #[test]
    fn a_huffman_authority_is_replaced_by_one_of_its_decoded_length() {
        // `a|b`: 00011, 11111111100, 100011, and ones.
        let coded = [0b0001_1111, 0b1111_1100, 0b1000_1111];
        assert_eq!(decode_huffman(&coded).as_deref(), Some(&b"a|b"[..]));
        let block = [&[0x41, 0x83][..], &coded, &[0x86]].concat();
        let expected = [&[0x41, 3][..], b"aaa", &[0x86]].concat();
        assert_eq!(with_valid_authority(&block), Some(expected));
    }

    #[test]
    fn an_empty_authority_is_left_out_where_no_table_keeps_it() {
        assert_eq!(
            with_valid_authority(&[0x83, 0x81, 0x86]),
            Some(vec![0x83, 0x86])
        );
        assert_eq!(
            with_valid_authority(&[0x83, 0x01, 0, 0x86]),
            Some(vec![0x83, 0x86])
        );
        assert_eq!(with_valid_authority(&[0x83, 0x41, 0, 0x86]), None);
    }

    #[test]
    fn a_block_that_is_none_is_left_to_h2() {
        for block in [
            &[0x41, 5, b'|'][..],
            &[0x41],
            &[0x41, 0x81, 0x00],
            &[0xff; 9],
        ] {
            assert_eq!(with_valid_authority(block), None, "{block:?}");
        }
    }
}
