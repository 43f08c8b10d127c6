//! The file that active keys are kept in: what all kinds of it share.
//!
//! A snapshot starts with eight bytes that say its kind and eight that say its version, and ends with
//! a checksum of all before. What lies between is told where it is written: `keyed/snapshot.rs`,
//! `exact_keyed/snapshot.rs`.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
// Not loom's: a count that no decision reads.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_core::LimitError;

pub(crate) const WORD: usize = size_of::<u64>();

/// Why a snapshot was not written, or nothing was restored from it.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file can't be written or read.
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not a snapshot.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file is of another version of the format.
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u64,
        /// The version that this build reads.
        reads: u64,
    },
    /// The file was cut short, or went on.
    Length {
        /// The file.
        path: PathBuf,
        /// The bytes that it has.
        bytes: u64,
        /// The bytes that it should have.
        expected: u64,
    },
    /// The checksum does not fit the contents.
    Corrupt {
        /// The file.
        path: PathBuf,
    },
    /// The build that wrote the file hashes keys in another way.
    OtherBuild {
        /// The file.
        path: PathBuf,
    },
    /// The limiter that wrote the file counted by another algorithm.
    OtherAlgorithm {
        /// The file.
        path: PathBuf,
    },
    /// A key in the file was not decoded, or is there twice.
    Key {
        /// The file.
        path: PathBuf,
    },
    /// The file holds more active keys than find a slot.
    TooManyKeys {
        /// The file.
        path: PathBuf,
        /// The keys in it that are still active.
        keys: u64,
        /// The capacity of the limiter that was to be built.
        capacity: usize,
    },
    /// The rate of the limiter that was to be built can't be represented.
    Limit(LimitError),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "snapshot {}: {source}", path.display()),
            Self::Foreign { path } => {
                write!(f, "{} is not a snapshot of a limiter", path.display())
            }
            Self::OtherVersion {
                path,
                version,
                reads,
            } => write!(
                f,
                "snapshot {} has version {version}, but this build reads version {reads}; start \
                 without it, or restore it with the build that wrote it",
                path.display()
            ),
            Self::Length {
                path,
                bytes,
                expected,
            } => write!(
                f,
                "snapshot {} has {bytes} bytes instead of {expected}: it was cut short or changed",
                path.display()
            ),
            Self::Corrupt { path } => write!(
                f,
                "snapshot {} is corrupt: its checksum doesn't fit",
                path.display()
            ),
            Self::OtherBuild { path } => write!(
                f,
                "snapshot {} was written by a build that hashes keys in another way",
                path.display()
            ),
            Self::OtherAlgorithm { path } => write!(
                f,
                "snapshot {} was written by a limiter of another algorithm; build this one with the \
                 same",
                path.display()
            ),
            Self::Key { path } => write!(
                f,
                "snapshot {} holds a key that can't be decoded; decode keys as they were encoded",
                path.display()
            ),
            Self::TooManyKeys {
                path,
                keys,
                capacity,
            } => write!(
                f,
                "snapshot {} holds {keys} active keys, too many for a capacity of {capacity}",
                path.display()
            ),
            Self::Limit(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Limit(error) => error.source(),
            _ => None,
        }
    }
}

/// Adds the checksum and puts the file in its place, readable by its owner alone.
pub(crate) fn write(path: &Path, mut bytes: Vec<u8>) -> Result<(), SnapshotError> {
    bytes.extend(checksum(&bytes).to_le_bytes());
    replace(path, &bytes).map_err(|source| SnapshotError::Io {
        path: path.to_owned(),
        source,
    })
}

/// The words of an intact file of this kind and version, all but the checksum. `words_in` tells by the
/// file's first words how many it has: no more is read, so a file of any length costs no memory.
pub(crate) fn read<const HEADER: usize>(
    path: &Path,
    [kind, reads]: [u64; 2],
    words_in: impl FnOnce(&[u64; HEADER]) -> u64,
) -> Result<Vec<u64>, SnapshotError> {
    let owned = || path.to_owned();
    let io = |source| SnapshotError::Io {
        path: owned(),
        source,
    };
    let mut file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let mut bytes = Vec::new();
    let header = (HEADER * WORD) as u64;
    let head = (&mut file).take(header).read_to_end(&mut bytes);
    head.map_err(io)?;
    let mut first = [0; HEADER];
    for (word, read) in first.iter_mut().zip(words(&bytes)) {
        *word = read;
    }
    let version = first.get(1).copied().filter(|_| bytes.len() >= 2 * WORD);
    if first.first() != Some(&kind) || version == Some(0) {
        return Err(SnapshotError::Foreign { path: owned() });
    }
    if let Some(version) = version.filter(|version| *version != reads) {
        return Err(SnapshotError::OtherVersion {
            path: owned(),
            version,
            reads,
        });
    }
    let expected = words_in(&first).saturating_mul(WORD as u64);
    if length != expected || bytes.len() as u64 != header {
        return Err(SnapshotError::Length {
            path: owned(),
            bytes: length,
            expected,
        });
    }
    let rest = usize::try_from(expected - header).unwrap_or(usize::MAX);
    let reserved = bytes.try_reserve_exact(rest);
    reserved.map_err(|_| io(io::ErrorKind::OutOfMemory.into()))?;
    file.take(expected - header)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    let mut words: Vec<u64> = words(&bytes).collect();
    let body = bytes.len().saturating_sub(WORD);
    if words.pop() != Some(checksum(&bytes[..body])) {
        return Err(SnapshotError::Corrupt { path: owned() });
    }
    Ok(words)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (chunks, _) = bytes.as_chunks::<WORD>();
    chunks.iter().map(|word| u64::from_le_bytes(*word))
}

#[expect(
    clippy::disallowed_methods,
    reason = "no monotonic clock tells how long no process ran"
)]
pub(crate) fn wall_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// FNV-1a: tells a damaged file, not a forged one.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// How many files were written by this process.
static TURNS: AtomicU64 = AtomicU64::new(0);

/// Writes a file beside `path` that only its owner can read, and puts it in its place.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path
        .file_name()
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?
        .to_owned();
    // A name of its own, so that of two who write at once each puts a whole file in place.
    let turn = TURNS.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{turn}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    // One that was left behind may have another mode.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let written = write_private(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file: File = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
