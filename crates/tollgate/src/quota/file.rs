//! The file that stores quotas: a base with every key, and after it a batch for each flush.
//!
//! # Format, version 3
//! | bytes | what |
//! |---|---|
//! | 8 | `tollquot` |
//! | 4 | the version |
//! | 4 | 1 if it was closed properly, and so ends with its base; 0 if batches follow |
//! | 8 | the bytes of the base |
//! | 4 · 4 | CRC-32C of the secret and the base, and of the 28 bytes so far |
//! | 8 · 8 | the secret, drawn anew with each base, and the mark at the start of each batch |
//! | as stated | the base, a batch (`record.rs`) |
//! | 8 · 4 · 4 · 4 · 4 | for each batch: the mark, its length in bytes, its number from 1, CRC-32C of the secret and these two, and of the secret and the batch |
//! | as stated | the batch |
//!
//! # What a crash leaves
//! A base is written to a second file, synced, and renamed over the old one. It is there as a whole or
//! not at all, so damage to it is an error. A batch is appended and synced. A crash may leave a part of
//! the last batch, which was never reported as saved; it is discarded. If anything intact follows an
//! unreadable part, the cause wasn't a crash, and that is an error too. Callers choose the bytes of
//! keys. Without the secret, no key can look like a batch, and none begins with the mark, so one pass
//! finds everything that follows.
//!
//! A locked file beside it keeps other processes out. It stays after the limiter is closed, and has no
//! effect while nobody holds the lock.

use std::collections::HashMap;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tollgate_core::LimitError;

use super::crc32c::crc32c;
use super::entry::QuotaEntry;
use super::record::{self, PeriodCache, RecordBatch};
use crate::snapshot::{create_private, private_options, sibling_path, sync_folder};

mod real_path;

const MAGIC: [u8; 8] = *b"tollquot";
/// Version 1 had one period per key, version 2 no secret.
const VERSION: u32 = 3;
const HEADER_BYTES: usize = 48;
/// The offset of the secret in the header; the base's checksum covers everything from here.
const SECRET_OFFSET: usize = 32;
const FRAME_BYTES: usize = 24;
/// Batches may grow to this size, or to twice the base, before the file is rewritten.
const MIN_TAIL_BYTES: u64 = 1 << 20;
/// A larger batch is written as a base.
const MAX_BATCH_BYTES: usize = 1 << 28;

/// The file, open and locked.
pub(super) struct QuotaFile {
    /// The resolved path, on which the lock is taken too.
    path: PathBuf,
    /// None before the first base, and after a write that failed.
    file: Option<File>,
    secret: FrameSecret,
    batches: u32,
    base_bytes: u64,
    bytes: u64,
    /// Held for as long as the limiter is open.
    lock: File,
    process: OwningProcess,
}

/// A random secret that callers who choose keys can't know, so that no key can look like a part of the
/// file.
#[derive(Clone, Copy)]
struct FrameSecret {
    salt: [u8; 8],
    mark: [u8; 8],
}

impl FrameSecret {
    fn random() -> Self {
        // std seeds this from the operating system.
        let draw = || RandomState::new().hash_one(0).to_le_bytes();
        Self {
            salt: draw(),
            mark: draw(),
        }
    }

    /// The header of a batch, by which it is found and verified.
    fn frame(&self, number: u32, batch: &[u8]) -> Option<[u8; FRAME_BYTES]> {
        let length = u32::try_from(batch.len()).ok()?.to_le_bytes();
        let number = number.to_le_bytes();
        let sums = [&[&length[..], &number].concat()[..], batch].map(|part| self.sum(part));
        let mut frame = [0; FRAME_BYTES];
        let parts = [&self.mark[..], &length, &number, &sums[0], &sums[1]].concat();
        frame.copy_from_slice(&parts);
        Some(frame)
    }

    fn sum(&self, bytes: &[u8]) -> [u8; 4] {
        crc32c(&[&self.salt, bytes]).to_le_bytes()
    }

    /// The number and the contents of an intact batch at the start of `bytes`. The length is verified
    /// by its own checksum before it is used, so no byte is checksummed for two batches.
    fn batch<'a>(&self, bytes: &'a [u8]) -> Option<(u32, &'a [u8])> {
        let (head, rest) = bytes.split_first_chunk::<FRAME_BYTES>()?;
        if head[..8] != self.mark || head[16..20] != self.sum(&head[8..16]) {
            return None;
        }
        let batch = rest.get(..usize::try_from(read_u32(head, 8)?).ok()?)?;
        (head[20..] == self.sum(batch)).then_some((read_u32(head, 12)?, batch))
    }

    /// Whether an intact batch begins anywhere after the first byte.
    fn has_later_batch(&self, bytes: &[u8]) -> bool {
        (1..bytes.len()).any(|start| self.batch(&bytes[start..]).is_some())
    }
}

/// The contents of a file.
#[derive(Default)]
pub(super) struct FileContents {
    pub(super) entries: HashMap<Arc<[u8]>, QuotaEntry>,
    periods: PeriodCache,
    pub(super) floor: u64,
    /// Bytes of an interrupted write that were discarded.
    pub(super) torn_bytes: u64,
}

/// How a write leaves the file: open for batches, or closed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FileEnd {
    Open,
    Closed,
}

impl QuotaFile {
    /// Locks and reads the file. A missing file has no contents; the first base creates it.
    pub(super) fn open(path: &Path) -> Result<(Self, FileContents), FileError> {
        let io = FileError::io(path);
        let real = real_path::resolve_path(path).map_err(&io)?;
        let lock = sibling_path(&real, "lock").and_then(|path| open_lock(&path));
        let lock = lock.map_err(&io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(FileError::Locked {
                    path: path.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        // From here on, dropping the store releases the lock.
        let contents = match fs::read(&real) {
            // Each name would get its own lock, and a rename on save would leave the other name with
            // the old state.
            Ok(_) if real_path::hard_link_count(&real) > 1 => Err(FileError::HardLinked {
                path: path.to_owned(),
                names: real_path::hard_link_count(&real),
            }),
            Ok(bytes) => read(path, &bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FileContents::default()),
            Err(error) => Err(io(error)),
        };
        let store = Self {
            path: real,
            file: None,
            secret: FrameSecret::random(),
            batches: 0,
            base_bytes: 0,
            bytes: 0,
            lock,
            process: OwningProcess::new(),
        };
        contents.map(|contents| (store, contents))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the next write has to be a base: because there is no valid one, because the batches have
    /// become long, or because the file was removed.
    pub(super) fn needs_base(&self) -> bool {
        let tail = self.bytes - self.base_bytes;
        let is_whole = || fs::metadata(&self.path).is_ok_and(|file| file.len() == self.bytes);
        // The length alone isn't enough: another file may have the same.
        let is_there = |own: &File| real_path::is_same_file(own, &self.path) && is_whole();
        !self.file.as_ref().is_some_and(is_there) || tail > MIN_TAIL_BYTES.max(2 * self.base_bytes)
    }

    /// Locks again if the lock file was removed, perhaps with its folder. A new lock file may belong to
    /// another process.
    fn ensure_lock(&mut self) -> io::Result<()> {
        let path = sibling_path(&self.path, "lock")?;
        if real_path::is_same_file(&self.lock, &path) {
            return Ok(());
        }
        let lock = open_lock(&path)?;
        match lock.try_lock() {
            Ok(()) => self.lock = lock,
            Err(TryLockError::WouldBlock) => {
                let why =
                    "its folder was taken away, and another limiter has the one that is there now";
                return Err(io::Error::other(why));
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(())
    }

    /// Appends a batch. After an error only a base helps, because the state of the file is unknown.
    pub(super) fn append(&mut self, batch: RecordBatch) -> io::Result<()> {
        let batch = batch.into_bytes();
        let frame = self.secret.frame(self.batches + 1, &batch);
        let (Some(mut file), Some(frame)) = (self.file.take(), frame) else {
            return Err(io::Error::other("a batch without a base"));
        };
        let frame = [&frame[..], &batch].concat();
        file.write_all(&frame)?;
        file.sync_data()?;
        self.bytes += frame.len() as u64;
        self.batches += 1;
        self.file = Some(file);
        Ok(())
    }

    /// Whether a batch is small enough to be appended.
    pub(super) fn can_append(&self, batch: &RecordBatch) -> bool {
        batch.len() <= MAX_BATCH_BYTES && self.batches < u32::MAX
    }

    /// Writes every key to a new file and renames it over the old one.
    pub(super) fn write_base(&mut self, base: RecordBatch, end: FileEnd) -> io::Result<()> {
        self.file = None;
        self.ensure_lock()?;
        let base = base.into_bytes();
        let secret = FrameSecret::random();
        let secret_bytes = [secret.salt, secret.mark].concat();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + base.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(u32::from(end == FileEnd::Closed).to_le_bytes());
        bytes.extend((base.len() as u64).to_le_bytes());
        bytes.extend(crc32c(&[&secret_bytes, &base]).to_le_bytes());
        let sum = crc32c(&[&bytes]);
        bytes.extend(sum.to_le_bytes());
        bytes.extend(secret_bytes);
        bytes.extend(base);
        let temporary = sibling_path(&self.path, "new")?;
        let written = write_new(&temporary, &bytes)
            .and_then(|file| fs::rename(&temporary, &self.path).map(|()| file));
        if written.is_err() {
            // The error of the write is the one to report.
            let _ = fs::remove_file(&temporary);
        }
        let file = written?;
        sync_folder(&self.path)?;
        self.file = Some(file);
        self.secret = secret;
        self.batches = 0;
        self.base_bytes = bytes.len() as u64;
        self.bytes = self.base_bytes;
        Ok(())
    }
}

impl Drop for QuotaFile {
    fn drop(&mut self) {
        // Closing the file isn't enough: a forked child would keep the lock until it executes another
        // program. In such a child, don't unlock, because that would release the parent's lock too.
        if !self.process.is_forked() {
            let _ = self.lock.unlock();
        }
    }
}

fn read(path: &Path, bytes: &[u8]) -> Result<FileContents, FileError> {
    let (header, secret, rest) = read_header(path, bytes)?;
    let length = header[16..].first_chunk().copied().map(u64::from_le_bytes);
    let length = length.and_then(|length| usize::try_from(length).ok());
    let length = length.unwrap_or(usize::MAX);
    let Some((base, tail)) = rest.split_at_checked(length) else {
        return Err(corrupt(path, bytes.len(), "the base is cut short"));
    };
    if read_u32(header, 24) != Some(crc32c(&[&secret.salt, &secret.mark, base])) {
        let what = "the checksum of the base doesn't fit";
        return Err(corrupt(path, HEADER_BYTES, what));
    }
    let mut contents = FileContents::default();
    if !contents.apply_batch(base) {
        return Err(corrupt(path, HEADER_BYTES, "the base can't be read"));
    }
    let closed = read_u32(header, 12) == Some(1);
    if closed && !tail.is_empty() {
        let at = bytes.len() - tail.len();
        return Err(corrupt(path, at, "something follows the end"));
    }
    contents
        .read_batches(secret, tail)
        .map_err(|(left, what)| corrupt(path, bytes.len() - left, what))?;
    Ok(contents)
}

/// The header without its secret, the secret, and the rest.
fn read_header<'a>(
    path: &Path,
    bytes: &'a [u8],
) -> Result<(&'a [u8], FrameSecret, &'a [u8]), FileError> {
    if !bytes.starts_with(&MAGIC) {
        let path = path.to_owned();
        return Err(FileError::NotAQuotaFile { path });
    }
    let cut_short = || corrupt(path, bytes.len(), "the header is cut short");
    let header = bytes.get(..SECRET_OFFSET).ok_or_else(cut_short)?;
    if read_u32(header, 28) != Some(crc32c(&[&header[..28]])) {
        return Err(corrupt(path, 0, "the checksum of the header doesn't fit"));
    }
    // Checked after the checksum, which every version has in this place.
    if let Some(version) = read_u32(header, 8).filter(|version| *version != VERSION) {
        let path = path.to_owned();
        return Err(FileError::OtherVersion { path, version });
    }
    let rest = &bytes[SECRET_OFFSET..];
    let (salt, rest) = rest.split_first_chunk().ok_or_else(cut_short)?;
    let (mark, rest) = rest.split_first_chunk().ok_or_else(cut_short)?;
    let secret = FrameSecret {
        salt: *salt,
        mark: *mark,
    };
    Ok((header, secret, rest))
}

fn corrupt(path: &Path, at: usize, what: &'static str) -> FileError {
    FileError::Corrupt {
        path: path.to_owned(),
        at: at as u64,
        what,
    }
}

impl FileContents {
    /// Applies the batches that follow a base. If a batch can't be read, returns how many bytes remain
    /// from it on, and what is wrong with it.
    fn read_batches(
        &mut self,
        secret: FrameSecret,
        mut tail: &[u8],
    ) -> Result<(), (usize, &'static str)> {
        let mut number = 1;
        while !tail.is_empty() {
            let Some((found, batch)) = secret.batch(tail) else {
                if secret.has_later_batch(tail) {
                    return Err((tail.len(), "a batch before the last can't be read"));
                }
                self.torn_bytes = tail.len() as u64;
                break;
            };
            if found != number || !self.apply_batch(batch) {
                return Err((tail.len(), "a batch is out of order"));
            }
            number += 1;
            tail = &tail[FRAME_BYTES + batch.len()..];
        }
        Ok(())
    }

    fn apply_batch(&mut self, batch: &[u8]) -> bool {
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

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*word))
}

/// Opens the lock file, which is never removed.
fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = private_options();
    options.create(true).truncate(false).open(path)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut file = create_private(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(file)
}

/// Identifies the process that created this value.
#[derive(Debug)]
pub(super) struct OwningProcess(usize);

impl OwningProcess {
    pub(super) fn new() -> Self {
        Self(fork_count())
    }

    /// Whether this process was forked from the creating one.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        fork_count() != self.0
    }
}

#[cfg(unix)]
use crate::clock::fork::fork_count;

/// Without `fork` on this platform, the count stays 0.
#[cfg(not(unix))]
const fn forks() -> usize {
    0
}

/// Why quotas can't be kept in a file.
#[derive(Debug)]
#[non_exhaustive]
pub enum FileError {
    /// The file can't be written or read.
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another limiter, in this process or another one, has the file open.
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file has another format.
    NotAQuotaFile {
        /// The file.
        path: PathBuf,
    },
    /// The file has another version of the format.
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
        /// The offset of the damage, in bytes from the start.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The file has several names (hard links), and each name would grant the quota again.
    HardLinked {
        /// The file.
        path: PathBuf,
        /// The number of names.
        names: u64,
    },
    /// This process was forked from the one that opened the file.
    Forked {
        /// The file.
        path: PathBuf,
    },
    /// The file holds more keys than the limiter's capacity.
    TooManyKeys {
        /// The file.
        path: PathBuf,
        /// Keys in the file with usage.
        keys: usize,
        /// The limiter's capacity.
        capacity: usize,
    },
    /// The limiter's settings are invalid.
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
            Self::NotAQuotaFile { path } => write!(f, "{} is not a quota store", path.display()),
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
            Self::HardLinked { path, names } => write!(
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

impl FileError {
    /// Wraps the system's error for this file.
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> Self {
        |source| Self::Io {
            path: path.to_owned(),
            source,
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

#[cfg(test)]
mod tests;
