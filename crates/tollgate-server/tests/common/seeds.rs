//! The seeds of a fuzz target and small mutations of them, for the tests. Inputs that fuzzing finds are added to the
//! seeds.

use std::fs;
use std::path::Path;

/// The seeds of a target: their names and bytes, by name.
pub(crate) fn of(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds");
    let files = fs::read_dir(folder.join(target)).expect("the seeds");
    let mut seeds: Vec<_> = files
        .map(|file| {
            let path = file.expect("a seed").path();
            let name = path.file_name().unwrap_or_default();
            let bytes = fs::read(&path).expect("bytes");
            (name.to_string_lossy().into_owned(), bytes)
        })
        .collect();
    seeds.sort();
    seeds
}

/// Reads every seed, all that is left of it when it is cut anywhere, and with each bit turned. The names of the seeds
/// that are what the target is about.
#[allow(
    dead_code,
    reason = "one test program has readers, the other says them to a service"
)]
pub(crate) fn read_all(target: &str, read: impl Fn(&[u8]) -> bool) -> Vec<String> {
    let mut right = Vec::new();
    for (name, seed) in of(target) {
        if read(&seed) {
            right.push(name);
        }
        for place in 0..seed.len() {
            read(&seed[..place]);
            read(&seed[place..]);
            for bit in 0..8 {
                let mut other = seed.clone();
                other[place] ^= 1 << bit;
                read(&other);
            }
        }
    }
    right
}
