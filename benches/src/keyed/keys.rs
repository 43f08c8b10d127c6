//! The keys of requests: the same on both sides, and cheap to produce.
#![expect(
    unsafe_code,
    reason = "checking that sixteen bytes are text costs more than writing them"
)]

use crate::runner::as_f64;

/// Keys in the order of the requests, drawn in advance and stored: reading their names one after the other
/// costs next to nothing. After the last it starts again.
pub(crate) struct Keys(Box<[[u8; LENGTH]]>);

/// The bytes of a name.
const LENGTH: usize = 16;
/// How many are drawn in advance, a power of two.
const DRAWS: u64 = 1 << 20;
/// The exponent of [`Keys::zipf`].
const EXPONENT: f64 = 0.99;

impl Keys {
    /// Keys below `keys`, all equally likely. `keys` is below 2^32.
    pub(crate) fn uniform(keys: u64) -> Self {
        Self::drawn(|draw| ((mixed(draw) >> 32) * keys) >> 32)
    }

    /// Few keys often and many keys rarely.
    pub(crate) fn zipf(keys: u64) -> Self {
        let mut sum = 0.0;
        let sums: Vec<f64> = (1..=keys)
            .map(|rank| {
                sum += as_f64(rank).powf(-EXPONENT);
                sum
            })
            .collect();
        Self::drawn(|draw| {
            let share = as_f64(mixed(draw) >> 32) / as_f64(1 << 32);
            let rank = sums.partition_point(|&below| below < share * sum);
            (rank as u64).min(keys - 1)
        })
    }

    fn drawn(draw: impl Fn(u64) -> u64) -> Self {
        Self((0..DRAWS).map(|step| name(draw(step))).collect())
    }

    #[inline(always)]
    pub(crate) fn at(&self, step: u64) -> &[u8; LENGTH] {
        let draw = step & (DRAWS - 1);
        &self.0[usize::try_from(draw).unwrap_or(0)]
    }
}

/// Well-mixed bits, the same for the same step.
#[inline(always)]
fn mixed(step: u64) -> u64 {
    let step = step.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (step ^ (step >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// The name of the key with this number, below 2^32: `user:000` and eight hexadecimal digits.
pub(crate) fn name(index: u64) -> [u8; LENGTH] {
    let mut name = *b"user:00000000000";
    name[8..].copy_from_slice(&digits(index).to_be_bytes());
    name
}

/// Eight hexadecimal digits, the first in the highest byte, without a loop.
fn digits(number: u64) -> u64 {
    let ones = u64::from_be_bytes([1; 8]);
    let pairs = (number & 0xFFFF) | (number & 0xFFFF_0000) << 16;
    let bytes = (pairs | pairs << 8) & (0xFF * 0x0001_0001_0001_0001);
    let nibbles = (bytes | bytes << 4) & (0xF * ones);
    let letters = ((nibbles + 6 * ones) >> 4) & ones;
    nibbles + ones * u64::from(b'0') + letters * u64::from(b'a' - b'0' - 10)
}

/// A string that is overwritten in place, because governor looks keys up by `&String`.
pub(crate) struct Buffer(String);

impl Buffer {
    pub(crate) fn new() -> Self {
        Self("user:00000000000".to_owned())
    }

    /// The string, set to this name.
    #[inline(always)]
    pub(crate) fn set(&mut self, name: &[u8; LENGTH]) -> &String {
        // Only `name` makes names.
        debug_assert!(name.is_ascii());
        // SAFETY: `name` is ASCII, and so is everything that it replaces, so the string stays
        // valid text.
        let bytes = unsafe { self.0.as_bytes_mut() };
        bytes[..LENGTH].copy_from_slice(name);
        &self.0
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_its_number_in_hexadecimal() {
        let mut buffer = Buffer::new();
        for index in [0, 9, 10, 0xABC, 999_999, 0x1234_5678, 0xFFFF_FFFF] {
            let expect = format!("user:000{index:08x}");
            assert_eq!(*buffer.set(&name(index)), expect);
        }
    }

    fn share(keys: &Keys, index: u64) -> f64 {
        let name = name(index);
        let hits = (0..DRAWS).filter(|&step| *keys.at(step) == name).count();
        as_f64(hits as u64) / as_f64(DRAWS)
    }

    #[test]
    fn uniform_keys_are_all_asked_for_alike() {
        let keys = Keys::uniform(100);
        for index in 0..100 {
            assert!((share(&keys, index) - 0.01).abs() < 0.001);
        }
    }

    #[test]
    fn the_first_key_of_a_zipf_mix_is_asked_for_most() {
        let keys = Keys::zipf(1000);
        // The sum of 1 / rank^0.99 over 1000 ranks is 7.73.
        assert!((share(&keys, 0) * 7.73 - 1.0).abs() < 0.02);
        assert!(share(&keys, 0) > share(&keys, 1) && share(&keys, 1) > share(&keys, 10));
    }
}
