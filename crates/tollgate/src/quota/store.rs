//! The file that quotas are kept in: a base with every key, and after it a batch for each flush.
//!
//! # Format, version 2
//! | bytes | what |
//! |---|---|
//! | 8 | `tollquot` |
//! | 4 | the version |
//! | 4 | 1 if it was closed in order, and so ends with its base; 0 if batches follow |
//! | 8 | the bytes of the base |
//! | 4 · 4 | CRC-32C of the base, and of the 28 bytes so far |
//! | as said | the base, a batch (`record.rs`) |
//! | 4 · 4 · 4 · 4 | for each batch: a mark, its bytes, its number from 1, CRC-32C of the two and of it |
//! | as said | the batch |
//!
//! # What a crash leaves
//! A base is written to a file beside, synced, and renamed over the old one: it is there as a whole or
//! not at all, so damage to it is an error. A batch is appended and synced. A crash may leave a part of
//! the last one, which nobody was told was saved: it is left out. If anything intact follows what can't
//! be read, then it was not a crash, and that is an error too.
//!
//! A file beside with a lock on it keeps other processes out; it is left behind, and means nothing
//! when nobody holds the lock.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::crc::crc32c;
use super::entry::Entry;
use super::record::{self, Batch, Periods};

const MAGIC: [u8; 8] = *b"tollquot";
/// The one before knew one period a key.
const VERSION: u32 = 2;
const HEADER: usize = 32;
const MARK: [u8; 4] = [0xF5, b't', b'g', 0xA7];
const FRAME: usize = 16;
/// Batches may grow to this, or to twice the base, before the file is written anew.
const LEAST_TAIL: u64 = 1 << 20;
/// A larger batch is written as a base.
const MOST_BATCH: usize = 1 << 28;

/// Why quotas can't be kept in a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum StoreError {
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
    /// The file holds more keys than the limiter may count.
    TooManyKeys {
        /// The file.
        path: PathBuf,
        /// The keys in it that have used something.
        keys: usize,
        /// How many may be counted.
        max_keys: usize,
    },
}

impl fmt::Display for StoreError {
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
            Self::TooManyKeys {
                path,
                keys,
                max_keys,
            } => write!(
                f,
                "quota store {} holds {keys} keys, more than the {max_keys} that may be counted",
                path.display()
            ),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// The file, open and locked.
pub(super) struct Store {
    path: PathBuf,
    /// None before the first base, and after a write that failed.
    file: Option<File>,
    batches: u32,
    base_bytes: u64,
    bytes: u64,
    /// Held for as long as the store is open.
    lock: File,
}

/// What a file held.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) entries: HashMap<Arc<[u8]>, Entry>,
    periods: Periods,
    pub(super) floor: u64,
    /// Bytes of an unfinished write that were left out.
    pub(super) torn: u64,
}

/// How a file is left.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Open,
    Closed,
}

impl Store {
    /// Locks and reads. A file that isn't there holds nothing; it is made by the first base.
    pub(super) fn open(path: &Path) -> Result<(Self, Contents), StoreError> {
        let io = |source| StoreError::Io {
            path: path.to_owned(),
            source,
        };
        let lock = private().open(beside(path, "lock").map_err(io)?);
        let lock = lock.map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(StoreError::Locked {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        // From here on dropping it gives the lock back.
        let store = Self {
            path: path.to_owned(),
            file: None,
            batches: 0,
            base_bytes: 0,
            bytes: 0,
            lock,
        };
        let contents = match fs::read(path) {
            Ok(bytes) => read(path, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Contents::default(),
            Err(error) => return Err(io(error)),
        };
        Ok((store, contents))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether every key has to be written: there is no base that can be trusted, or the batches
    /// have become long, or somebody took the file away.
    pub(super) fn wants_base(&self) -> bool {
        let tail = self.bytes - self.base_bytes;
        let unchanged = || fs::metadata(&self.path).is_ok_and(|file| file.len() == self.bytes);
        self.file.is_none() || tail > LEAST_TAIL.max(2 * self.base_bytes) || !unchanged()
    }

    /// Appends a batch. After an error only a base will do: nobody knows what the file holds then.
    pub(super) fn append(&mut self, batch: Batch) -> io::Result<()> {
        let batch = batch.into_bytes();
        let length = u32::try_from(batch.len()).ok();
        let (Some(mut file), Some(length)) = (self.file.take(), length) else {
            return Err(io::Error::other("a batch without a base"));
        };
        let (length, number) = (length.to_le_bytes(), (self.batches + 1).to_le_bytes());
        let sum = crc32c(&[&length, &number, &batch]).to_le_bytes();
        let frame = [&MARK[..], &length, &number, &sum, &batch].concat();
        file.write_all(&frame)?;
        file.sync_data()?;
        self.bytes += frame.len() as u64;
        self.batches += 1;
        self.file = Some(file);
        Ok(())
    }

    /// Whether a batch is small enough to be appended.
    pub(super) fn fits(&self, batch: &Batch) -> bool {
        batch.len() <= MOST_BATCH && self.batches < u32::MAX
    }

    /// Writes every key to a new file and puts it in the place of the old one.
    pub(super) fn write_base(&mut self, base: Batch, end: End) -> io::Result<()> {
        self.file = None;
        let base = base.into_bytes();
        let mut bytes = Vec::with_capacity(HEADER + base.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(u32::from(end == End::Closed).to_le_bytes());
        bytes.extend((base.len() as u64).to_le_bytes());
        bytes.extend(crc32c(&[&base]).to_le_bytes());
        let sum = crc32c(&[&bytes]);
        bytes.extend(sum.to_le_bytes());
        bytes.extend(base);
        let temporary = beside(&self.path, "new")?;
        let written = write_new(&temporary, &bytes)
            .and_then(|file| fs::rename(&temporary, &self.path).map(|()| file));
        if written.is_err() {
            // The first error is the one to report.
            let _ = fs::remove_file(&temporary);
        }
        let file = written?;
        sync_folder(&self.path)?;
        self.file = Some(file);
        self.batches = 0;
        self.base_bytes = bytes.len() as u64;
        self.bytes = self.base_bytes;
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // Closing alone would leave the lock with a child that was forked and not yet replaced.
        let _ = self.lock.unlock();
    }
}

fn read(path: &Path, bytes: &[u8]) -> Result<Contents, StoreError> {
    let corrupt = |at: usize, what| StoreError::Corrupt {
        path: path.to_owned(),
        at: at as u64,
        what,
    };
    if !bytes.starts_with(&MAGIC) {
        let path = path.to_owned();
        return Err(StoreError::Foreign { path });
    }
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(corrupt(bytes.len(), "the header is cut short"));
    };
    if u32_at(header, 28) != Some(crc32c(&[&header[..28]])) {
        return Err(corrupt(0, "the checksum of the header doesn't fit"));
    }
    // After the checksum, which every version keeps in this place.
    match u32_at(header, 8) {
        Some(version) if version != VERSION => {
            let path = path.to_owned();
            return Err(StoreError::OtherVersion { path, version });
        }
        _ => {}
    }
    let length = u32_at(header, 16).zip(u32_at(header, 20));
    let length = length.map_or(u64::MAX, |(low, high)| {
        u64::from(high) << 32 | u64::from(low)
    });
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let Some((base, mut tail)) = rest.split_at_checked(length) else {
        return Err(corrupt(bytes.len(), "the base is cut short"));
    };
    if u32_at(header, 24) != Some(crc32c(&[base])) {
        return Err(corrupt(HEADER, "the checksum of the base doesn't fit"));
    }
    let mut contents = Contents::default();
    if !contents.apply(base) {
        return Err(corrupt(HEADER, "the base can't be read"));
    }
    let closed = u32_at(header, 12) == Some(1);
    let mut number = 1;
    while !tail.is_empty() {
        let at = bytes.len() - tail.len();
        if closed {
            return Err(corrupt(at, "something follows the end"));
        }
        let Some((found, batch)) = frame(tail) else {
            if (1..tail.len()).any(|start| frame(&tail[start..]).is_some()) {
                return Err(corrupt(at, "a batch before the last can't be read"));
            }
            contents.torn = tail.len() as u64;
            break;
        };
        if found != number || !contents.apply(batch) {
            return Err(corrupt(at, "a batch is out of order"));
        }
        number += 1;
        tail = &tail[FRAME + batch.len()..];
    }
    Ok(contents)
}

impl Contents {
    fn apply(&mut self, batch: &[u8]) -> bool {
        let Some((floor, records)) = record::read(batch, &mut self.periods) else {
            return false;
        };
        self.floor = self.floor.max(floor);
        for (key, entry) in records {
            match entry {
                Some(entry) => self.entries.insert(key, entry),
                None => self.entries.remove(&key),
            };
        }
        true
    }
}

/// The number and contents of an intact batch at the start of `bytes`.
fn frame(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<FRAME>()?;
    if head[..4] != MARK {
        return None;
    }
    let length = usize::try_from(u32_at(head, 4)?).ok()?;
    let batch = rest.get(..length)?;
    let fits = u32_at(head, 12)? == crc32c(&[&head[4..12], batch]);
    fits.then_some((u32_at(head, 8)?, batch))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*word))
}

/// The name of a file beside the store's own.
fn beside(path: &Path, ending: &str) -> io::Result<PathBuf> {
    let name = path.file_name();
    let name =
        name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the name of a file"))?;
    let mut name = name.to_owned();
    name.push(format!(".{ending}"));
    Ok(path.with_file_name(name))
}

/// Files that only their owner reads: keys name tenants.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    // One that was left behind may have another mode.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = private().create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(file)
}

/// Makes the rename last: on Unix a folder is synced as a file is.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
