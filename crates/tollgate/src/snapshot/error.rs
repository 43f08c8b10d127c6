//! Why a snapshot was not written, or nothing was restored from it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tollgate_core::LimitError;

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
