//! Writes a snapshot: a file beside, which takes its place once it is whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
// Not loom's: a count that no decision reads.
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::Rate;

use super::{
    CHUNK, FNV_START, LENGTH, SnapshotError, WORD, checksum, io_error, sync_folder, words_of,
};

/// Writes a snapshot beside its place, and puts it there when it is [finished](Self::finish): whole, or not at all.
/// It is readable by its owner alone.
///
/// ```
/// use tollgate::snapshot::{SnapshotReader, SnapshotWriter, Times};
/// use tollgate::{Clock, KeyedLimiter, Rate, clock::Wall};
///
/// # let path = std::env::temp_dir().join(format!("tollgate-snapshot-doc-{}", std::process::id()));
/// let (reads, writes) = (KeyedLimiter::new(Rate::per_hour(10), 1_000), KeyedLimiter::new(Rate::per_hour(5), 1_000));
/// reads.check_n("user:42", 8);
/// let mut file = SnapshotWriter::create(&path, b"examples", 1)?;
/// for limiter in [&reads, &writes] {
///     limiter.save(&mut file, Times { now: limiter.clock().now(), wall: Wall.now() })?;
/// }
/// file.finish()?;
///
/// let mut file = SnapshotReader::open(&path, b"examples", 1)?;
/// let clock = tollgate::clock::Monotonic::new();
/// let times = Times { now: clock.now(), wall: Wall.now() };
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
    sum: u64,
    words: u64,
}

impl SnapshotWriter {
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
        let begun = private(path).map_err(|source| io_error(path, source));
        let (file, temporary) = begun?;
        let mut writer = Self {
            out: BufWriter::with_capacity(CHUNK, file),
            path: path.to_owned(),
            temporary,
            sum: FNV_START,
            words: 0,
        };
        writer.words(&[u64::from_le_bytes(*kind), version])?;
        // Not known yet, and no part of the sum.
        let sum = writer.sum;
        writer.word(0)?;
        writer.sum = sum;
        Ok(writer)
    }

    /// Writes one word.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if it can't be written.
    pub fn word(&mut self, word: u64) -> Result<(), SnapshotError> {
        let bytes = word.to_le_bytes();
        self.sum = checksum(self.sum, &bytes);
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

    /// Writes bytes: how many, and then themselves, filled up with zeros.
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
        self.words(&words_of(rate))
    }

    /// Ends the file, waits until it is on the disk, and puts it in its place.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if any of it can't be done; what was there before stays.
    pub fn finish(mut self) -> Result<(), SnapshotError> {
        let ended = self.end();
        ended.map_err(|source| io_error(&self.path, source))
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.write_all(&self.sum.to_le_bytes())?;
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
        // There is none if it was put in its place.
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

/// How many files were written by this process.
static TURNS: AtomicU64 = AtomicU64::new(0);

/// Makes a file beside `path` that only its owner can read.
fn private(path: &Path) -> io::Result<(File, PathBuf)> {
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
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    Ok((options.open(&temporary)?, temporary))
}
