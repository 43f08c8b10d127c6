//! Protocol buffers that are written directly into bytes, field by field, like [`json`](crate::json).
//!
//! ```
//! use tollgate_http::protobuf;
//!
//! let mut out = Vec::new();
//! protobuf::message(&mut out, 3, |out| {
//!     protobuf::number(out, 1, 300);
//!     protobuf::bytes(out, 2, b"ada");
//! });
//! assert_eq!(out, [3 << 3 | 2, 8, 1 << 3, 0xac, 2, 2 << 3 | 2, 3, b'a', b'd', b'a']);
//! ```

/// Writes a number as a varint: seven bits a byte, the lowest first.
pub fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(low_bits(value) | 0x80);
        value >>= 7;
    }
    out.push(low_bits(value));
}

/// The lowest seven bits.
const fn low_bits(value: u64) -> u8 {
    (value & 0x7f) as u8
}

/// Writes a number field. Zero isn't written, as a missing field reads as zero.
pub fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    if value != 0 {
        varint(out, u64::from(field) << 3);
        varint(out, value);
    }
}

/// Writes a field of text or bytes, unless it is empty.
pub fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    if !value.is_empty() {
        varint(out, u64::from(field) << 3 | 2);
        varint(out, value.len() as u64);
        out.extend_from_slice(value);
    }
}

/// Writes a field that is a message, which may be empty.
pub fn message(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    varint(out, u64::from(field) << 3 | 2);
    let at = out.len();
    // One byte is reserved for the length, which is known only after writing; longer lengths are spliced in.
    out.push(0);
    write(out);
    let length = out.len() - at - 1;
    match u8::try_from(length) {
        Ok(short @ 0..=0x7f) => out[at] = short,
        _ => {
            let mut encoded = Vec::with_capacity(10);
            varint(&mut encoded, length as u64);
            out.splice(at..=at, encoded);
        }
    }
}
