//! Changes a snapshot on purpose, with a checksum that still fits.

use std::fs;
use std::path::Path;

/// The position of the number of words, which isn't part of the checksum.
const LENGTH: usize = 2;

/// Changes the words of a snapshot, and computes the checksum anew.
///
/// # Panics
/// If there is no such file.
///
/// ```
/// use tollgate_testkit::temp_folder::TempFolder;
/// use tollgate_testkit::snapshot_corruption::corrupt_snapshot;
///
/// let scratch = TempFolder::new("tampered");
/// let file = scratch.path("words");
/// std::fs::write(&file, [0; 8 * 5])?;
/// corrupt_snapshot(&file, |words| words[3] = 7);
/// assert_eq!(std::fs::read(&file)?[8 * 3], 7);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn corrupt_snapshot(path: &Path, change: impl FnOnce(&mut [u64])) {
    let bytes = fs::read(path).expect("a snapshot");
    let (chunks, _) = bytes.as_chunks::<8>();
    let mut words: Vec<_> = chunks
        .iter()
        .map(|word| u64::from_le_bytes(*word))
        .collect();
    words.pop().expect("a checksum");
    change(&mut words);
    let counted = words.iter().enumerate().filter(|(at, _)| *at != LENGTH);
    let counted = counted.flat_map(|(_, word)| word.to_le_bytes());
    let sum = counted.fold(0xCBF2_9CE4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    words.push(sum);
    let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    fs::write(path, bytes).expect("a snapshot");
}
