//! CRC-32C: detects any burst of damage up to 32 bits, and all but one in 2³² of other damages.

const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let (mut index, mut seed) = (0, 0u32);
    while index < 256 {
        let mut value = seed;
        let mut bit = 0;
        while bit < 8 {
            let carry = value & 1;
            value >>= 1;
            if carry == 1 {
                // Castagnoli's polynomial, bit-reversed.
                value ^= 0x82F6_3B78;
            }
            bit += 1;
        }
        table[index] = value;
        index += 1;
        seed += 1;
    }
    table
}

#[cfg(test)]
std::thread_local! {
    /// The number of bytes that this thread has checksummed.
    pub(super) static SUMMED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The checksum of the concatenated parts.
pub(super) fn crc32c(parts: &[&[u8]]) -> u32 {
    #[cfg(test)]
    SUMMED.set(SUMMED.get() + parts.iter().map(|part| part.len()).sum::<usize>());
    let mut sum = u32::MAX;
    for part in parts {
        for byte in *part {
            let [low, ..] = sum.to_le_bytes();
            sum = TABLE[usize::from(low ^ byte)] ^ (sum >> 8);
        }
    }
    !sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_answer() {
        // From RFC 3720, appendix B.4, and the usual check value.
        assert_eq!(crc32c(&[b"123456789"]), 0xE306_9283);
        assert_eq!(crc32c(&[b"1234", b"", b"56789"]), 0xE306_9283);
        assert_eq!(crc32c(&[&[0; 32]]), 0x8A91_36AA);
        assert_eq!(crc32c(&[&[0xFF; 32]]), 0x62A8_AB43);
    }
}
