//! Files with the active keys, so that another process can continue with them: the parts that all tables share.
//!
//! [`KeyedLimiter::snapshot`](crate::KeyedLimiter::snapshot) and
//! [`StoredKeyLimiter::snapshot`](crate::StoredKeyLimiter::snapshot) write one file each. If several tables belong
//! together, write them to one file, so that they are of one moment: each table is a section of a [`SnapshotWriter`],
//! by its `save`, and its builder's `load` reads it from a [`SnapshotReader`] in the same order.
//!
//! # Format
//! Little-endian words of eight bytes: the kind of the file, its version, the number of words, the content, and a
//! checksum (FNV-1a) of all bytes but the number of words, which the length of the file proves. A reader reads
//! everything twice, the first time for the checksum, so that it uses no part of a damaged file. Neither reading nor
//! writing takes memory for more than one shard of a table.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::{LimitError, Rate, Timestamp};

use crate::clock::{Clock as _, Wall};

const WORD: usize = size_of::<u64>();
/// The position of the number of words.
const LENGTH: usize = 2;
/// The words before the content.
const HEADER: usize = LENGTH + 1;
/// The bytes per read or write.
const CHUNK: usize = 1 << 16;
const FNV_START: u64 = 0xCBF2_9CE4_8422_2325;
const FNV_FACTOR: u64 = 0x0000_0100_0000_01B3;

/// One moment on two clocks: the clock of a table, and the wall clock. Only the wall clock knows how long no process
/// ran.
///
/// Read the table's clock first: time that passes between the two reads then counts as not passed, and grants nothing.
/// For a table whose clock is the wall clock, use one reading for both; its times stay unchanged.
///
/// ```
/// use tollgate::{Clock, snapshot::SnapshotTimes};
/// use tollgate::clock::{Monotonic, Wall};
///
/// let clock = Monotonic::new();
/// let times = SnapshotTimes { now: clock.now(), wall: Wall.now() };
/// assert!(times.wall > times.now);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotTimes {
    /// The time on the clock of the table.
    pub now: Timestamp,
    /// The time on the wall clock: nanoseconds since 1970.
    pub wall: Timestamp,
}

impl SnapshotTimes {
    /// The present moment, for a table whose clock shows `now`.
    pub(crate) fn of(now: Timestamp) -> Self {
        // A monotonic clock doesn't know how long no process ran.
        let wall = Wall.now();
        Self { now, wall }
    }

    /// The nanoseconds from another time to this one on the wall clock; zero if it went back.
    pub(crate) fn nanos_since(self, wall: u64) -> u64 {
        self.wall.as_nanos().saturating_sub(wall)
    }

    /// Whether the table's clock is the wall clock.
    pub(crate) fn is_wall_clock(self) -> bool {
        self.now == self.wall
    }
}

/// The number of keys of a section that were loaded or skipped.
///
/// ```
/// use tollgate::snapshot::LoadCounts;
///
/// let none = LoadCounts::default();
/// assert_eq!((none.keys, none.skipped), (0, 0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadCounts {
    /// Keys that are still active and were loaded.
    pub keys: u64,
    /// Keys that are still active and found no slot: the table has less room than the saved one.
    pub skipped: u64,
}

impl LoadCounts {
    /// The sum of both.
    ///
    /// ```
    /// use tollgate::snapshot::LoadCounts;
    ///
    /// assert_eq!(LoadCounts::default().merged_with(LoadCounts::default()), LoadCounts::default());
    /// ```
    #[must_use]
    pub const fn merged_with(self, other: Self) -> Self {
        Self {
            keys: self.keys + other.keys,
            skipped: self.skipped + other.skipped,
        }
    }
}

/// A rate: 0 for none, 1 for zero, 2 for a finite one; count, seconds, nanoseconds, burst.
pub(crate) fn rate_words(rate: Rate) -> [u64; 5] {
    let period = rate.period().unwrap_or_default();
    let kind = match rate {
        rate if rate.is_unlimited() => 0,
        rate if rate.is_zero() => 1,
        _ => 2,
    };
    let nanos = u64::from(period.subsec_nanos());
    [
        kind,
        rate.count(),
        period.as_secs(),
        nanos,
        rate.burst_size(),
    ]
}

pub(crate) fn rate_from_words(words: [u64; 5]) -> Option<Rate> {
    let [kind, count, secs, nanos, burst] = words;
    let nanos = u32::try_from(nanos).ok().filter(|n| *n < 1_000_000_000)?;
    match kind {
        0 => Some(Rate::unlimited().burst(burst)),
        1 => Some(Rate::zero().burst(burst)),
        2 => Some(Rate::new(count, Duration::new(secs, nanos)).burst(burst)),
        _ => None,
    }
}

fn io_error(path: &Path, source: io::Error) -> SnapshotError {
    SnapshotError::Io {
        path: path.to_owned(),
        source,
    }
}

/// FNV-1a: detects a damaged file, not a forged one. Each step can be undone, so no change of a single byte goes
/// unnoticed.
fn checksum(sum: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(sum, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(FNV_FACTOR)
    })
}

/// Makes a rename durable: on Unix a folder is synced as a file is.
pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}

/// Writes a snapshot to a temporary file, and moves it into place when it is [finished](Self::finish): completely or
/// not at all. Only its owner can read it.
///
/// ```
/// use tollgate::snapshot::{SnapshotReader, SnapshotWriter, SnapshotTimes};
/// use tollgate::{Clock, KeyedLimiter, Rate, clock::Wall};
///
/// # let path = std::env::temp_dir().join(format!("tollgate-snapshot-doc-{}", std::process::id()));
/// let (reads, writes) = (KeyedLimiter::new(Rate::per_hour(10), 1_000), KeyedLimiter::new(Rate::per_hour(5), 1_000));
/// reads.check_n("user:42", 8);
/// let mut file = SnapshotWriter::create(&path, b"examples", 1)?;
/// for limiter in [&reads, &writes] {
///     limiter.save(&mut file, SnapshotTimes { now: limiter.clock().now(), wall: Wall.now() })?;
/// }
/// file.finish()?;
///
/// let mut file = SnapshotReader::open(&path, b"examples", 1)?;
/// let clock = tollgate::clock::Monotonic::new();
/// let times = SnapshotTimes { now: clock.now(), wall: Wall.now() };
/// let builder = KeyedLimiter::builder(Rate::per_hour(10), 1_000).clock(clock);
/// let (reads, loaded) = builder.load(&mut file, times)?;
/// assert_eq!((loaded.keys, reads.key("user:42").peek().remaining), (1, 2));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), tollgate::snapshot::SnapshotError>(())
/// ```
#[derive(Debug)]
pub struct SnapshotWriter {
    out: BufWriter<File>,
    path: PathBuf,
    temporary: PathBuf,
    checksum: u64,
    words: u64,
}

impl SnapshotWriter {
    /// Writes a file with one section.
    pub(crate) fn write<T>(
        path: impl AsRef<Path>,
        kind: &[u8; 8],
        version: u64,
        section: impl FnOnce(&mut Self) -> Result<T, SnapshotError>,
    ) -> Result<T, SnapshotError> {
        let mut file = Self::create(path, kind, version)?;
        let written = section(&mut file)?;
        file.finish()?;
        Ok(written)
    }

    /// Begins a file of this kind and version.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if no file can be made there.
    pub fn create(
        path: impl AsRef<Path>,
        kind: &[u8; 8],
        version: u64,
    ) -> Result<Self, SnapshotError> {
        let path = path.as_ref();
        let begun = create_temporary(path).map_err(|source| io_error(path, source));
        let (file, temporary) = begun?;
        let mut writer = Self {
            out: BufWriter::with_capacity(CHUNK, file),
            path: path.to_owned(),
            temporary,
            checksum: FNV_START,
            words: 0,
        };
        writer.words(&[u64::from_le_bytes(*kind), version])?;
        // The number of words isn't known yet, and is no part of the checksum.
        let sum = writer.checksum;
        writer.word(0)?;
        writer.checksum = sum;
        Ok(writer)
    }

    /// Writes one word.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if it can't be written.
    pub fn word(&mut self, word: u64) -> Result<(), SnapshotError> {
        let bytes = word.to_le_bytes();
        self.checksum = checksum(self.checksum, &bytes);
        self.words += 1;
        let written = self.out.write_all(&bytes);
        written.map_err(|source| io_error(&self.path, source))
    }

    /// Writes words.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if they can't be written.
    pub fn words(&mut self, words: &[u64]) -> Result<(), SnapshotError> {
        words.iter().try_for_each(|word| self.word(*word))
    }

    /// Writes bytes: their number, and then the bytes, padded with zeros.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if they can't be written.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let mut words = Vec::with_capacity(1 + bytes.len().div_ceil(WORD));
        push_bytes(&mut words, bytes);
        self.words(&words)
    }

    /// Writes a rate.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if it can't be written.
    pub fn rate(&mut self, rate: Rate) -> Result<(), SnapshotError> {
        self.words(&rate_words(rate))
    }

    /// Ends the file, waits until it is on the disk, and moves it into place.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if a step fails. An existing file stays.
    pub fn finish(mut self) -> Result<(), SnapshotError> {
        let ended = self.end();
        ended.map_err(|source| io_error(&self.path, source))
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.write_all(&self.checksum.to_le_bytes())?;
        let words = self.words + 1;
        self.out.seek(SeekFrom::Start((LENGTH * WORD) as u64))?;
        self.out.write_all(&words.to_le_bytes())?;
        self.out.flush()?;
        self.out.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        sync_folder(&self.path)
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        // There is no temporary file if it was moved into place.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Appends bytes as [`SnapshotWriter::bytes`] writes them.
pub(crate) fn push_bytes(words: &mut Vec<u64>, bytes: &[u8]) {
    words.push(bytes.len() as u64);
    let (chunks, rest) = bytes.as_chunks::<WORD>();
    words.extend(chunks.iter().map(|word| u64::from_le_bytes(*word)));
    if !rest.is_empty() {
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        words.push(u64::from_le_bytes(last));
    }
}

/// The number of files that this process has written.
static NEXT_TEMPORARY: AtomicU64 = AtomicU64::new(0);

/// Makes a file beside `path` that only its owner can read.
fn create_temporary(path: &Path) -> io::Result<(File, PathBuf)> {
    // A unique name, so that of two concurrent writers each moves a complete file into place.
    let turn = NEXT_TEMPORARY.fetch_add(1, Ordering::Relaxed);
    let temporary = sibling_path(path, &format!("{}-{turn}.tmp", std::process::id()))?;
    Ok((create_private(&temporary)?, temporary))
}

/// The name of a file beside another one.
pub(crate) fn sibling_path(path: &Path, ending: &str) -> io::Result<PathBuf> {
    let what = "not the name of a file";
    let name = path.file_name();
    let name = name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, what))?;
    let mut name = name.to_owned();
    name.push(format!(".{ending}"));
    Ok(path.with_file_name(name))
}

/// Makes a file that only its owner can read. It replaces a leftover file, which may have another mode.
pub(crate) fn create_private(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => private_options().create_new(true).open(path),
    }
}

/// Options that open a file only for its owner, because keys name tenants.
pub(crate) fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Reads a snapshot whose checksum was verified.
///
/// ```
/// use tollgate::snapshot::{SnapshotReader, SnapshotWriter};
///
/// # let path = std::env::temp_dir().join(format!("tollgate-reader-doc-{}", std::process::id()));
/// let mut file = SnapshotWriter::create(&path, b"examples", 1)?;
/// file.word(7)?;
/// file.bytes(b"ada")?;
/// file.finish()?;
///
/// let mut file = SnapshotReader::open(&path, b"examples", 1)?;
/// assert_eq!((file.word()?, file.bytes()?), (7, b"ada".to_vec()));
/// file.end()?;
/// let error = SnapshotReader::open(&path, b"examples", 2).unwrap_err().to_string();
/// assert!(error.contains("has version 1, but this build reads version 2"));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), tollgate::snapshot::SnapshotError>(())
/// ```
#[derive(Debug)]
pub struct SnapshotReader {
    input: BufReader<File>,
    path: PathBuf,
    /// The words that remain, without the checksum.
    words_left: u64,
}

impl SnapshotReader {
    /// Reads a file with one section. Every key that is still active must find a slot.
    pub(crate) fn read<T>(
        path: impl AsRef<Path>,
        kind: &[u8; 8],
        version: u64,
        capacity: usize,
        section: impl FnOnce(&mut Self) -> Result<(T, LoadCounts), SnapshotError>,
    ) -> Result<T, SnapshotError> {
        let mut file = Self::open(path, kind, version)?;
        let (
            limiter,
            LoadCounts {
                keys,
                skipped: left_out,
            },
        ) = section(&mut file)?;
        let path = file.path.clone();
        file.end()?;
        match left_out {
            0 => Ok(limiter),
            _ => Err(SnapshotError::TooManyKeys {
                path,
                keys: keys + left_out,
                capacity,
            }),
        }
    }

    /// Opens a file of this kind and version, and verifies all of it.
    ///
    /// # Errors
    /// If it can't be read, or isn't an intact file of this kind and version.
    pub fn open(
        path: impl AsRef<Path>,
        kind: &[u8; 8],
        version: u64,
    ) -> Result<Self, SnapshotError> {
        let path = path.as_ref();
        let owned = || path.to_owned();
        let io = |source| io_error(path, source);
        let mut file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut head = Vec::with_capacity(HEADER * WORD);
        let mut header = (&mut file).take((HEADER * WORD) as u64);
        header.read_to_end(&mut head).map_err(io)?;
        let word = |place: usize| {
            let bytes = head.get(place * WORD..)?.first_chunk::<WORD>()?;
            Some(u64::from_le_bytes(*bytes))
        };
        if word(0) != Some(u64::from_le_bytes(*kind)) || word(1) == Some(0) {
            return Err(SnapshotError::Foreign { path: owned() });
        }
        if let Some(found) = word(1).filter(|found| *found != version) {
            return Err(SnapshotError::OtherVersion {
                path: owned(),
                version: found,
                reads: version,
            });
        }
        let least = ((HEADER + 1) * WORD) as u64;
        let expected = word(LENGTH).map_or(least, |words| words.saturating_mul(WORD as u64));
        if length != expected || length < least {
            return Err(SnapshotError::Length {
                path: owned(),
                bytes: length,
                expected: expected.max(least),
            });
        }
        let mut input = BufReader::with_capacity(CHUNK, file);
        let sum = checksum(FNV_START, &head[..LENGTH * WORD]);
        if !is_intact(&mut input, sum, length - (HEADER * WORD) as u64).map_err(io)? {
            return Err(SnapshotError::Corrupt { path: owned() });
        }
        input
            .seek(SeekFrom::Start((HEADER * WORD) as u64))
            .map_err(io)?;
        Ok(Self {
            input,
            path: owned(),
            words_left: (length - least) / WORD as u64,
        })
    }

    /// The path of the file.
    ///
    /// ```
    /// use std::path::Path;
    /// use tollgate::snapshot::SnapshotReader;
    ///
    /// fn name(file: &SnapshotReader) -> &Path {
    ///     file.path()
    /// }
    /// ```
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next word.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] if there is none.
    pub fn word(&mut self) -> Result<u64, SnapshotError> {
        let Some(left) = self.words_left.checked_sub(1) else {
            return Err(self.corrupt_error());
        };
        let mut bytes = [0; WORD];
        let read = self.input.read_exact(&mut bytes);
        read.map_err(|source| io_error(&self.path, source))?;
        self.words_left = left;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The next words.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] if there are fewer.
    pub fn words<const N: usize>(&mut self) -> Result<[u64; N], SnapshotError> {
        let mut words = [0; N];
        for word in &mut words {
            *word = self.word()?;
        }
        Ok(words)
    }

    /// The next bytes, as [`SnapshotWriter::bytes`] wrote them.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] if there are fewer.
    pub fn bytes(&mut self) -> Result<Vec<u8>, SnapshotError> {
        let length = self.word()?;
        let mut bytes = Vec::new();
        // The length isn't trusted with an allocation: the loop ends where the file does.
        while (bytes.len() as u64) < length {
            bytes.extend(self.word()?.to_le_bytes());
        }
        bytes.truncate(usize::try_from(length).unwrap_or(usize::MAX));
        Ok(bytes)
    }

    /// The next words as a rate.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] if they aren't a rate.
    pub fn rate(&mut self) -> Result<Rate, SnapshotError> {
        rate_from_words(self.words()?).ok_or_else(|| self.corrupt_error())
    }

    /// Checks that no word remains.
    ///
    /// # Errors
    /// [`SnapshotError::Corrupt`] if one remains.
    pub fn end(self) -> Result<(), SnapshotError> {
        match self.words_left {
            0 => Ok(()),
            _ => Err(self.corrupt_error()),
        }
    }

    /// The error of invalid contents with a valid checksum.
    ///
    /// ```
    /// use tollgate::snapshot::{SnapshotError, SnapshotReader};
    ///
    /// fn parse_switch(file: &mut SnapshotReader) -> Result<bool, SnapshotError> {
    ///     match file.word()? {
    ///         0 => Ok(false),
    ///         1 => Ok(true),
    ///         _ => Err(file.corrupt_error()),
    ///     }
    /// }
    /// ```
    pub fn corrupt_error(&self) -> SnapshotError {
        SnapshotError::Corrupt {
            path: self.path.clone(),
        }
    }

    /// The error of a file whose build hashes keys in another way.
    ///
    /// ```
    /// use tollgate::snapshot::{SnapshotError, SnapshotReader};
    ///
    /// fn probe(file: &mut SnapshotReader, own: u64) -> Result<(), SnapshotError> {
    ///     if file.word()? == own { Ok(()) } else { Err(file.different_hash_error()) }
    /// }
    /// ```
    pub fn different_hash_error(&self) -> SnapshotError {
        SnapshotError::DifferentHash {
            path: self.path.clone(),
        }
    }

    /// Checks that the next word is the version of a section.
    pub(crate) fn expect_version(&mut self, reads: u64) -> Result<(), SnapshotError> {
        match self.word()? {
            version if version == reads => Ok(()),
            version => Err(SnapshotError::OtherVersion {
                path: self.path.clone(),
                version,
                reads,
            }),
        }
    }

    /// The remaining words, until one can't be read.
    pub(crate) fn remaining_words(&mut self) -> impl Iterator<Item = u64> {
        iter::from_fn(|| self.word().ok())
    }
}

/// Whether the next `bytes` bytes end with the checksum of the others.
fn is_intact(input: &mut impl Read, mut sum: u64, bytes: u64) -> io::Result<bool> {
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes - WORD as u64;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        input.read_exact(&mut chunk[..part])?;
        sum = checksum(sum, &chunk[..part]);
        left -= part as u64;
    }
    let mut own = [0; WORD];
    input.read_exact(&mut own)?;
    Ok(sum == u64::from_le_bytes(own))
}

/// Why a snapshot was not written, or not restored.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file can't be written or read.
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not a snapshot.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file has another version of the format.
    OtherVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u64,
        /// The version that this build reads.
        reads: u64,
    },
    /// The file is too short or too long.
    Length {
        /// The file.
        path: PathBuf,
        /// Its length in bytes.
        bytes: u64,
        /// The length that it should have.
        expected: u64,
    },
    /// The checksum does not match the contents.
    Corrupt {
        /// The file.
        path: PathBuf,
    },
    /// The build that wrote the file hashes keys in another way.
    DifferentHash {
        /// The file.
        path: PathBuf,
    },
    /// The limiter that wrote the file used another algorithm.
    OtherAlgorithm {
        /// The file.
        path: PathBuf,
    },
    /// A key in the file was not decoded, or occurs twice.
    Key {
        /// The file.
        path: PathBuf,
    },
    /// The file holds more active keys than the table has slots for.
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
            Self::DifferentHash { path } => write!(
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
