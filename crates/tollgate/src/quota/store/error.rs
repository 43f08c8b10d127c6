//! Why quotas can't be kept in a file, with what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

use tollgate_core::LimitError;

use super::VERSION;

/// Why quotas can't be kept in a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// The file can't be written or read.
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another limiter, in this process or another one, has the file open.
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file is something else.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file is of another version of the format.
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// The file was damaged or cut short.
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where, in bytes from its start.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The file has several names, hard links: under each it would be granted.
    ManyNames {
        /// The file.
        path: PathBuf,
        /// How many names it has.
        names: u64,
    },
    /// This process was forked from the one that opened the file.
    Forked {
        /// The file.
        path: PathBuf,
    },
    /// The file holds more keys than the limiter may count.
    TooManyKeys {
        /// The file.
        path: PathBuf,
        /// The keys in it that have used something.
        keys: usize,
        /// How many may be counted.
        capacity: usize,
    },
    /// The limiter can't be built as it was told.
    Limit(LimitError),
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, source } => write!(f, "quota store {}: {source}", path.display()),
            Self::Locked { path } => write!(
                f,
                "quota store {} is in use by another limiter; give each process a file of its own",
                path.display()
            ),
            Self::Foreign { path } => write!(f, "{} is not a quota store", path.display()),
            Self::OtherVersion { path, version } => write!(
                f,
                "quota store {} has version {version}, but this build reads version {VERSION}; open it \
                 with the build that wrote it, or move it away to start from nothing",
                path.display()
            ),
            Self::Corrupt { path, at, what } => write!(
                f,
                "quota store {} is corrupt: {what} at byte {at}; \
                 put a copy in its place, or move it away to start from nothing",
                path.display()
            ),
            Self::ManyNames { path, names } => write!(
                f,
                "quota store {} has {names} names (hard links), and would be granted under each; \
                 keep one, and copy the file for anything else",
                path.display()
            ),
            Self::Forked { path } => write!(
                f,
                "quota store {} was opened before this process was forked, and only the process that \
                 opened it writes it; open one after the fork",
                path.display()
            ),
            Self::TooManyKeys {
                path,
                keys,
                capacity,
            } => write!(
                f,
                "quota store {} holds {keys} keys, more than the {capacity} that may be counted",
                path.display()
            ),
            Self::Limit(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FileError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Limit(error) => Some(error),
            _ => None,
        }
    }
}
